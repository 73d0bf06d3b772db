//! The order of the rows, and what they share.

#![cfg(not(loom))]

mod add;
mod flush;
mod goals;
mod read;

use std::time::Duration;

use memcg::figures::TreeCounts;
use memcg_bench_rows::Bench;

use crate::common::rows::{self, Rows};
use crate::common::statistics::folly::Folly;
use crate::common::statistics::rstat::{Policy, Rstat};
use crate::common::statistics::shape::Shape;
use crate::common::statistics::shared_map::SharedMap;
use crate::common::statistics::{Item, Statistics};

/// The item that the rows count: events, so that one is a grain.
const ITEM: Item = Item::Refault;

/// Adds before the clock starts.
const TOUCHES: u64 = 1_000;

const BENCH: Bench = Bench {
    name: "stat",
    about: "Statistics, timed: additions, reads and flushes, beside the old ways.\n\
            One iteration is one addition, one read or one flush.",
};

pub(crate) fn main() {
    let measured = rows::run(&BENCH, |rows| {
        add::rows(rows);
        read::rows(rows);
        flush::rows(rows);
        old_ways(rows);
    });
    goals::print(&measured);
}

/// Each under the name that its rows go by.
fn old_ways(rows: &mut Rows) {
    old_way(rows, "unified_skip", |shape| {
        Rstat::new(Policy::UnifiedSkip, shape)
    });
    old_way(rows, "unified_wait", |shape| {
        Rstat::new(Policy::UnifiedWait, shape)
    });
    old_way(rows, "global_threshold", |shape| {
        Rstat::new(Policy::GlobalThreshold, shape)
    });
    old_way(rows, "subtree", |shape| Rstat::new(Policy::Subtree, shape));
    old_way(rows, "shared_map", SharedMap::new);
    old_way(rows, "folly", Folly::new);
}

fn old_way<S: Statistics + 'static>(rows: &mut Rows, name: &str, make: impl Fn(Shape) -> S) {
    add::old_way(rows, name, &make);
    read::old_way(rows, name, &make);
}

/// The events while a row ran, its warm-up included.
fn print_counts(id: &str, before: &TreeCounts, after: &TreeCounts, time: Duration) {
    let flushes = after.flushes - before.flushes;
    println!(
        "{id}: {:.1} barriers a second, {flushes} flushes, {:.2} pairs (thread, group) visited by each\n",
        (after.barriers - before.barriers) as f64 / time.as_secs_f64(),
        (after.flush_visits - before.flush_visits) as f64 / flushes.max(1) as f64,
    );
}
