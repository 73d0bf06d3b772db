//! The letter's before and after, as seen here: what a group and its parts ask for, and what size classes, objects at
//! whole cache lines and packed ones give. `cargo bench --bench pools --features tracing [-- --groups N --runs N]`
//!
//! As the letter has it from the kernel's trace, all of it is told by the events of the pools, one for each allocation,
//! on machines of 1, 2 and 8 nodes; then what is really resident of so many groups, each way in processes of its own.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "pools/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
