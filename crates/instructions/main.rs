//! Holds the paths of adapters by their number of instructions, which a noisy machine does not
//! change. `cargo bench -p memcg-instructions`
//!
//! One thread polls each future to its end: there is no runtime and no socket.

mod messages;
mod requests;

use std::future::Future;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use memcg_bench_rows::Bench;
use memcg_bench_rows::instructions::{CountedPath, count_paths};

const BENCH: Bench = Bench {
    name: "instructions",
    about: "Counts the instructions of messages and requests under valgrind, and fails above a ceiling.",
};

/// Runs the future to its end. Nothing here waits.
fn finish<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("each message and each request fits"),
    }
}

fn main() -> ExitCode {
    let paths: Vec<CountedPath<()>> = messages::paths()
        .into_iter()
        .chain(requests::paths())
        .collect();
    count_paths(&BENCH, &paths, || ((), "one thread".to_owned()))
}
