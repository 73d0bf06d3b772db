//! Statistics as a program that embeds them meets them: which readers find what is added, and how
//! far a read may be off.
//!
//! * `items`: what can be counted; `foreign`: items of another builder;
//! * `readers`: the write path and the four readers;
//! * `extremes`: the largest numbers;
//! * `offline`, `outlive`: groups that went offline, and what outlives them and their runtime;
//! * `threads`: threads that end, and threads past their destructor;
//! * `flusher`: the periodic flush, and the rate-limited one;
//! * `charges`: what the charge code counts by itself;
//! * `bounds`: how far a read may be off, reached and attacked;
//! * `stopped`: writers that stopped, and which flush forgets them;
//! * `visits`: what a flush looks at, and when a barrier runs; `table`: the columns of the tree.

mod bounds;
mod charges;
mod extremes;
mod flusher;
mod foreign;
mod items;
mod offline;
mod outlive;
mod readers;
mod stopped;
mod table;
mod threads;
mod visits;

use std::time::{Duration, Instant};

use memcg::barrier::BarrierMode;
use memcg::{Bytes, Freshness, Group, Runtime, RuntimeBuilder, StatKey};

pub(crate) use crate::support::trees::{build, charge, create};
pub(crate) use crate::support::workers::Other;

/// Every kind of runtime that treats statistics in its own way.
pub(crate) fn kinds() -> [RuntimeBuilder; 7] {
    let plain = Runtime::builder;
    [
        plain(),
        plain().audit(true).stat_batch(64),
        plain().barrier(BarrierMode::Fence).stat_batch(64),
        plain()
            .audit(true)
            .barrier(BarrierMode::Fence)
            .stat_batch(8),
        plain().stat_batch(0),
        plain().stat_batch(1).batch(Bytes(0)),
        plain().stat_batch(1_000_000),
    ]
}

/// Subtree and own figure of an item, exactly.
#[track_caller]
pub(crate) fn assert_exact(group: &Group, stat: StatKey, subtree: i64, local: i64) {
    let now = group.read(Freshness::Exact);
    assert_eq!(
        (now.get(stat), now.local(stat)),
        (subtree, local),
        "{stat:?} of {}",
        group.path()
    );
    assert_eq!(
        (now.max_error(), now.max_error_of(stat)),
        (0, 0),
        "{stat:?} of {}",
        group.path()
    );
}

/// A figure's distance from the truth is within the read's error.
#[track_caller]
pub(crate) fn assert_honest(stats: &memcg::figures::Stats, stat: StatKey, truth: i64) {
    let found = stats.get(stat);
    let bound = stats.max_error_of(stat);
    assert!(
        truth.abs_diff(found) <= bound,
        "{stat:?}: {truth} was read as {found} with an error of at most {bound}"
    );
}

/// No thread writes, and the periodic flush takes every thread off the lists.
#[track_caller]
pub(crate) fn let_idle(runtime: &Runtime) {
    runtime
        .start_flusher(Duration::from_micros(50))
        .expect("a period");
    eventually("a flush with nothing to visit", || {
        let before = runtime.counts().flush_visits;
        runtime.root().inspect().flush();
        runtime.counts().flush_visits == before
    });
    runtime.stop_flusher();
}

/// Waits until `done`, far longer than it can take; a test that needs this asserts no time.
#[track_caller]
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(120);
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Other {
    /// Adds there.
    pub(crate) fn add(&self, group: &Group, stat: StatKey, delta: i64) {
        let group = group.clone();
        self.run(move || group.stat_add(stat, delta));
    }

    /// Adds one unit so many times there.
    pub(crate) fn add_units(&self, group: &Group, stat: StatKey, units: u64) {
        let group = group.clone();
        self.run(move || (0..units).for_each(|_| group.stat_add(stat, 1)));
    }
}
