#![cfg(not(loom))]
//! Random operations on the library and on a naive twin of it, which must agree.
//!
//! * `oracle`: the twins, which the fuzz targets use as well;
//! * `counters`, `protection`: trees of counters; `reclaim`, `stats`: groups, whose lives
//!   `tests/simulator` has;
//! * `stalls`: for how long chargers stand still, by a clock of the test;
//! * `peaks`: the peak of live bytes, where the true one is known;
//! * `paths`: each group online has a path of its own;
//! * `specs`: trees of groups from files;
//! * `units`: sizes and limits as text; `corpus`: the inputs that the fuzz targets have found.

mod corpus;
mod counters;
mod oracle;
mod paths;
mod peaks;
mod protection;
mod reclaim;
mod specs;
mod stalls;
mod stats;
mod units;

use proptest::prelude::ProptestConfig;

/// A failure prints its shortest form; it is kept as a test or as a seed of the fuzzer, not in a
/// file of numbers.
fn config() -> ProptestConfig {
    ProptestConfig {
        max_shrink_iters: 8_192,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
