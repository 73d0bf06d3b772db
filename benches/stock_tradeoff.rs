//! The cost of a stock for each counter in hidden charge and in memory, beside seven slots for each
//! thread.
//!
//! `cargo bench --bench stock_tradeoff [-- curve|stranded|tables|sleepers|points --threads N --max SIZE --idle-ms N]`
//!
//! First the trade-off itself: what a charge costs against what is stranded, over the batch and the
//! number of counters, as figures and as a picture, `target/stock_tradeoff.svg`.
//!
//! For 1 to 50,000 counters: the bound as a formula, the worst case measured, and a typical one, in
//! which threads steal work from each other. Then the bytes of the tables themselves, what threads
//! that sleep leave in usage, and what the figures say about the three points with which the patch
//! series that moved the kernel's stock qualified its bound.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "stock_tradeoff/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() -> std::process::ExitCode {
    program::main()
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
