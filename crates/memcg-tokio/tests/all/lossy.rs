//! Senders that drop messages where others wait: what lives, what is counted, what arrives.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memcg::{Charged, Group, Limits, Runtime, Weigh};
use memcg_tokio::{
    DropPolicy, LossySender, Receiver, SendError, Sender, channel, message_overhead,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::error::TryRecvError;
use tokio_test::task::spawn;

/// Bytes of all parcels that live.
#[derive(Debug, Default)]
struct Alive {
    bytes: AtomicU64,
    peak: AtomicU64,
}

/// A message that tells how many bytes of its kind live, by its own drop.
#[derive(Debug)]
struct Parcel {
    number: u64,
    bytes: usize,
    alive: Arc<Alive>,
}

impl Parcel {
    fn new(number: u64, bytes: usize, alive: &Arc<Alive>) -> Parcel {
        let now = alive.bytes.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        alive.peak.fetch_max(now, Ordering::SeqCst);
        Parcel {
            number,
            bytes,
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.alive
            .bytes
            .fetch_sub(self.bytes as u64, Ordering::SeqCst);
    }
}

impl Weigh for Parcel {
    fn heap_bytes(&self) -> usize {
        self.bytes
    }
}

fn queue(max: usize) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(max))
        .unwrap();
    (runtime, group)
}

