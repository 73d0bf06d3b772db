//! Properties that tokio's channel lacks: weights, groups, refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use memcg::figures::GroupPressure;
use memcg::{Bytes, Charged, Event, Group, Limits, Runtime, Weigh};
use memcg_tokio::{SendError, channel, message_overhead};
use rand::RngExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_test::task::spawn;

const OVERHEAD: usize = message_overhead::<Vec<u8>>();

fn queue(max: usize) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(max))
        .unwrap();
    (runtime, group)
}

fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

#[tokio::test]
async fn a_message_is_charged_its_weight_until_it_is_received() {
    let (runtime, group) = queue(1 << 20);
    let (sender, mut receiver) = channel(&group);
    sender.send(Vec::<u8>::with_capacity(1000)).await.unwrap();
    sender.try_send(vec![1, 2, 3]).unwrap();
    assert_eq!(group.live(), (2 * OVERHEAD + 1003) as u64);
    assert_eq!(
        receiver.recv().await.map(|message| message.capacity()),
        Some(1000)
    );
    assert_eq!(group.live(), (OVERHEAD + 3) as u64);
    let (message, charge) = Charged::into_parts(receiver.recv_charged().await.unwrap());
    assert_eq!(
        (message, charge.bytes(), group.live()),
        (vec![1, 2, 3], (OVERHEAD + 3) as u64, charge.bytes())
    );
    drop(charge);
    assert_eq!(group.live(), 0);
    assert_sound(&runtime);
}

#[tokio::test]
async fn many_are_received_at_once_and_a_cancelled_call_loses_none() {
    let (_runtime, group) = queue(1 << 20);
    let (sender, mut receiver) = channel(&group);
    let mut buffer = Vec::new();
    assert!(
        timeout(
            Duration::from_millis(1),
            receiver.recv_many(&mut buffer, 10)
        )
        .await
        .is_err()
    );
    for number in 0..10_u64 {
        sender.send(number).await.unwrap();
    }
    assert_eq!(
        (receiver.recv_many(&mut buffer, 4).await, &*buffer),
        (4, &[0, 1, 2, 3][..])
    );
    assert_eq!(group.live(), 6 * message_overhead::<u64>() as u64);
    assert_eq!(
        (
            receiver.recv_many(&mut buffer, 100).await,
            receiver.try_recv().ok()
        ),
        (6, None)
    );
    drop(sender);
    assert_eq!(
        (
            receiver.recv_many(&mut buffer, 100).await,
            buffer.len(),
            group.live()
        ),
        (0, 10, 0)
    );
}

#[tokio::test]
async fn a_message_that_never_fits_comes_back_at_once() {
    let (_runtime, group) = queue(1000);
    let (sender, _receiver) = channel(&group);
    let refused = sender.send(vec![7_u8; 2000]).await.unwrap_err();
    assert!(
        matches!(refused.refusal(), Some(error) if error.is_over_limit()),
        "{refused:?}"
    );
    let text = refused.refusal().map(ToString::to_string);
    assert!(
        text.is_some_and(|text| text.starts_with("/queue refused 2")),
        "{refused:?}"
    );
    assert_eq!(refused.into_message(), vec![7; 2000]);
}

#[tokio::test(start_paused = true)]
async fn a_send_gives_up_by_tokios_clock_and_is_counted() {
    let (_runtime, group) = queue(1000);
    let (sender, mut receiver) = channel(&group);
    sender.send(vec![0_u8; 800]).await.unwrap();
    let begun = Instant::now();
    let late = sender
        .send_timeout(vec![1_u8; 800], Duration::from_secs(5000))
        .await
        .unwrap_err();
    assert!(
        matches!(&late, SendError::Refused(_, error) if error.is_timeout()),
        "{late:?}"
    );
    assert_eq!(
        (
            begun.elapsed().as_secs(),
            group.events().get(Event::TimedOut)
        ),
        (5000, 1)
    );
    assert_eq!((late.into_message().len(), group.waiting_count()), (800, 0));
    receiver.recv().await.unwrap();
    sender
        .send_timeout(vec![1_u8; 800], Duration::ZERO)
        .await
        .unwrap(); // it fits
}

#[tokio::test]
async fn the_limits_above_bound_it_too() {
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime
        .root()
        .create("acme", Limits::new().max(1000))
        .unwrap();
    let [first, second] =
        ["first", "second"].map(|name| tenant.create(name, Limits::new()).unwrap());
    let (to_first, mut at_first) = channel(&first);
    let (to_second, _at_second) = channel(&second);
    to_first.send(vec![0_u8; 800]).await.unwrap();
    let refused = to_second.try_send(vec![0_u8; 800]).unwrap_err();
    let text = refused.refusal().map(ToString::to_string);
    assert!(
        text.is_some_and(|text| text.starts_with("/acme refused")),
        "{refused:?}"
    );
    // A sender may be a stranger: what it reads names no group.
    assert_eq!(refused.to_string(), "there is no room for the message");
    let waits = tokio::spawn(async move { to_second.send(vec![0_u8; 800]).await.is_ok() });
    while tenant.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    at_first.recv().await.unwrap();
    assert!(
        waits.await.unwrap(),
        "the other channel's message was received"
    );
}

