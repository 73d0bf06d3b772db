//! Reads of a group's statistics, and lives of groups.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use memcg_bench_rows::instructions::counted;

#[inline(never)]
pub(super) fn stale_reads(group: &Group, reads: u64) {
    for _ in 0..reads {
        let stat = black_box(StatKey::WORKINGSET_REFAULT);
        black_box(group.read(Freshness::Stale).get(stat));
    }
}

/// Each after an add, so that there is something to flush.
#[inline(never)]
pub(super) fn exact_reads(group: &Group, reads: u64) {
    for _ in 0..reads {
        let stat = black_box(StatKey::WORKINGSET_REFAULT);
        group.stat_add(stat, 1);
        black_box(group.read(Freshness::Exact).get(stat));
    }
}

/// Groups of one runtime, one after the other: objects and cells are those of the groups before.
pub(super) fn lives(lives: u64) {
    let runtime = Runtime::builder()
        .build()
        .expect("nothing is asked for that cannot be had");
    let root = runtime.root();
    live(&root, 1_000);
    counted(|| live(&root, lives));
}

#[inline(never)]
fn live(root: &Group, lives: u64) {
    for _ in 0..lives {
        let group = root
            .create(black_box("query-17"), Limits::new())
            .expect("the last one of this name is gone");
        drop(group.charge(black_box(1)).expect("no limit is set"));
        group.offline().expect("no child is online");
    }
}
