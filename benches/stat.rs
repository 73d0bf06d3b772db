//! Statistics, timed: the `stat/*` rows. `cargo bench --bench stat [-- FILTER]`, the filter being
//! part of an id.
//!
//! One iteration is one add, one read or one flush, and the time is that of one iteration of one
//! thread. Each thread has its own handles. Exact reads and flushes follow writes by another
//! thread, which are not timed, and what they read is checked. After the rows stand the goals that
//! this run's medians can answer.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "stat/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
