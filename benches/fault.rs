//! The test of the patch series that moved the kernel's stock into the page counter, in user space:
//! pages are faulted in and released, and each is charged.
//!
//! `cargo bench --bench fault [-- --trials N --iterations N --pages N --by-region]`
//!
//! 1, 4 and 32 counters, each with a mapped region. One iteration charges and touches all regions
//! page by page, uncharges them page by page, and gives the pages back with
//! `madvise(MADV_DONTNEED)`. Four variants take turns trial by trial, so that a drift of the
//! machine meets them all. Then three memory stressors, and what the run says of the series' claims
//! (`docs/src/series/stock.md`).

#[cfg(not(loom))]
mod common;
#[cfg(all(not(loom), unix))]
#[path = "fault/program.rs"]
mod program;

#[cfg(all(not(loom), unix))]
fn main() {
    program::main();
}

// The types of loom panic outside a model, and regions are mapped by Unix calls.
#[cfg(any(loom, not(unix)))]
fn main() {}
