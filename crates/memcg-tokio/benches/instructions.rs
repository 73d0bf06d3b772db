//! Holds a message's way through the channel by its number of instructions, which a noisy machine
//! does not change. `cargo bench -p memcg-tokio-benches --bench instructions`
//!
//! One thread sends and receives in turn, without a runtime, and there is room for each message. So
//! no wait and no wake is counted.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use memcg::{Limits, Runtime, Weigh};
use memcg_bench_rows::Bench;
use memcg_bench_rows::instructions::{CountedPath, count_paths, counted};
use memcg_tokio::channel;

const BENCH: Bench = Bench {
    name: "instructions",
    about: "Counts the instructions of a message through the channel under valgrind, and fails above a ceiling.",
};

/// A message that is sent and received: 315 on x86-64 with rustc 1.95, and a tenth more for other
/// compilers. Through tokio's bounded channel it takes 338.
const MESSAGE_INSTRUCTIONS_MAX: f64 = 347.0;

/// Messages that fit at a time.
const ROOM: usize = 128;
const WEIGHT: usize = 1024;

struct Packet(u64);

impl Weigh for Packet {
    fn heap_bytes(&self) -> usize {
        WEIGHT
    }
}

/// Runs the future to its end. Nothing here waits.
fn finish<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("each message fits"),
    }
}

fn messages(rounds: u64) {
    let runtime = Runtime::builder().build().expect("memory for a runtime");
    let group = runtime
        .root()
        .create("channel", Limits::new().max(4 * ROOM * WEIGHT))
        .expect("a group");
    let (sender, mut receiver) = channel(&group);
    let mut pass = |times: u64| {
        for _ in 0..times {
            let sent = finish(sender.send(Packet(black_box(1))));
            assert!(sent.is_ok(), "the receiver is there");
            black_box(finish(receiver.recv()).map_or(0, |Packet(value)| value));
        }
    };
    pass(1_000);
    counted(|| pass(rounds));
}

const PATHS: &[CountedPath<()>] = &[CountedPath::new(
    "messages",
    "a message that is sent and received",
    MESSAGE_INSTRUCTIONS_MAX,
    |(), rounds| messages(rounds),
)];

fn main() -> ExitCode {
    count_paths(&BENCH, PATHS, || ((), "Channel".to_owned()))
}
