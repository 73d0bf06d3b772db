//! The goals of the rows.

#![cfg(not(loom))]

use memcg_bench_rows::{Goals, Measured};

/// An add, to the kernel's walk of as many ancestors.
const ADD_MAX: f64 = 0.5;
/// A stale read, to one from a map behind a mutex.
const STALE_MAX: f64 = 0.5;
/// An exact read, to a flush of the whole subtree and a read.
const EXACT_MAX: f64 = 1.0;

/// The most that depth, and a reader beside, may move an add.
const FLAT: f64 = 1.15;

/// Print those goals for which this run has the figures.
pub(crate) fn print(measured: &Measured) {
    let mut goals = Goals::new(measured);
    for threads in [1, 2] {
        let add = format!("stat/add/threads{threads}");
        goals.ratio(&format!("stat/add_read/threads{threads}"), &add, FLAT);
    }
    for depth in [1, 4, 8] {
        goals.ratio(
            &format!("stat/add/depth{depth}/threads1"),
            &format!("stat/add_walk/depth{depth}"),
            ADD_MAX,
        );
    }
    let depths = [1, 4, 8].map(|depth| format!("stat/add/depth{depth}/threads1"));
    goals.flat("stat/add/depth*: slowest / fastest", &depths, FLAT);
    for count in [1, 1_000, 50_000] {
        let map = format!("stat/shared_map/read/groups{count}");
        goals.ratio(&format!("stat/read_stale/groups{count}"), &map, STALE_MAX);
    }
    goals.ratio(
        "stat/read_exact/groups50000",
        "stat/subtree/read/groups50000",
        EXACT_MAX,
    );
    goals.print();
}