#[tokio::test]
async fn a_group_that_goes_offline_ends_a_wait() {
    let (_runtime, group) = queue(1000);
    let (sender, mut receiver) = channel(&group);
    sender.send(vec![0_u8; 800]).await.unwrap();
    let other = sender.clone();
    let waits = tokio::spawn(async move { other.send(vec![1_u8; 800]).await });
    while group.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    group.offline().unwrap();
    let refused = waits.await.unwrap().unwrap_err();
    assert!(
        matches!(refused.refusal(), Some(error) if error.is_offline()),
        "{refused:?}"
    );
    assert_eq!(refused.into_message(), vec![1; 800]);
    assert_eq!(
        receiver.recv().await.map(|message| message.len()),
        Some(800),
        "what was sent arrives"
    );
    assert_eq!(group.live(), 0);
}

#[tokio::test]
async fn a_reserved_charge_is_the_callers() {
    let (_runtime, group) = queue(1000);
    let (sender, mut receiver) = channel::<Vec<u8>>(&group);
    let charge = sender.reserve(OVERHEAD + 700).await.unwrap();
    assert_eq!(
        (sender.group().live(), charge.bytes()),
        (charge.bytes(), (OVERHEAD + 700) as u64)
    );
    assert!(
        timeout(Duration::from_millis(1), sender.reserve(700))
            .await
            .is_err()
    );
    assert_eq!(
        group.waiting_count(),
        0,
        "the one that was dropped has left the line"
    );
    sender
        .send_charged(Charged::new(vec![0; 700], charge))
        .unwrap();
    let elsewhere = group.parent().unwrap().charge(10).unwrap();
    sender
        .send_charged(Charged::new(vec![], elsewhere))
        .unwrap();
    receiver.close();
    assert!(matches!(
        sender.reserve(1).await,
        Err(SendError::Closed(()))
    ));
    let late = group.parent().unwrap().charge(10).unwrap();
    assert!(matches!(
        sender.send_charged(Charged::new(vec![], late)),
        Err(SendError::Closed(_))
    ));
    assert_eq!(group.parent().unwrap().live(), (OVERHEAD + 710) as u64);
    drop(receiver);
    assert_eq!(
        group.parent().unwrap().live(),
        0,
        "the receiver's drop gives back what is left"
    );
}

/// A send awaits its turn among the tasks twice, then its place in line. Dropped at either, it
/// leaves nothing; else the message goes as soon as there is room.
#[test]
fn a_send_that_is_dropped_at_any_await_leaves_nothing() {
    let (runtime, group) = queue(1000);
    let (sender, mut receiver) = channel::<Vec<u8>>(&group);
    sender.try_send(vec![0; 800]).unwrap();
    let held = group.live();
    for polls in 1..=4 {
        let mut send = spawn(sender.send(vec![1; 800]));
        for poll in 1..=polls {
            assert!(send.poll().is_pending());
            // After its turns among the tasks it is woken by room alone.
            assert_eq!(
                (send.is_woken(), group.waiting_count()),
                if poll <= 2 { (true, 0) } else { (false, 1) }
            );
        }
        drop(send);
        assert_eq!(
            (group.live(), group.waiting_count()),
            (held, 0),
            "after {polls} polls"
        );
    }
    let mut sends = [1, 3].map(|polls| {
        let mut send = spawn(sender.send(vec![polls; 200]));
        (0..polls).for_each(|_| assert!(send.poll().is_pending()));
        send
    });
    assert_eq!(receiver.try_recv().map(|message| message.len()), Ok(800));
    for send in &mut sends {
        assert!(send.is_woken() && matches!(send.poll(), Poll::Ready(Ok(()))));
    }
    drop(sends);
    // The one that was in line was served when there was room, the other one found room in its
    // turn.
    assert_eq!(
        [receiver.try_recv(), receiver.try_recv()],
        [Ok(vec![1; 200]), Ok(vec![3; 200])]
    );
    assert_eq!(group.live(), 0);
    assert_sound(&runtime);
}

#[tokio::test]
async fn a_weak_sender_keeps_nothing_open() {
    let (_runtime, group) = queue(1000);
    let (sender, mut receiver) = channel::<u32>(&group);
    let weak = sender.downgrade();
    assert!(
        weak.upgrade()
            .is_some_and(|other| other.same_channel(&sender))
    );
    sender.send(1).await.unwrap();
    drop(sender);
    assert!(weak.upgrade().is_none());
    assert_eq!(
        (receiver.recv().await, receiver.recv().await),
        (Some(1), None)
    );
}

