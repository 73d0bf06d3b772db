//! Whole runtimes under shuttle: four to eight threads, random schedules, sequentially consistent.
//! They are too large for loom. Each scenario ends with the master identity: usage is what is held
//! and the credit in slots.
//!
//! ```text
//! .ci/shuttle                      every scenario
//! .ci/shuttle WORD...              those whose names contain the words
//! SHUTTLE_RUNS=20 .ci/shuttle      twenty times as many schedules; SHUTTLE_SEED=N: others
//! SHUTTLE_REPLAY=FILE .ci/shuttle NAME     one schedule, as a failure has printed it
//! ```

mod common;
#[path = "schedules/shuttle.rs"]
mod schedules;
mod shuttle_groups;
mod shuttle_idle;
mod shuttle_kmem;
mod shuttle_limits;
mod shuttle_reclaim;
mod shuttle_stat;
mod shuttle_storm;
mod shuttle_waiting;

use self::schedules::{Threads, check};
use crate::{Bytes, Group, Limit, Limits, Runtime};

/// A runtime with that max and that batch. A batch of more than 0 has the max as its budget.
fn runtime(max: u64, batch: u64) -> Runtime {
    let builder = Runtime::builder()
        .batch(Bytes(batch))
        .adaptive(false)
        .max(Limit::Bytes(max));
    if batch > 0 {
        builder.budget(Bytes(max))
    } else {
        builder
    }
    .build()
    .unwrap()
}

fn below(parent: &Group, name: &str, max: u64) -> Group {
    parent
        .create(name, Limits::new().max(Limit::Bytes(max)))
        .unwrap()
}

/// As many groups as there are names have an object each.
#[track_caller]
fn assert_released_once(runtime: &Runtime, names: &[&str]) {
    let next: Vec<Group> = names
        .iter()
        .map(|name| common::group(&runtime.root(), name))
        .collect();
    assert!(
        (1..next.len()).all(|at| !next[..at].contains(&next[at])),
        "an object released twice is two groups'"
    );
}

/// No charge is in flight: what is held and the credit in slots is the usage, at each group, and a
/// drain leaves no credit.
#[track_caller]
fn assert_adds_up(runtime: &Runtime, held: &[(&Group, u64)]) {
    let live: u64 = held.iter().map(|(_, bytes)| bytes).sum();
    let root = runtime.root();
    assert_eq!(
        root.usage(),
        live + root.memory().stocked(),
        "usage is what is held and credit"
    );
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    root.memory().drain();
    runtime.settle();
    assert_eq!(root.usage(), live, "a drain leaves no credit behind");
    for (group, bytes) in held {
        assert_eq!(group.usage(), *bytes, "{}", group.name());
    }
}
