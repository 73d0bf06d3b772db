//! Reclaim beside groups that have nothing to give: the `reclaim/*` rows.
//! `cargo bench --bench reclaim [-- FILTER]`, the filter being part of an id.
//!
//! One iteration asks the root for 128 KiB, by `Group::reclaim`, and charges again what was freed,
//! so that the next finds the same tree. In `reclaim/charge_at_max/…` it is a charge of as much at
//! the root's max, in `reclaim/stream/…` a charge of a page, of which one in 32 needs reclaim: what
//! a stream pays that fills the root.
//!
//! One group holds memory; `idle…` are so many others beside it that hold none: in `soft_pass` and
//! `no_excess` as the series had them, with no limit and no reclaimer, in `…_registered` with both.
//! Below the rows stand the groups that were visited, the patch series' figures, and the goals that
//! this run can answer.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "reclaim/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
