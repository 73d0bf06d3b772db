//! Senders that wait are served first come, first served. They have one place in the group's line,
//! and turns with other charges.

#![allow(clippy::result_large_err, reason = "an error has the message and why")]

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::{
    Bytes, Charged, Group, Limits, OomPolicy, Reclaim, ReclaimContext, ReclaimPriority, Runtime,
    Weigh,
};
use memcg_tokio::{Receiver, SendError, Sender, channel, message_overhead};
use tokio::time::timeout;
use tokio_test::task::{Spawn, spawn};

/// A message that is charged `bytes` in all.
struct Message {
    number: usize,
    bytes: usize,
}

impl Weigh for Message {
    fn heap_bytes(&self) -> usize {
        self.bytes - message_overhead::<Message>()
    }
}

const SIZE: usize = 1000;

type Sending<'a> = Spawn<Pin<Box<dyn Future<Output = Result<(), SendError<Message>>> + Send + 'a>>>;

fn queue(max: usize) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(max))
        .unwrap();
    (runtime, group)
}

/// Starts a send, and polls it until it waits in line.
fn waits(sender: &Sender<Message>, number: usize, bytes: usize) -> Sending<'_> {
    let mut sending: Sending = spawn(Box::pin(sender.send(Message { number, bytes })));
    loop {
        assert!(sending.poll().is_pending(), "{number} finds room");
        if !sending.is_woken() {
            return sending;
        }
    }
}

/// A channel that is full: so many messages fit.
fn full(messages: usize) -> (Runtime, Group, Sender<Message>, Receiver<Message>) {
    let (runtime, group) = queue(messages * SIZE);
    let (sender, receiver) = channel(&group);
    for number in 0..messages {
        sender
            .try_send(Message {
                number,
                bytes: SIZE,
            })
            .unwrap();
    }
    (runtime, group, sender, receiver)
}

/// Sends that wait, one for each number.
fn all_wait(sender: &Sender<Message>, numbers: Range<usize>) -> Vec<(usize, Sending<'_>)> {
    numbers
        .map(|number| (number, waits(sender, number, SIZE)))
        .collect()
}

