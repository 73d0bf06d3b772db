//! The channel beside tokio's bounded channel, and beside what programs write today: a semaphore in
//! KiB with an unbounded channel. Each message says that it weighs 1 KiB and allocates nothing, so
//! that the channels alone are measured.
//!
//! ```text
//! cargo bench -p memcg-tokio-benches --bench channel    the table, about a minute
//! cargo bench -p memcg-tokio-benches --bench channel -- --rounds 5 "1 senders"    only rows whose names begin so
//! ```
//!
//! The runtime has the drivers of sockets and time, as a service's has: a worker that polls them
//! pays for it. The rows of one shape run in turns, round by round. A figure is the median of the
//! ratios to tokio's channel in the same round; the brackets have the first and the third quartile.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use memcg::{Group, Limits, Runtime, Weigh};
use memcg_tokio::{channel, message_overhead};
use tokio::sync::{Semaphore, mpsc};

const ROUNDS: usize = 15;
const MESSAGES: usize = 200_000;
const WEIGHT: usize = 1024;

/// Senders, and how many messages fit at a time.
const SHAPES: [(usize, usize); 12] = [
    (1, 16),
    (1, 128),
    (1, 4096),
    (4, 16),
    (4, 128),
    (4, 4096),
    (100, 16),
    (100, 128),
    (1000, 16),
    (1000, 128),
    (5000, 16),
    (5000, 128),
];

struct Packet(u64);

impl Weigh for Packet {
    fn heap_bytes(&self) -> usize {
        WEIGHT
    }
}

/// Passes the messages through a channel whose calls are those of tokio's.
macro_rules! pass_by {
    ($senders:expr, $sender:ident, $receiver:ident) => {{
        let receive = async move {
            let mut sum = 0;
            while let Some(Packet(value)) = $receiver.recv().await {
                sum += value;
            }
            sum
        };
        let send = move |count| {
            let sender = $sender.clone();
            async move {
                for _ in 0..count {
                    sender.send(Packet(1)).await.expect("the receiver is there");
                }
            }
        };
        pass($senders, send, receive).await
    }};
}

async fn tokio_channel(senders: usize, fit: usize) -> u64 {
    let (sender, mut receiver) = mpsc::channel::<Packet>(fit);
    pass_by!(senders, sender, receiver)
}

/// The code that programs have today.
async fn semaphore(senders: usize, fit: usize) -> u64 {
    let room = Arc::new(Semaphore::new(fit * WEIGHT / 1024));
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let receive = async move {
        let mut sum = 0;
        while let Some((Packet(value), permit)) = receiver.recv().await {
            drop(permit);
            sum += value;
        }
        sum
    };
    let send = move |count| {
        let sender = sender.clone();
        let room = Arc::clone(&room);
        async move {
            for _ in 0..count {
                let packet = Packet(1);
                let kib =
                    u32::try_from(packet.heap_bytes().div_ceil(1024)).expect("a small packet");
                let permit = Arc::clone(&room)
                    .acquire_many_owned(kib)
                    .await
                    .expect("it is never closed");
                sender
                    .send((packet, permit))
                    .expect("the receiver is there");
            }
        }
    };
    pass(senders, send, receive).await
}

async fn ours(senders: usize, group: &Group) -> u64 {
    let (sender, mut receiver) = channel::<Packet>(group);
    pass_by!(senders, sender, receiver)
}

/// Spawns the receiver and so many senders, and waits for the sum of all messages.
async fn pass<S, R, F>(senders: usize, send: F, receive: R) -> u64
where
    F: Fn(usize) -> S,
    S: Future<Output = ()> + Send + 'static,
    R: Future<Output = u64> + Send + 'static,
{
    let sends: Vec<S> = (0..senders).map(|_| send(MESSAGES / senders)).collect();
    // The last sender ends the channel.
    drop(send);
    let receiver = tokio::spawn(receive);
    for send in sends {
        tokio::spawn(send);
    }
    receiver.await.expect("the receiver ends")
}

/// Seconds that it takes, once it has passed all messages.
fn timed(tokio: &tokio::runtime::Runtime, run: impl Future<Output = u64>) -> f64 {
    let begun = Instant::now();
    let sum = tokio.block_on(run);
    assert_eq!(sum, MESSAGES as u64, "no message is lost");
    begun.elapsed().as_secs_f64()
}

fn quartiles(mut ratios: Vec<f64>) -> [f64; 3] {
    ratios.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| ratios[(ratios.len() * quarter / 4).min(ratios.len() - 1)])
}

fn main() {
    let mut rounds = ROUNDS;
    let mut filter = String::new();
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        if argument == "--rounds" {
            let count = arguments
                .next()
                .and_then(|count| count.parse().ok())
                .filter(|&count| count > 0);
            let Some(count) = count else {
                eprintln!("--rounds takes a number from 1 on");
                std::process::exit(2);
            };
            rounds = count;
        } else {
            filter = argument;
        }
    }
    let name = |(senders, fit): (usize, usize)| format!("{senders} senders, {fit} messages fit");
    let shapes: Vec<(usize, usize)> = SHAPES
        .into_iter()
        .filter(|&shape| name(shape).starts_with(&filter))
        .collect();
    if shapes.is_empty() {
        eprintln!(
            "no row begins with {filter:?}; there are: {}",
            SHAPES.map(name).join("; ")
        );
        std::process::exit(2);
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio starts");
    println!("times of tokio's bounded channel, {rounds} rounds of {MESSAGES} messages, 2 workers");
    println!(
        "{:<30} {:>24} {:>24}",
        "", "memcg-tokio", "Semaphore + unbounded"
    );
    for shape in shapes {
        let (senders, fit) = shape;
        let budget = Runtime::builder().build().expect("memory for a runtime");
        let limits = Limits::new().max(fit * (WEIGHT + message_overhead::<Packet>()));
        let group = budget.root().create("queue", limits).expect("a group");
        let mut own = Vec::new();
        let mut peer = Vec::new();
        for _ in 0..rounds {
            let base = timed(&tokio, tokio_channel(senders, fit));
            own.push(timed(&tokio, ours(senders, &group)) / base);
            peer.push(timed(&tokio, semaphore(senders, fit)) / base);
        }
        assert_eq!(group.live(), 0, "all bytes are given back");
        let [own, peer] = [own, peer].map(|ratios| {
            let [low, median, high] = quartiles(ratios);
            format!("{median:.2} [{low:.2}, {high:.2}]")
        });
        println!("{:<30} {own:>24} {peer:>24}", name(shape));
    }
}
