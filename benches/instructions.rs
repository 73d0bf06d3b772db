//! Holds the hit path by its number of instructions, which a noisy machine does not change.
//! `cargo bench --bench instructions`
//!
//! The program runs itself under callgrind and exits with an error above the ceiling; without
//! valgrind it says so and passes. It also exports probes, `memcg_probe_charge` and
//! `memcg_probe_uncharge` of a counter and of a group, and `memcg_probe_stat_add` to a statistic:
//! calls from another crate as users compile them, whose disassembly shows whether the hit path
//! holds a locked instruction or a fence.

#![allow(
    unsafe_code,
    reason = "exported names, so that callgrind and a disassembler find the functions"
)]

#[cfg(not(loom))]
#[path = "instructions/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() -> std::process::ExitCode {
    program::main()
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