#[test]
fn a_thread_without_tasks_receives() {
    let (_runtime, group) = queue(10_000);
    let (sender, mut receiver) = channel::<u32>(&group);
    let thread =
        std::thread::spawn(move || std::iter::from_fn(|| receiver.blocking_recv()).sum::<u32>());
    let tokio = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    tokio.block_on(async move {
        for number in 0..1000 {
            sender.send(number).await.unwrap();
        }
    });
    assert_eq!((thread.join().unwrap(), group.live()), (499_500, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_above_high_is_delayed() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().high(1 << 20))
        .unwrap();
    let (sender, mut receiver) = channel(&group);
    let held = group.force_charge(1 << 20);
    sender.try_send(vec![0_u8; 1000]).unwrap();
    assert_eq!(
        group.pressure(),
        GroupPressure::default(),
        "a send that does not wait is not delayed"
    );
    let delayed = tokio::spawn(async move { sender.send(vec![1_u8; 1 << 19]).await.is_ok() });
    while group.pressure().some.total.is_zero() {
        assert!(!delayed.is_finished(), "it was not delayed");
        tokio::task::yield_now().await;
    }
    assert_eq!(
        (
            receiver.try_recv().map(|message| message.len()),
            receiver.len()
        ),
        (Ok(1000), 0)
    );
    assert_eq!(
        group.live(),
        (1 << 20) + (OVERHEAD + (1 << 19)) as u64,
        "it is charged before its delay"
    );
    drop(held); // which ends the delay
    assert!(delayed.await.unwrap());
    assert_eq!(
        receiver.recv().await.map(|message| message.len()),
        Some(1 << 19)
    );
    assert!(group.events().get(Event::High) > 0);
}

#[test]
fn what_values_hold_is_weighed() {
    assert_eq!(
        (
            5_u32.heap_bytes(),
            "static".heap_bytes(),
            Some(String::from("abc")).heap_bytes(),
            None::<String>.heap_bytes()
        ),
        (0, 0, 3, 0)
    );
    assert_eq!(
        vec![vec![0_u8; 10], vec![0; 20]].heap_bytes(),
        2 * size_of::<Vec<u8>>() + 30
    );
    assert_eq!(
        vec![vec![0_u8; 10]; 3].into_boxed_slice().heap_bytes(),
        3 * size_of::<Vec<u8>>() + 30
    );
    assert_eq!(
        Box::new([String::from("ab"), String::from("c")]).heap_bytes(),
        2 * size_of::<String>() + 3
    );
    assert_eq!(
        (
            String::from("ab"),
            1_u8,
            Ok::<_, ()>(Box::<str>::from("abc"))
        )
            .heap_bytes(),
        5
    );
    let mut deque = std::collections::VecDeque::with_capacity(8);
    deque.extend([String::from("ab"), String::from("c")]);
    assert_eq!(
        deque.heap_bytes(),
        deque.capacity() * size_of::<String>() + 3
    );
    #[cfg(feature = "bytes")]
    assert_eq!(
        (
            bytes::Bytes::from_static(b"abc").heap_bytes(),
            bytes::BytesMut::with_capacity(9).heap_bytes()
        ),
        (3, 9)
    );
}

/// Senders of all sizes of messages that wait, give up and are dropped, against a receiver that
/// dawdles: no sample is above max, what was sent is received, and everything is given back.
#[test]
fn senders_that_give_up_lose_nothing() {
    const MAX: usize = 64 << 10;
    let (runtime, group) = queue(MAX);
    let ends = Arc::new(AtomicBool::new(false));
    let sampler = std::thread::spawn({
        let ends = Arc::clone(&ends);
        let group = group.clone();
        move || {
            let mut samples = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                assert!(group.usage() <= MAX as u64, "{}", group.usage());
                samples += 1;
            }
            samples
        }
    });
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_time()
        .build()
        .unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let given_up = Arc::new(AtomicU64::new(0));
    let received = tokio.block_on(async {
        let (sender, mut receiver) = channel::<Vec<u8>>(&group);
        for _ in 0..8 {
            let sender = sender.clone();
            let sent = Arc::clone(&sent);
            let given_up = Arc::clone(&given_up);
            tokio::spawn(async move {
                for _ in 0..400 {
                    let length = rand::rng().random_range(1..20_000);
                    let way = rand::rng().random_range(0..4);
                    let message = vec![1; length];
                    let was_sent = match way {
                        0 => sender.try_send(message).is_ok(),
                        1 => sender
                            .send_timeout(message, Duration::from_micros(300))
                            .await
                            .is_ok(),
                        2 => matches!(
                            timeout(Duration::from_micros(200), sender.send(message)).await,
                            Ok(Ok(()))
                        ),
                        _ => sender.send(message).await.is_ok(),
                    };
                    let count = if was_sent { &sent } else { &given_up };
                    count.fetch_add(if was_sent { length as u64 } else { 1 }, Ordering::Relaxed);
                }
            });
        }
        drop(sender);
        let mut received = 0;
        while let Some(message) = receiver.recv().await {
            received += message.len() as u64;
            if rand::rng().random_range(0..16) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        received
    });
    ends.store(true, Ordering::Relaxed);
    assert!(sampler.join().unwrap() > 0);
    assert_eq!(received, sent.load(Ordering::Relaxed));
    assert!(given_up.load(Ordering::Relaxed) > 50, "some give up");
    drop(tokio);
    assert_eq!((Bytes(group.live()), group.waiting_count()), (Bytes(0), 0));
    assert_sound(&runtime);
}
