//! What is wanted of the rows.

#![cfg(not(loom))]

use crate::common::goals::Goals;
use crate::common::rows::Medians;

const ADD_NANOS_MAX: f64 = 2.3;
const STALE_NANOS_MAX: f64 = 20.0;
const EXACT_NANOS_MAX: f64 = 2_000.0;

/// How far depth, and a reader beside, may move an add.
const FLAT: f64 = 1.15;

/// Print those goals for which this run has the figures.
pub(crate) fn print(medians: &Medians) {
    let mut goals = Goals::new(medians);
    for threads in [1, 2] {
        let add = format!("stat/add/threads{threads}");
        goals.nanos(&add, ADD_NANOS_MAX);
        goals.ratio(&format!("stat/add_read/threads{threads}"), &add, FLAT);
    }
    let depths = [1, 4, 8].map(|depth| format!("stat/add/depth{depth}/threads1"));
    goals.flat("stat/add/depth*: slowest / fastest", &depths, FLAT);
    for count in [1, 1_000, 50_000] {
        goals.nanos(&format!("stat/read_stale/groups{count}"), STALE_NANOS_MAX);
    }
    goals.nanos("stat/read_exact/groups50000", EXACT_NANOS_MAX);
    goals.print();
}
