//! The cost of accounting per-processor memory by node: the `kmem/*` rows, and the tables of the
//! patch series that does so in the kernel, beside ours.
//!
//! `cargo bench --bench kmem [-- table | FILTER]`
//!
//! Without a word, the tables and then the rows; with `table`, the tables alone; with another word,
//! the rows whose ids have it as a part. In the tables every way of accounting takes turns with no
//! accounting at all, slice by slice, in one process, so that a drift of the machine meets both.

#[cfg(not(loom))]
mod common;
#[cfg(all(not(loom), target_os = "linux"))]
#[path = "kmem/program.rs"]
mod program;

#[cfg(all(not(loom), target_os = "linux"))]
fn main() {
    program::main();
}

// The types of loom panic outside a model, and pages are asked for by calls of Linux.
#[cfg(any(loom, not(target_os = "linux")))]
fn main() {}