/// All that was in the channel is gone, and so are its bytes.
fn assert_nothing_is_left(runtime: &Runtime, group: &Group, alive: &Alive) {
    assert_eq!(
        (alive.bytes.load(Ordering::SeqCst), group.live()),
        (0, 0),
        "bytes that live, and bytes that are charged"
    );
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

fn numbers(receiver: &mut Receiver<Parcel>) -> Vec<u64> {
    std::iter::from_fn(|| receiver.try_recv().ok().map(|parcel| parcel.number)).collect()
}

/// What a message of such a weight is charged, by what the group holds then.
fn charged(policy: DropPolicy, bytes: usize) -> u64 {
    let (_runtime, group) = queue(1 << 30);
    let (sender, _receiver) = channel(&group);
    let parcel = Parcel::new(0, bytes, &Arc::default());
    assert_eq!(sender.lossy(policy).send(parcel).unwrap(), 0);
    group.live()
}

#[test]
fn the_oldest_go_until_the_new_one_fits() {
    let each = charged(DropPolicy::Oldest, 1000);
    let (runtime, group) = queue(4 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    let lost: Vec<u64> = (0..7)
        .map(|number| latest.send(Parcel::new(number, 1000, &alive)).unwrap())
        .collect();
    assert_eq!(lost, [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!((latest.dropped(), latest.policy()), (3, DropPolicy::Oldest));
    assert_eq!((receiver.len(), group.live()), (4, 4 * each));
    assert_eq!(alive.bytes.load(Ordering::SeqCst), 4000, "dropped is gone");

    // A large one takes the place of several, and what is left over is free.
    assert_eq!(latest.send(Parcel::new(7, 2500, &alive)).unwrap(), 3);
    assert_eq!((receiver.len(), group.live()), (2, 2 * each + 1500));
    assert_eq!(latest.send(Parcel::new(8, 500, &alive)).unwrap(), 0);
    assert_eq!(latest.clone().dropped(), 6, "a clone counts with it");
    assert_eq!(sender.lossy(DropPolicy::Oldest).dropped(), 0, "not another");
    assert_eq!(numbers(&mut receiver), [6, 7, 8]);
    assert!(receiver.is_empty());
    assert_eq!(receiver.try_recv().err(), Some(TryRecvError::Empty));
    assert_nothing_is_left(&runtime, &group, &alive);
}

#[test]
fn the_newest_goes_where_it_does_not_fit() {
    let each = charged(DropPolicy::Newest, 1000);
    assert_eq!(each, (1000 + message_overhead::<Parcel>()) as u64);
    let (runtime, group) = queue(3 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let first = sender.lossy(DropPolicy::Newest);
    let lost: Vec<u64> = (0..5)
        .map(|number| first.send(Parcel::new(number, 1000, &alive)).unwrap())
        .collect();
    assert_eq!((lost, first.dropped()), (vec![0, 0, 0, 1, 1], 2));
    assert_eq!(alive.bytes.load(Ordering::SeqCst), 3000, "dropped is gone");
    assert_eq!(numbers(&mut receiver), [0, 1, 2]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// A message that can never fit is no message that is lost: the sender has it back, and nothing
/// else was dropped for it. So it is where what may be dropped would not do.
#[test]
fn a_policy_that_cannot_make_room_enough_refuses() {
    let max = 10_000;
    let alive = Arc::default();
    for policy in [DropPolicy::Oldest, DropPolicy::Newest] {
        let (runtime, group) = queue(max);
        let (sender, mut receiver) = channel(&group);
        let lossy = sender.lossy(policy);
        lossy.send(Parcel::new(0, 1000, &alive)).unwrap();
        match lossy.send(Parcel::new(1, max, &alive)) {
            Err(SendError::Refused(parcel, refusal)) => {
                assert_eq!((parcel.number, refusal.is_over_limit()), (1, true));
            }
            other => panic!("{policy:?}: {other:?}"),
        }
        assert_eq!((lossy.dropped(), receiver.len()), (0, 1));

        // What is held elsewhere can be dropped by no sender.
        let held = group.charge(7_000).unwrap();
        let refused = lossy.send(Parcel::new(2, 5_000, &alive));
        match policy {
            DropPolicy::Oldest => {
                assert!(
                    matches!(refused, Err(SendError::Refused(..))),
                    "{refused:?}"
                );
                assert_eq!((lossy.dropped(), receiver.len()), (0, 1));
                drop(refused);
            }
            // It would have fitted later.
            DropPolicy::Newest => assert_eq!((refused.unwrap(), lossy.dropped()), (1, 1)),
        }
        drop(held);
        assert_eq!(numbers(&mut receiver), [0]);

        drop(runtime);
        let offline = lossy.send(Parcel::new(3, 10, &alive)).unwrap_err();
        assert!(
            offline
                .refusal()
                .is_some_and(|refusal| refusal.is_offline())
        );
        assert_eq!(alive.bytes.load(Ordering::SeqCst), 10, "the error has it");
        drop(offline);
        assert_eq!(alive.bytes.load(Ordering::SeqCst), 0);
    }
}

/// What was sent by a sender that waits, that tries, or that drops the newest is there to stay.
#[tokio::test]
async fn messages_of_other_senders_are_not_dropped() {
    let (runtime, group) = queue(20_000);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    sender.send(Parcel::new(100, 5_000, &alive)).await.unwrap();
    sender.try_send(Parcel::new(101, 5_000, &alive)).unwrap();
    let first = sender.lossy(DropPolicy::Newest);
    assert_eq!(first.send(Parcel::new(102, 4_000, &alive)).unwrap(), 0);
    for number in 0..50 {
        assert!(latest.send(Parcel::new(number, 2_000, &alive)).is_ok());
    }
    assert!(latest.send(Parcel::new(50, 6_000, &alive)).is_err());
    assert_eq!(latest.dropped(), 48);
    assert_eq!(numbers(&mut receiver), [100, 101, 102, 48, 49]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// The bytes of a dropped message become those of the new one: no sender that waits takes them, and
/// one that waits still has the first bytes that a receive gives back.
#[tokio::test]
async fn a_sender_that_waits_is_served_by_receives() {
    let each = charged(DropPolicy::Oldest, 1000);
    let (runtime, group) = queue(3 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    for number in 0..3 {
        latest.send(Parcel::new(number, 1000, &alive)).unwrap();
    }
    let mut waits = spawn(sender.send(Parcel::new(100, 1000, &alive)));
    while group.waiting_count() == 0 {
        assert!(waits.poll().is_pending());
    }
    for number in 3..10 {
        assert_eq!(latest.send(Parcel::new(number, 1000, &alive)).unwrap(), 1);
    }
    assert!(waits.poll().is_pending());
    assert_eq!(receiver.recv().await.map(|parcel| parcel.number), Some(7));
    assert!(waits.is_woken() && waits.poll().is_ready());
    drop(waits);
    assert_eq!(numbers(&mut receiver), [8, 9, 100]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// After a max was lowered no message takes the place of another one before the group holds no more
/// than that.
#[test]
fn a_lowered_max_is_reached() {
    let each = charged(DropPolicy::Oldest, 1000);
    let (runtime, group) = queue(8 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    for number in 0..8 {
        latest.send(Parcel::new(number, 1000, &alive)).unwrap();
    }
    group.set_max(3 * each as usize).unwrap();
    assert_eq!(latest.send(Parcel::new(8, 1000, &alive)).unwrap(), 6);
    assert_eq!((group.live(), receiver.len()), (3 * each, 3));
    assert_eq!(numbers(&mut receiver), [6, 7, 8]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// Where others hold a group above its max, all that may be dropped would not help, so it stays.
#[test]
fn nothing_is_dropped_for_what_others_hold() {
    let (runtime, above) = queue(100_000);
    let group = above.create("channel", Limits::new()).unwrap();
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    for number in 0..5 {
        latest.send(Parcel::new(number, 1_000, &alive)).unwrap();
    }
    let others = above.create("others", Limits::new()).unwrap();
    let held = others.force_charge(200_000);
    let refused = latest.send(Parcel::new(5, 1_000, &alive));
    assert!(
        matches!(refused, Err(SendError::Refused(..))),
        "{refused:?}"
    );
    assert_eq!((latest.dropped(), receiver.len()), (0, 5));
    drop((refused, held));
    assert_eq!(numbers(&mut receiver), [0, 1, 2, 3, 4]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// A receiver that stands still has as many turns as messages were ever there at once, however many
/// were dropped: the queue keeps no place for each of them.
#[test]
fn a_receiver_that_stands_still_finds_the_latest_only() {
    let each = charged(DropPolicy::Oldest, 0);
    let (runtime, group) = queue(10 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    for number in 0..100_000 {
        latest.send(Parcel::new(number, 0, &alive)).unwrap();
    }
    assert_eq!((latest.dropped(), receiver.len()), (99_990, 10));
    // One in the place of all: nine turns are passed over.
    latest
        .send(Parcel::new(100_000, 9 * each as usize, &alive))
        .unwrap();
    assert_eq!(numbers(&mut receiver), [100_000]);
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// A receiver that waits is woken by a message that has taken over a turn, or has sent one, and
/// passes over turns without one, in each form of receive.
#[tokio::test]
async fn turns_without_a_message_end_no_receive() {
    let each = charged(DropPolicy::Oldest, 0);
    let (runtime, group) = queue(10 * each as usize);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    let large = 9 * each as usize;
    let leave_turns = |number| {
        for _ in 0..10 {
            latest.send(Parcel::new(0, 0, &alive)).unwrap();
        }
        latest.send(Parcel::new(number, large, &alive)).unwrap();
    };
    leave_turns(1);
    assert_eq!(receiver.recv().await.map(|parcel| parcel.number), Some(1));
    {
        // Nine turns are left in front of it.
        let mut receive = spawn(receiver.recv());
        assert!(receive.poll().is_pending());
        latest.send(Parcel::new(2, 0, &alive)).unwrap();
        assert!(receive.is_woken());
        match receive.poll() {
            std::task::Poll::Ready(parcel) => {
                assert_eq!(parcel.map(|parcel| parcel.number), Some(2))
            }
            pending => panic!("{pending:?}"),
        }
    }
    leave_turns(3);
    let mut many = Vec::new();
    assert_eq!(receiver.recv_many(&mut many, 100).await, 1);
    {
        let mut many_charged = Vec::new();
        let mut receive = spawn(receiver.recv_many_charged(&mut many_charged, 100));
        assert!(receive.poll().is_pending(), "turns alone are no messages");
    }
    many.clear();
    leave_turns(4);
    let parcel = receiver.recv_charged().await.unwrap();
    assert_eq!(
        (parcel.number, Charged::charge(&parcel).bytes()),
        (4, group.live())
    );
    drop(parcel);
    leave_turns(5);
    let receiver = thread::spawn(move || {
        assert_eq!(
            receiver.blocking_recv().map(|parcel| parcel.number),
            Some(5)
        );
        receiver
    });
    let mut receiver = receiver.join().unwrap();
    assert_eq!(receiver.try_recv().err(), Some(TryRecvError::Empty));
    drop((sender, latest));
    assert!(receiver.recv().await.is_none());
    assert_nothing_is_left(&runtime, &group, &alive);
}

#[test]
fn a_receiver_that_closes_or_goes() {
    let (runtime, group) = queue(10_000);
    let (sender, mut receiver) = channel(&group);
    let alive = Arc::default();
    let [latest, first] =
        [DropPolicy::Oldest, DropPolicy::Newest].map(|policy| sender.lossy(policy));
    latest.send(Parcel::new(0, 1_000, &alive)).unwrap();
    latest.send(Parcel::new(1, 1_000, &alive)).unwrap();
    receiver.close();
    for lossy in [&latest, &first] {
        // Closed counts no loss, though it would not have fitted, either.
        for bytes in [10, 9_000] {
            let closed = lossy.send(Parcel::new(2, bytes, &alive));
            assert!(matches!(closed, Err(SendError::Closed(parcel)) if parcel.number == 2));
        }
        assert_eq!(lossy.dropped(), 0);
    }
    assert_eq!(
        receiver.try_recv().map(|parcel| parcel.number).ok(),
        Some(0)
    );
    drop(receiver);
    assert!(sender.is_closed() && latest.sender().same_channel(&sender));
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// A message that was sent before the receiver closed arrives, and one that arrives was sent: each
/// is received, dropped and counted, or returned.
#[test]
fn each_message_is_received_dropped_or_returned_when_it_closes_meanwhile() {
    const SENDERS: u64 = 3;
    for round in 0..40 {
        let each = charged(DropPolicy::Oldest, 100);
        let (runtime, group) = queue(8 * each as usize);
        let (sender, mut receiver) = channel::<Parcel>(&group);
        let alive: Arc<Alive> = Arc::default();
        let latest = sender.lossy(DropPolicy::Oldest);
        drop(sender);
        let threads: Vec<_> = (0..SENDERS)
            .map(|_| {
                let (latest, alive) = (latest.clone(), Arc::clone(&alive));
                thread::spawn(move || {
                    let mut sent = 0;
                    loop {
                        match latest.send(Parcel::new(sent, 100, &alive)) {
                            Ok(_) => sent += 1,
                            Err(SendError::Closed(_)) => return sent,
                            Err(_) => {}
                        }
                    }
                })
            })
            .collect();
        let mut received = 0;
        while received < round {
            received += u64::from(receiver.try_recv().is_ok());
        }
        receiver.close();
        while receiver.blocking_recv().is_some() {
            received += 1;
        }
        let sent: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        assert_eq!(received + latest.dropped(), sent, "round {round}");
        drop(receiver);
        assert_nothing_is_left(&runtime, &group, &alive);
    }
}

/// The bytes that live are within the max, and one message more in the hands of each sender and of
/// the receiver, however they run into each other; messages of one sender arrive in their order.
#[test]
fn what_lives_is_bounded_with_several_senders() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 5_000;
    const LARGEST: usize = 3_000;
    const MAX: usize = 20_000;
    let (runtime, group) = queue(MAX);
    let (sender, mut receiver) = channel::<Parcel>(&group);
    let alive: Arc<Alive> = Arc::default();
    let latest = sender.lossy(DropPolicy::Oldest);
    drop(sender);
    let threads: Vec<_> = (0..SENDERS)
        .map(|thread| {
            let (latest, alive) = (latest.clone(), Arc::clone(&alive));
            thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                let mut refused = 0;
                for at in 0..EACH {
                    let bytes = random.random_range(0..LARGEST);
                    let parcel = Parcel::new(thread * EACH + at, bytes, &alive);
                    match latest.send(parcel) {
                        Ok(_) => {}
                        // The others hold all that could be dropped in their hands.
                        Err(SendError::Refused(..)) => refused += 1,
                        Err(other) => panic!("the receiver is there: {other}"),
                    }
                }
                refused
            })
        })
        .collect();
    drop(latest.sender().downgrade());
    let counts = latest.clone();
    drop(latest);
    let receives = thread::spawn(move || {
        let mut last = [None; SENDERS as usize];
        let mut received = 0_u64;
        loop {
            match receiver.try_recv() {
                Ok(parcel) => {
                    let before = &mut last[(parcel.number / EACH) as usize];
                    assert!(
                        *before < Some(parcel.number),
                        "{before:?} {}",
                        parcel.number
                    );
                    *before = Some(parcel.number);
                    received += 1;
                    if received.is_multiple_of(64) {
                        thread::sleep(Duration::from_micros(200)); // the queue fills
                    }
                }
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return received,
            }
        }
    });
    let refused: u64 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    let dropped = counts.dropped();
    drop(counts);
    let received = receives.join().unwrap();
    assert_eq!(received + dropped + refused, SENDERS * EACH);
    assert!(dropped > 0, "the receiver is slower");
    let bound = (MAX + (SENDERS as usize + 1) * LARGEST) as u64;
    let peak = alive.peak.load(Ordering::SeqCst);
    assert!(peak <= bound, "{peak} bytes lived, of {bound}");
    assert!(group.peak() <= group.max());
    assert_nothing_is_left(&runtime, &group, &alive);
}

/// A message whose drop sends another one through the same channel.
struct Chained {
    left: u32,
    again: Option<Arc<Mutex<Option<LossySender<Chained>>>>>,
}

impl Weigh for Chained {
    fn heap_bytes(&self) -> usize {
        1_000
    }
}

impl Drop for Chained {
    fn drop(&mut self) {
        let Some(again) = self.again.take() else {
            return;
        };
        let sender = again.lock().unwrap().clone();
        if let (Some(sender), Some(left)) = (sender, self.left.checked_sub(1)) {
            assert!(sender.sender().group().live() <= sender.sender().group().max());
            let again = Some(again);
            // It is refused where the drop that called has taken out all that could be dropped.
            let _ = sender.send(Chained { left, again });
        }
    }
}

#[test]
fn the_drop_of_a_message_may_send() {
    let (runtime, group) = queue(5_000);
    let (sender, receiver) = channel::<Chained>(&group);
    let latest = sender.lossy(DropPolicy::Oldest);
    let again = Arc::new(Mutex::new(Some(latest.clone())));
    for _ in 0..20 {
        let chained = Chained {
            left: 3,
            again: Some(Arc::clone(&again)),
        };
        assert!(latest.send(chained).is_ok() || latest.dropped() > 0);
    }
    assert!(latest.dropped() >= 16, "{latest:?}");
    *again.lock().unwrap() = None;
    drop((receiver, sender, latest));
    assert_eq!(group.live(), 0);
    assert!(runtime.verify().to_string().ends_with("all add up"));
}

/// A message whose drop panics.
struct Fragile(Arc<AtomicBool>);

impl Weigh for Fragile {
    fn heap_bytes(&self) -> usize {
        1_000
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if self.0.swap(false, Ordering::SeqCst) {
            panic!("a drop that panics");
        }
    }
}

#[test]
fn the_drop_of_a_message_may_panic() {
    let (runtime, group) = queue(2_500);
    let (sender, mut receiver) = channel::<Fragile>(&group);
    let latest = sender.lossy(DropPolicy::Oldest);
    let is_armed = Arc::new(AtomicBool::new(false));
    let mut lost = 0;
    while lost == 0 {
        lost = latest.send(Fragile(Arc::clone(&is_armed))).unwrap();
    }
    let there = receiver.len();
    is_armed.store(true, Ordering::SeqCst);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        latest.send(Fragile(Arc::clone(&is_armed))).map_err(drop)
    }));
    assert!(panicked.is_err());
    assert_eq!((latest.dropped(), receiver.len()), (2, there - 1));
    assert_eq!(
        latest.send(Fragile(is_armed)).unwrap(),
        0,
        "its bytes are back"
    );
    while receiver.try_recv().is_ok() {}
    assert_eq!(group.live(), 0);
    assert!(runtime.verify().to_string().ends_with("all add up"));
}

/// A random script of sends and receives beside a queue of a few lines: with messages that are small
/// and large by themselves.
#[test]
fn a_random_script_shows_the_same_as_a_model() {
    script(|number| (number, [0_u8; 0]), |&(number, _)| number);
    script(|number| (number, [0_u8; 200]), |&(number, _)| number);
}

fn script<T: Weigh>(make: impl Fn(u64) -> T, number_of: impl Fn(&T) -> u64) {
    let (_room, probe) = queue(1 << 20);
    let (sender, _receiver) = channel::<T>(&probe);
    sender
        .lossy(DropPolicy::Oldest)
        .send(make(0))
        .map_err(drop)
        .unwrap();
    let droppable = probe.live();
    let kept = message_overhead::<T>() as u64;
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let max = random.random_range(droppable..10 * droppable);
        let (runtime, group) = queue(max as usize);
        let (sender, mut receiver): (Sender<T>, _) = channel(&group);
        let [latest, first] =
            [DropPolicy::Oldest, DropPolicy::Newest].map(|policy| sender.lossy(policy));
        let mut lost = [0, 0];
        // The order of either kind is kept, and that of one beside the other is free.
        let (mut may_drop, mut stays) = (VecDeque::new(), VecDeque::new());
        for number in 0..300 {
            let live = may_drop.len() as u64 * droppable + stays.len() as u64 * kept;
            assert_eq!(
                (group.live(), receiver.len()),
                (live, may_drop.len() + stays.len())
            );
            let message = make(number);
            match random.random_range(0..4) {
                0 => {
                    let fits = live + droppable <= max;
                    let sent = latest.send(message);
                    if fits || !may_drop.is_empty() {
                        assert_eq!(sent.ok(), Some(u64::from(!fits)), "seed {seed}");
                        may_drop.push_back(number);
                        if !fits {
                            may_drop.pop_front();
                            lost[0] += 1;
                        }
                    } else {
                        assert!(matches!(sent, Err(SendError::Refused(..))), "seed {seed}");
                    }
                }
                1 => {
                    let fits = live + kept <= max;
                    assert_eq!(first.send(message).ok(), Some(u64::from(!fits)));
                    if fits {
                        stays.push_back(number);
                    } else {
                        lost[1] += 1;
                    }
                }
                2 => {
                    let fits = live + kept <= max;
                    assert_eq!(sender.try_send(message).is_ok(), fits);
                    if fits {
                        stays.push_back(number);
                    }
                }
                _ => match receiver.try_recv() {
                    Ok(message) => {
                        let found = Some(number_of(&message));
                        assert!(
                            found == may_drop.front().copied() && may_drop.pop_front().is_some()
                                || found == stays.pop_front(),
                            "seed {seed}: {found:?}"
                        );
                    }
                    Err(_) => assert!(may_drop.is_empty() && stays.is_empty(), "seed {seed}"),
                },
            }
            assert_eq!([latest.dropped(), first.dropped()], lost, "seed {seed}");
        }
        drop(receiver);
        assert_eq!(group.live(), 0);
        assert!(runtime.verify().to_string().ends_with("all add up"));
    }
}
