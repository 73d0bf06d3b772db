//! Senders on several threads that use all ways to send, against a receiver that closes or goes in
//! the middle. Each message knows its fate when it is dropped: what was sent was received or was
//! left in the channel.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Charged, Group, Limits, Runtime, Weigh};
use memcg_tokio::{Receiver, SendError, Sender, channel, message_overhead};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

const ROUNDS: u64 = 200;
const SENDERS: u64 = 8;
/// Of each sender, unless the channel closes before.
const MESSAGES: usize = 40;
const HEAVIEST: usize = 1000;
/// A few messages fit.
const MAX: usize = 4 * HEAVIEST;
/// Nothing takes as long. Where it does, something waits for ever.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    left: AtomicU64,
    /// Of those that were not sent: the channel was closed, there was no room, the send was
    /// dropped.
    closed: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    /// Dropped by the channel while its receiver was there.
    lost: AtomicU64,
    made: AtomicU64,
    /// The receiver is about to go.
    ends: AtomicBool,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whose is the message when it is dropped.
struct Message {
    weight: usize,
    counts: Arc<Counts>,
    has_fate: bool,
    /// Set before a send is dropped that is not done.
    gives_up: Arc<AtomicBool>,
}

impl Message {
    fn new(weight: usize, counts: &Arc<Counts>) -> Message {
        count(&counts.made);
        Message {
            weight,
            counts: Arc::clone(counts),
            has_fate: false,
            gives_up: Arc::default(),
        }
    }

    fn meets(mut self, fate: impl FnOnce(&Counts) -> &AtomicU64) {
        self.has_fate = true;
        count(fate(&self.counts));
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let counts = &self.counts;
        match (
            self.has_fate,
            self.gives_up.load(Ordering::Relaxed),
            counts.ends.load(Ordering::Relaxed),
        ) {
            (true, ..) => {}
            (_, true, _) => count(&counts.dropped),
            (.., true) => count(&counts.left),
            _ => count(&counts.lost),
        }
    }
}

impl Weigh for Message {
    fn heap_bytes(&self) -> usize {
        self.weight
    }
}

/// Sends a message in one of all ways. Returns whether the channel is open.
async fn send(sender: &Sender<Message>, way: u32, time: Duration, message: Message) -> bool {
    let counts = Arc::clone(&message.counts);
    let sent = match way {
        0 => sender.try_send(message),
        1 => sender.send(message).await,
        2 => sender.send_timeout(message, time).await,
        3 => {
            let gives_up = Arc::clone(&message.gives_up);
            let mut send = pin!(sender.send(message));
            match timeout(time, &mut send).await {
                Ok(sent) => sent,
                Err(_) => {
                    gives_up.store(true, Ordering::Relaxed);
                    return true;
                }
            }
        }
        _ => {
            let reserve = sender.reserve(message.weight + message_overhead::<Message>());
            let reserved = if way == 4 {
                timeout(time, reserve).await
            } else {
                Ok(reserve.await)
            };
            match reserved {
                Ok(Ok(charge)) => sender.send_charged(Charged::new(message, charge)),
                Ok(Err(SendError::Closed(()))) => Err(SendError::Closed(message)),
                Ok(Err(refused)) => panic!("{refused}"),
                Err(_) => {
                    message.meets(|counts| &counts.dropped);
                    return true;
                }
            }
        }
    };
    match sent {
        Ok(()) => count(&counts.sent),
        Err(SendError::Closed(message)) => {
            message.meets(|counts| &counts.closed);
            return false;
        }
        Err(refused) => refused.into_message().meets(|counts| &counts.refused),
    }
    true
}

/// Receives in one of all ways, for a number of messages at most. Returns `None` where none will
/// come.
async fn receive(receiver: &mut Receiver<Message>, way: u32, most: usize) -> Option<usize> {
    let message = match way {
        0 => receiver.recv().await?,
        1 => Charged::into_parts(receiver.recv_charged().await?).0,
        2 => match receiver.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {
                yield_now().await;
                return Some(0);
            }
        },
        _ => {
            let mut messages = Vec::new();
            let received = receiver.recv_many(&mut messages, most).await;
            assert_eq!(messages.len(), received);
            messages
                .into_iter()
                .for_each(|message| message.meets(|counts| &counts.received));
            return (received > 0).then_some(received);
        }
    };
    message.meets(|counts| &counts.received);
    Some(1)
}

/// One channel from its beginning to its end. Returns whether its receiver has closed it, and not
/// gone.
async fn round(group: &Group, seed: u64, counts: &Arc<Counts>) -> bool {
    let mut random = StdRng::seed_from_u64(seed);
    let (sender, mut receiver) = channel::<Message>(group);
    let mut senders = JoinSet::new();
    for number in 0..SENDERS {
        let sender = sender.clone();
        let counts = Arc::clone(counts);
        let mut random = StdRng::seed_from_u64(seed * SENDERS + number);
        senders.spawn(async move {
            for _ in 0..MESSAGES {
                let message = Message::new(random.random_range(0..=HEAVIEST), &counts);
                let time = Duration::from_micros(random.random_range(0..300));
                if !send(&sender, random.random_range(0..6), time, message).await {
                    assert!(sender.is_closed());
                    return;
                }
            }
        });
    }
    drop(sender);
    // Of at most 320 messages, so that some rounds end by themselves.
    let closes = random.random_bool(0.5);
    let mut left = random.random_range(0..250);
    while left > 0 {
        if random.random_range(0..64) == 0 {
            sleep(Duration::from_millis(1)).await; // so that sends give up
        }
        match receive(&mut receiver, random.random_range(0..4), left).await {
            Some(received) => left -= received,
            None => break,
        }
    }
    if closes {
        receiver.close();
        assert!(receiver.is_closed());
        while receive(&mut receiver, random.random_range(0..4), 10)
            .await
            .is_some()
        {}
    }
    counts.ends.store(true, Ordering::Relaxed);
    drop(receiver);
    while let Some(ended) = senders.join_next().await {
        ended.unwrap();
    }
    closes
}

#[test]
fn what_was_sent_is_received_or_left() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(MAX))
        .unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let mut sums = [0; 5];
    for seed in 0..ROUNDS {
        let counts = Arc::default();
        let ended = tokio.block_on(async { timeout(DEADLINE, round(&group, seed, &counts)).await });
        let closes = ended.unwrap_or_else(|_| {
            panic!(
                "round {seed} hangs: {} bytes, {} in line",
                group.live(),
                group.waiting_count()
            );
        });
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts {
            sent,
            received,
            left,
            closed,
            refused,
            dropped,
            lost,
            made,
            ..
        } = &*counts;
        assert_eq!(of(sent), of(received) + of(left), "round {seed}");
        assert_eq!(
            (of(lost), of(left) * u64::from(closes)),
            (0, 0),
            "round {seed}: a receiver that closes gets all"
        );
        assert_eq!(
            of(made),
            of(sent) + of(closed) + of(refused) + of(dropped),
            "round {seed}: each is dropped once"
        );
        assert_eq!(
            (group.live(), group.waiting_count()),
            (0, 0),
            "round {seed}"
        );
        for (sum, counter) in sums
            .iter_mut()
            .zip([received, left, closed, refused, dropped])
        {
            *sum += of(counter);
        }
    }
    println!("received, left, closed, refused, dropped: {sums:?}");
    assert!(
        sums.iter().all(|&sum| sum > ROUNDS / 10),
        "the rounds reach each end: {sums:?}"
    );
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}
