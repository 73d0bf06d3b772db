//! The two runs of the patch series that restored the flushing of subtrees, scaled to the machine
//! at hand, and the second once more with a quarter of a million readers.
//!
//! `cargo bench --bench stat_stress [-- workers|latency|timers --workers N --groups N --readers N …]`
//!
//! *workers*: thousands of threads charge, count, read and free in hundreds of groups, each a fixed
//! amount of work; what a thousand readers beside them add to the total runtime, with the library's
//! statistics and with the old ways. *latency*: one writer at full speed over tens of thousands of
//! groups; how long a thousand readers wait for exact figures, what they cost the writer, and what
//! is left of it all at rest. *timers*: as many readers as the series had, as timers on a few
//! threads, content with figures that are nearly right. More than 10,000 `--readers` are timers.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "stat_stress/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