/// Polls the sends that were woken, until none is. Returns the numbers of those that are done, in
/// this order.
fn settle(sends: &mut Vec<(usize, Sending<'_>)>) -> Vec<usize> {
    let mut sent = Vec::new();
    while let Some(at) = sends.iter().position(|(_, sending)| sending.is_woken()) {
        if let Poll::Ready(ended) = sends[at].1.poll() {
            ended.unwrap_or_else(|refused| panic!("{}: {refused}", sends[at].0));
            sent.push(sends.remove(at).0);
        }
    }
    sent
}

fn receive(receiver: &mut Receiver<Message>) -> Option<usize> {
    receiver.try_recv().ok().map(|message| message.number)
}

#[track_caller]
fn assert_sound(runtime: &Runtime, group: &Group) {
    assert_eq!((group.live(), group.waiting_count()), (0, 0));
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

/// Senders are served in the order in which they came, however many and whatever their sizes. They
/// have one place in line.
#[test]
fn those_that_wait_are_served_in_their_order() {
    for sizes in [&[SIZE][..], &[SIZE, 300, 700, 100, 1000, 100]] {
        let (runtime, group, sender, mut receiver) = full(2);
        let size = |number: usize| sizes[number % sizes.len()];
        let mut sends: Vec<_> = (2..100)
            .map(|number| (number, waits(&sender, number, size(number))))
            .collect();
        assert_eq!(group.waiting_count(), 1);
        let mut received = Vec::new();
        let mut sent = vec![0, 1];
        while let Some(number) = receive(&mut receiver) {
            received.push(number);
            sent.extend(settle(&mut sends));
            assert!(group.waiting_count() <= 1 && group.usage() <= 2 * SIZE as u64);
        }
        assert_eq!((received, sent), ((0..100).collect(), (0..100).collect()));
        drop((sends, receiver));
        assert_sound(&runtime, &group);
    }
}

/// The bytes that a receiver gives back go to the first sender at once: usage does not move, and no
/// other send finds room.
#[test]
fn bytes_go_from_hand_to_hand() {
    let (runtime, group, sender, mut receiver) = full(2);
    let mut sends = all_wait(&sender, 2..5);
    for received in 0..3 {
        assert_eq!(receive(&mut receiver), Some(received));
        assert_eq!(group.live(), 2 * SIZE as u64);
        assert!(
            sender
                .try_send(Message {
                    number: 9,
                    bytes: SIZE
                })
                .is_err()
        );
        assert_eq!(settle(&mut sends), [received + 2]);
    }
    assert_eq!(group.waiting_count(), 0);
    drop((sends, receiver));
    assert_sound(&runtime, &group);
}

/// The channel's place in line is like that of any charge: earlier charges are served before it,
/// and then it has its turn.
#[test]
fn a_channel_takes_turns_with_other_charges() {
    let (runtime, group, sender, mut receiver) = full(2);
    let mut other = [(); 2].map(|()| spawn(group.charge_async(SIZE)));
    assert!(other[0].poll().is_pending());
    let mut sends = all_wait(&sender, 2..6);
    assert!(other[1].poll().is_pending());
    assert_eq!(group.waiting_count(), 3);
    receive(&mut receiver);
    assert!(
        sends.iter().all(|(_, sending)| !sending.is_woken()),
        "another one has come before"
    );
    assert!(other[0].is_woken() && !other[1].is_woken());
    receive(&mut receiver);
    assert_eq!(settle(&mut sends), [2]);
    let Poll::Ready(Ok(charge)) = other[0].poll() else {
        panic!("it was served")
    };
    drop(charge);
    assert!(other[1].is_woken(), "the channel has had its turn");
    let Poll::Ready(Ok(charge)) = other[1].poll() else {
        panic!("it was served")
    };
    drop(charge);
    assert_eq!(settle(&mut sends), [3]);
    assert_eq!(receive(&mut receiver), Some(2));
    assert_eq!(settle(&mut sends), [4], "alone in line again");
    drop((sends, receiver));
    assert_sound(&runtime, &group);
}

#[test]
fn two_channels_of_a_group_take_turns() {
    let (runtime, group) = queue(2 * SIZE);
    let mut channels = [(); 2].map(|()| channel::<Message>(&group));
    for (sender, _) in &channels {
        sender
            .try_send(Message {
                number: 0,
                bytes: SIZE,
            })
            .unwrap();
    }
    let senders = [channels[0].0.clone(), channels[1].0.clone()];
    let mut sends = [0, 1].map(|at| {
        (1..20)
            .map(|number| (number, waits(&senders[at], number, SIZE)))
            .collect::<Vec<_>>()
    });
    assert_eq!(group.waiting_count(), 2);
    let mut sent = [0, 0];
    for _ in 0..10 {
        for (_, receiver) in &mut channels {
            receive(receiver);
            for (sent, sends) in sent.iter_mut().zip(&mut sends) {
                *sent += settle(sends).len();
            }
            assert!(sent[0].abs_diff(sent[1]) <= 1, "{sent:?}");
        }
    }
    assert_eq!(sent, [10, 10]);
    drop((sends, channels));
    assert_sound(&runtime, &group);
}

/// A send may be dropped while it waits or after it was served. Each other send is served once, and
/// every byte is accounted for.
#[test]
fn a_send_that_is_dropped_anywhere_loses_nothing() {
    const WAITING: usize = 5;
    // Bytes reach a sender in three ways: from hand to hand, by the line, and by the line through a
    // sender that sees to it.
    for (way, sizes, at, received) in (0..3)
        .flat_map(|way| [&[SIZE][..], &[300, 1000, 100]].map(|sizes| (way, sizes)))
        .flat_map(|(way, sizes)| (0..WAITING).map(move |at| (way, sizes, at)))
        .flat_map(|(way, sizes, at)| (0..3).map(move |received| (way, sizes, at, received)))
    {
        let (runtime, group, sender, mut receiver) = full(2);
        let _registration = (way == 2)
            .then(|| group.register_reclaimer(Arc::new(Empty::default()), ReclaimPriority::NORMAL));
        let size = |number: usize| sizes[number % sizes.len()];
        let mut sends: Vec<_> = (0..WAITING)
            .map(|number| (number, waits(&sender, number, size(number))))
            .collect();
        let mut take = || match way {
            0 => drop(receiver.try_recv()),
            _ => drop(receiver.try_recv_charged()),
        };
        (0..received).for_each(|_| take());
        drop(sends.remove(at));
        let mut sent = settle(&mut sends);
        for _ in 0..2 * WAITING {
            take();
            sent.extend(settle(&mut sends));
        }
        let expected: Vec<_> = (0..WAITING).filter(|&number| number != at).collect();
        assert_eq!(
            sent, expected,
            "way {way}, {sizes:?}, {at} left after {received}"
        );
        drop((sends, receiver));
        assert_sound(&runtime, &group);
    }
}

/// A reclaimer with nothing to give, which counts how often it is asked.
#[derive(Default)]
struct Empty(AtomicU64);

impl Reclaim for Empty {
    fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        0
    }
}

/// Each sender that becomes the first in line has the reclaimers asked, as any charge does before
/// it waits.
#[test]
fn the_first_asks_the_reclaimers() {
    let (runtime, group) = queue(SIZE);
    let (sender, mut receiver) = channel::<Message>(&group);
    let empty = Arc::new(Empty::default());
    let _registration = group.register_reclaimer(empty.clone(), ReclaimPriority::NORMAL);
    sender
        .try_send(Message {
            number: 0,
            bytes: SIZE,
        })
        .unwrap();
    let mut sends = all_wait(&sender, 1..4);
    for number in 1..4 {
        // By a thread of the tree: no task runs them.
        let end = Instant::now() + Duration::from_secs(60);
        while empty.0.swap(0, Ordering::Relaxed) == 0 {
            assert!(Instant::now() < end, "{number}");
            std::thread::yield_now();
        }
        // What the reclaimer has said is true for 4 ms at most.
        std::thread::sleep(Duration::from_millis(10));
        drop(receiver.try_recv_charged());
        assert_eq!(settle(&mut sends), [number]);
    }
    drop((sends, receiver));
    assert_sound(&runtime, &group);
}

/// A large message has its turn while small ones come all the time.
#[test]
fn a_large_message_is_not_starved() {
    let (runtime, group, sender, mut receiver) = full(4);
    let mut large = waits(&sender, 99, 4 * SIZE);
    let mut sends = Vec::new();
    for number in 4.. {
        assert!(number < 20, "the large one is starved");
        let mut small: Sending = spawn(Box::pin(sender.send(Message {
            number,
            bytes: SIZE,
        })));
        if small.poll().is_pending() {
            sends.push((number, small));
        }
        settle(&mut sends);
        receive(&mut receiver);
        if large.is_woken() && large.poll().is_ready() {
            break;
        }
    }
    drop((sends, large, receiver));
    assert_sound(&runtime, &group);
}

/// A first sender that is not polled holds up no sender behind it.
#[test]
fn a_send_that_is_not_polled_holds_up_no_other() {
    for sizes in [[SIZE, SIZE, SIZE], [SIZE, 700, 300]] {
        let (runtime, group) = queue(SIZE);
        let (sender, mut receiver) = channel::<Message>(&group);
        let held = group.charge(SIZE).unwrap();
        let mut sends: Vec<_> = (0..3)
            .map(|number| (number, waits(&sender, number, sizes[number])))
            .collect();
        let unpolled = sends.remove(0);
        drop(held);
        assert!(unpolled.1.is_woken(), "it has its bytes");
        assert_eq!(settle(&mut sends), [], "they are its own");
        drop(unpolled);
        let mut sent = settle(&mut sends);
        while receive(&mut receiver).is_some() {
            sent.extend(settle(&mut sends));
        }
        assert_eq!(sent, [1, 2]);
        drop((sends, receiver));
        assert_sound(&runtime, &group);
    }
    let (runtime, group) = queue(2 * SIZE);
    let (sender, mut receiver) = channel::<Message>(&group);
    let held = group.charge(2 * SIZE).unwrap();
    let mut sends = all_wait(&sender, 0..5);
    let unpolled = sends.remove(0);
    drop(held);
    // The line has served the first sender. A new sender takes the bytes for that one, and a place
    // for the next.
    sends.push((5, waits(&sender, 5, SIZE)));
    let mut sent = settle(&mut sends);
    while receive(&mut receiver).is_some() {
        sent.extend(settle(&mut sends));
    }
    assert_eq!(sent, [1, 2, 3, 4, 5]);
    drop((sends, unpolled, receiver));
    assert_sound(&runtime, &group);
}

/// Drops a send when it is woken.
struct Drops(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// The waker of a sender that is served drops the next send: the senders behind are served.
#[test]
fn a_waker_may_drop_the_next_send() {
    let (runtime, group) = queue(4 * SIZE);
    let (sender, receiver) = channel::<Message>(&group);
    let held = group.charge(4 * SIZE).unwrap();
    let sending = |number, bytes| {
        let sender = sender.clone();
        Box::pin(async move { assert!(sender.send(Message { number, bytes }).await.is_ok()) })
    };
    let mut first = sending(0, SIZE);
    let mut next = sending(1, 300);
    let drops = Arc::new(Drops(Mutex::new(None)));
    let waker = Waker::from(Arc::clone(&drops));
    for _ in 0..3 {
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    for _ in 0..3 {
        assert!(
            next.as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    let mut sends: Vec<_> = [(2, 400), (3, 500)]
        .map(|(number, bytes)| (number, waits(&sender, number, bytes)))
        .into();
    *drops.0.lock().unwrap() = Some(next);
    drop(held);
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    );
    assert_eq!(settle(&mut sends), [2, 3]);
    assert_eq!(group.live(), SIZE as u64 + 900);
    drop((sends, first, receiver));
    assert_sound(&runtime, &group);
}

/// Panics when it is woken, once it is armed.
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        assert!(!self.0.load(Ordering::Relaxed), "a waker panics");
    }
}

/// The waker of the first one panics: its wait has ended all the same, and the others are served,
/// or end, as well.
#[test]
fn a_waker_that_panics_holds_up_no_other() {
    for closes in [false, true] {
        let (runtime, group, sender, mut receiver) = full(1);
        let panics = Arc::new(Panics(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&panics));
        let mut first = spawn(sender.send(Message {
            number: 1,
            bytes: 700,
        }));
        let mut poll_first =
            || first.enter(|_, first| first.poll(&mut Context::from_waker(&waker)));
        while group.waiting_count() == 0 {
            assert!(poll_first().is_pending());
        }
        let mut sends: Vec<_> = [(2, 200), (3, 900)]
            .map(|(number, bytes)| (number, waits(&sender, number, bytes)))
            .into();
        panics.0.store(true, Ordering::Relaxed);
        if closes {
            receiver.close();
        }
        assert_eq!(receive(&mut receiver), Some(0));
        let ended = [poll_first()]
            .map(|ended| matches!(ended, Poll::Ready(ended) if ended.is_err() == closes));
        assert_eq!(ended, [true]);
        if closes {
            let ended = |(_, sending): &mut (usize, Sending)| {
                matches!(sending.poll(), Poll::Ready(Err(SendError::Closed(_))))
            };
            assert!(sends.iter_mut().all(ended));
        } else {
            assert_eq!(settle(&mut sends), [2]);
            assert_eq!(
                (receive(&mut receiver), receive(&mut receiver)),
                (Some(1), Some(2))
            );
            assert_eq!(settle(&mut sends), [3]);
        }
        drop((sends, first, receiver));
        assert_sound(&runtime, &group);
    }
}

#[test]
fn closing_returns_every_message() {
    for goes in [false, true] {
        let (runtime, group, sender, mut receiver) = full(1);
        let mut sends = all_wait(&sender, 1..100);
        if goes {
            drop(receiver);
        } else {
            receiver.close();
            assert_eq!((receive(&mut receiver), group.live()), (Some(0), 0));
        }
        assert_eq!(group.waiting_count(), 0);
        for (number, sending) in &mut sends {
            let Poll::Ready(Err(SendError::Closed(message))) = sending.poll() else {
                panic!("{number}")
            };
            assert_eq!(message.number, *number);
        }
        let mut late = spawn(sender.send(Message {
            number: 100,
            bytes: SIZE,
        }));
        while late.is_woken() {
            let _ = late.poll();
        }
        assert!(matches!(
            late.poll(),
            Poll::Ready(Err(SendError::Closed(_)))
        ));
        drop((sends, late));
        assert_sound(&runtime, &group);
    }
}

/// A group that goes offline or is cancelled ends the wait of every sender, whichever one is
/// polled.
#[test]
fn the_end_of_a_group_ends_all_waits() {
    for cancels in [false, true] {
        let (runtime, group, sender, mut receiver) = full(1);
        let mut sends = all_wait(&sender, 1..100);
        if cancels {
            let root = runtime.root();
            root.set_oom_policy(OomPolicy::Choose);
            let _hook = group.on_cancel(|_| ());
            root.set_max(2 * SIZE).unwrap();
            let _ = root.charge(2 * SIZE);
        } else {
            group.offline().unwrap();
        }
        for (number, sending) in sends.iter_mut().rev() {
            let Poll::Ready(Err(refused)) = sending.poll() else {
                panic!("{number} waits")
            };
            assert!(
                matches!(refused.refusal(), Some(error) if error.is_offline() || error.is_cancelled()),
                "{refused:?}"
            );
            assert_eq!(refused.into_message().number, *number);
        }
        assert_eq!(receive(&mut receiver), Some(0));
        drop((sends, receiver));
        assert_sound(&runtime, &group);
    }
}

/// A max that falls ends each send that it can never admit, wherever the sender is in the queue, and
/// no other. So does one that falls above the channel's group, and one that was low before a sender
/// came.
#[test]
fn what_can_never_fit_any_more_is_refused_in_the_middle_of_the_queue() {
    for above in [false, true] {
        let (runtime, group, sender, mut receiver) = full(4);
        let sizes = [SIZE, 3 * SIZE, SIZE, 4 * SIZE, 2 * SIZE];
        let mut sends: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(number, &bytes)| (number, waits(&sender, number, bytes)))
            .collect();
        let lowered = if above { runtime.root() } else { group.clone() };
        _ = lowered.set_max(2 * SIZE);
        let mut refused = Vec::new();
        // Whoever is woken is polled, and the first one sees to the others.
        while let Some(at) = sends.iter().position(|(_, send)| send.is_woken()) {
            let number = sends[at].0;
            match sends[at].1.poll() {
                Poll::Pending => continue,
                Poll::Ready(Err(SendError::Refused(message, error))) => {
                    assert_eq!(message.number, number);
                    let refusal = error.over_limit().expect("a max is in the way");
                    assert_eq!(refusal.group(), &lowered);
                    assert_eq!(error.requested(), message.bytes as u64);
                    refused.push(number);
                }
                other => panic!("{number}: {other:?}"),
            }
            drop(sends.remove(at));
        }
        refused.sort_unstable();
        assert_eq!(refused, [1, 3], "above: {above}");
        // One that comes now is told at once, not when its turn has come.
        let late = Message {
            number: 9,
            bytes: 3 * SIZE,
        };
        let mut late: Sending = spawn(Box::pin(sender.send(late)));
        let ended = loop {
            match late.poll() {
                Poll::Pending => assert!(late.is_woken(), "it waits for what never comes"),
                Poll::Ready(ended) => break ended,
            }
        };
        assert!(matches!(ended, Err(SendError::Refused(message, _)) if message.number == 9));
        drop(late);
        // The others are served in their order.
        let mut served = Vec::new();
        while !sends.is_empty() {
            receive(&mut receiver).expect("a message");
            served.append(&mut settle(&mut sends));
        }
        assert_eq!(served, [0, 2, 4]);
        drop((sends, receiver));
        assert_sound(&runtime, &group);
    }
}

/// The same on threads, while senders come and a receiver takes: no send waits for a max that has
/// fallen below what it asks for.
#[test]
fn no_send_waits_for_a_max_that_falls_as_it_comes() {
    for round in 0..50 {
        let (runtime, group, sender, receiver) = full(4);
        std::thread::scope(|scope| {
            let large: Vec<_> = (0..3)
                .map(|number| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        sender.blocking_send(Message {
                            number,
                            bytes: 3 * SIZE,
                        })
                    })
                })
                .collect();
            for _ in 0..round % 10 {
                std::thread::yield_now();
            }
            // No message is received: only the max that falls ends the waits.
            _ = group.set_max(2 * SIZE);
            for ended in large.into_iter().map(|send| send.join().unwrap()) {
                assert!(matches!(ended, Err(SendError::Refused(..))));
            }
        });
        drop((sender, receiver));
        assert_sound(&runtime, &group);
    }
}

