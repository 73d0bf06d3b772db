//! Whole runtimes under shuttle: four to eight threads, random schedules, sequentially consistent. They are too large
//! for loom. Each scenario ends with the master identity: usage is what is held and the credit in slots.
//!
//! ```text
//! .ci/shuttle                      every scenario
//! .ci/shuttle WORD...              those whose names contain the words
//! SHUTTLE_RUNS=20 .ci/shuttle      twenty times as many schedules; SHUTTLE_SEED=N: others
//! SHUTTLE_REPLAY=FILE .ci/shuttle NAME     one schedule, as a failure has printed it
//! ```

mod common;
mod shuttle_bursts;
mod shuttle_groups;
mod shuttle_kmem;
mod shuttle_limits;
mod shuttle_reclaim;
mod shuttle_stat;
mod shuttle_storm;
mod shuttle_waiting;

use shuttle::scheduler::{PctScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use shuttle_bursts::Bursts;

use crate::{Group, Runtime};

/// As unoptimised code needs it.
const STACK: usize = 1 << 19;

/// A run that takes so many steps spins for ever.
const STEPS: usize = 300_000;

/// Points where a run with priorities preempts.
const DEPTH: usize = 4;

/// The same in each run, so that what passes once passes again; `SHUTTLE_SEED` sets another one.
const SEED: u64 = 7;

/// Runs so many random schedules of `scenario`, and as many with priorities.
fn check(schedules: usize, scenario: fn()) {
    if let Ok(file) = std::env::var("SHUTTLE_REPLAY") {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        return run(ReplayScheduler::new_from_encoded(text.trim()), scenario);
    }
    let number = |name, default| std::env::var(name).map_or(default, |set| set.parse().expect("a number"));
    let (seed, schedules) = (number("SHUTTLE_SEED", SEED), schedules * number("SHUTTLE_RUNS", 1) as usize);
    run(Bursts::new(seed, schedules), scenario);
    run(PctScheduler::new_from_seed(seed, DEPTH, schedules), scenario);
    println!("{} schedules", 2 * schedules);
}

fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(scenario);
}

/// Runs each piece of work on a thread of its own and waits for all. What they return is in the order of the work.
fn side_by_side<T: Send + 'static>(work: impl IntoIterator<Item = Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = work.into_iter().map(shuttle::thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// No charge is in flight: what is held and the credit in slots is the usage, at each group, and a drain leaves no
/// credit.
#[track_caller]
fn assert_adds_up(runtime: &Runtime, held: &[(&Group, u64)]) {
    let live: u64 = held.iter().map(|(_, bytes)| bytes).sum();
    let root = runtime.root();
    assert_eq!(root.usage(), live + root.stocked(), "usage is what is held and credit");
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    root.drain();
    runtime.settle();
    assert_eq!(root.usage(), live, "a drain leaves no credit behind");
    for (group, bytes) in held {
        assert_eq!(group.usage(), *bytes, "{}", group.name());
    }
}
