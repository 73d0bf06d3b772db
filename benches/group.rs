//! Groups that come and go: the `group/*` rows. `cargo bench --bench group [-- FILTER]`, the filter
//! being part of an id.
//!
//! One iteration creates a group below the root under a name of 16 bytes that was never used
//! before, charges it once and gives back, takes it offline and drops the handle. With a million
//! siblings a row needs a gigabyte or so: `MEMCG_BENCH_SIBLINGS=100000` keeps all rows to so many
//! at most.
//!
//! The rows `group/snapshot/…` are snapshots of groups, and `group/create_destroy/snapshots` is
//! what groups that come and go cost beside them. `group/charge/alone` and `group/charge/snapshots`
//! are a charge without and beside snapshots. The rows `group/churn/…` are groups that one thread
//! charges, then groups that two do, with the barriers that their releases cost, counted. At the
//! end stand the goals that this run can answer.
//!
//! `cargo bench --bench group -- figures[/PART] [--groups N --cycles N --turns N --quick …]` prints
//! every figure that README gives of groups, with the machine: bytes of an idle group, time from
//! create to release beside one sibling and beside a million, what is left of ten million lives,
//! whether it matters how groups lie in memory, and the longest that a step takes beside snapshots
//! of a million groups. Some minutes.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "group/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