/// A lower max takes effect while senders wait: usage falls to it, and a message that can never fit
/// comes back.
#[test]
fn a_lowered_max_holds_while_senders_wait() {
    let (runtime, group, sender, mut receiver) = full(4);
    let mut large = waits(&sender, 4, 3 * SIZE);
    let mut sends = all_wait(&sender, 5..9);
    let _ = group.set_max(2 * SIZE);
    assert!(large.is_woken());
    let Poll::Ready(Err(refused)) = large.poll() else {
        panic!("it can never fit")
    };
    assert!(
        matches!(refused.refusal(), Some(error) if error.is_over_limit()),
        "{refused:?}"
    );
    for left in (2..4).rev() {
        receive(&mut receiver);
        assert_eq!(
            (settle(&mut sends), group.live()),
            (vec![], left * SIZE as u64)
        );
    }
    for number in 5..9 {
        receive(&mut receiver);
        assert_eq!(
            (settle(&mut sends), group.live()),
            (vec![number], 2 * SIZE as u64)
        );
    }
    drop((sends, large, receiver));
    assert_sound(&runtime, &group);
}

/// While bytes go from hand to hand, another charge still gets the room that is too small for a
/// message.
#[test]
fn a_neighbour_is_not_locked_out() {
    let (runtime, group) = queue(2 * SIZE + 500);
    let (sender, mut receiver) = channel::<Message>(&group);
    let neighbour = group.create("neighbour", Limits::new()).unwrap();
    for number in 0..2 {
        sender
            .try_send(Message {
                number,
                bytes: SIZE,
            })
            .unwrap();
    }
    let mut sends = all_wait(&sender, 2..50);
    for round in 0..40 {
        let charge = neighbour.charge(400);
        assert!(charge.is_ok(), "round {round}");
        receive(&mut receiver);
        assert_eq!(settle(&mut sends).len(), 1);
        drop(charge);
    }
    drop((sends, receiver));
    assert_sound(&runtime, &group);
}

/// Room that another charge gives back reaches the first sender, also while messages are in the
/// channel.
#[tokio::test]
async fn room_from_elsewhere_reaches_the_first() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let tenant = runtime
        .root()
        .create("tenant", Limits::new().max(3 * SIZE))
        .unwrap();
    let group = tenant.create("queue", Limits::new()).unwrap();
    let (sender, receiver) = channel::<Message>(&group);
    let held = tenant.charge(2 * SIZE).unwrap();
    sender
        .try_send(Message {
            number: 0,
            bytes: SIZE,
        })
        .unwrap();
    let tasks: Vec<_> = (1..3)
        .map(|number| {
            let sender = sender.clone();
            tokio::spawn(async move {
                sender
                    .send(Message {
                        number,
                        bytes: SIZE,
                    })
                    .await
                    .is_ok()
            })
        })
        .collect();
    while tenant.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    drop(held);
    for task in tasks {
        assert!(
            timeout(Duration::from_secs(60), task)
                .await
                .unwrap()
                .unwrap()
        );
    }
    assert_eq!((receiver.len(), tenant.live()), (3, 3 * SIZE as u64));
    drop(receiver);
    assert_sound(&runtime, &tenant);
}

/// The time of a sender in the middle ends, and that of the first. The refusal is counted and tells
/// the time waited; the others go on.
#[tokio::test(start_paused = true)]
async fn time_is_over_for_each_by_itself() {
    let (runtime, group, sender, mut receiver) = full(1);
    let times = [Some(20), Some(10), None, Some(30), None];
    let tasks: Vec<_> = (1..)
        .zip(times)
        .map(|(number, time)| {
            let sender = sender.clone();
            let message = Message {
                number,
                bytes: SIZE,
            };
            tokio::spawn(async move {
                match time {
                    Some(time) => {
                        sender
                            .send_timeout(message, Duration::from_secs(time))
                            .await
                    }
                    None => sender.send(message).await,
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(
        (
            group.waiting_count(),
            group.events().get(memcg::Event::TimedOut)
        ),
        (1, 3)
    );
    for expected in [0, 3, 5] {
        assert_eq!(
            receiver.recv().await.map(|message| message.number),
            Some(expected)
        );
    }
    for (task, time) in tasks.into_iter().zip(times) {
        let ended = task.await.unwrap();
        assert_eq!(ended.is_err(), time.is_some());
        assert!(
            ended
                .err()
                .is_none_or(|late| matches!(late.refusal(), Some(error) if error.is_timeout()))
        );
    }
    drop(receiver);
    assert_sound(&runtime, &group);
}

/// Above a high no bytes go from hand to hand: each send is charged, and delayed, by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_above_high_are_delayed() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let limits = Limits::new().max(4 * SIZE).high(SIZE);
    let group = runtime.root().create("queue", limits).unwrap();
    let (sender, mut receiver) = channel::<Message>(&group);
    for number in 0..4 {
        sender
            .try_send(Message {
                number,
                bytes: SIZE,
            })
            .unwrap();
    }
    let tasks: Vec<_> = (4..12)
        .map(|number| {
            let sender = sender.clone();
            tokio::spawn(async move {
                sender
                    .send(Message {
                        number,
                        bytes: SIZE,
                    })
                    .await
                    .is_ok()
            })
        })
        .collect();
    drop(sender);
    let mut received = 0;
    while let Some(message) = timeout(Duration::from_secs(60), receiver.recv())
        .await
        .unwrap()
    {
        received += usize::from(message.bytes == SIZE);
    }
    for task in tasks {
        assert!(task.await.unwrap());
    }
    assert_eq!(received, 12);
    drop(receiver);
    assert_sound(&runtime, &group);
}

/// Senders of two channels, and charges beside them, on several threads: all are served.
#[test]
fn many_senders_and_neighbours_all_get_through() {
    const SENDERS: usize = 64;
    const EACH: usize = 30;
    let (runtime, group) = queue(6 * SIZE);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let through = async {
        let mut receives = Vec::new();
        for seed in 0..2 {
            let (sender, mut receiver) = channel::<Message>(&group);
            for number in 0..SENDERS {
                let sender = sender.clone();
                tokio::spawn(async move {
                    for turn in 0..EACH {
                        let bytes = 100 + (number * 37 + turn * 101 + seed) % (2 * SIZE);
                        let message = Message { number, bytes };
                        match turn % 5 {
                            0 => drop(
                                sender
                                    .send_timeout(message, Duration::from_micros(200))
                                    .await,
                            ),
                            1 => drop(
                                timeout(Duration::from_micros(100), sender.send(message)).await,
                            ),
                            _ => assert!(sender.send(message).await.is_ok()),
                        }
                    }
                });
            }
            receives.push(tokio::spawn(async move {
                let mut received = 0;
                loop {
                    let message = match received % 3 {
                        0 => receiver
                            .recv_charged()
                            .await
                            .map(|message| Charged::into_parts(message).0),
                        _ => receiver.recv().await,
                    };
                    if message.is_none() {
                        return received;
                    }
                    received += 1;
                }
            }));
        }
        let beside = tokio::spawn({
            let group = group.clone();
            async move {
                for turn in 0..200 {
                    drop(
                        group
                            .charge_async(Bytes(1 + turn * 13 % (3 * SIZE as u64)))
                            .await
                            .unwrap(),
                    );
                    tokio::task::yield_now().await;
                }
            }
        });
        beside.await.unwrap();
        for receive in receives {
            assert!(receive.await.unwrap() >= SENDERS * EACH * 3 / 5);
        }
    };
    let ended = tokio.block_on(async { timeout(Duration::from_secs(120), through).await });
    assert!(
        ended.is_ok(),
        "{} bytes, {} in line",
        group.live(),
        group.waiting_count()
    );
    drop(tokio);
    assert_sound(&runtime, &group);
}
