//! The patch series' tables of the soft limit, made here: two groups of parallel jobs over file
//! caches under one budget, and a stream beside a group that holds memory.
//!
//! `cargo bench --bench softlimit [-- --trace FILE --runs N --quick …]`
//!
//! The jobs replay a block trace, its requests dealt to the two groups in turn, so that both do
//! much the same, as two builds of one kernel do, and neither gets far ahead. The trace comes from
//! `--trace` or from the folder that `MEMCG_TRACES` names; where there is none it is made up, and
//! every table says so. Every variant has the same groups, caches and charges; variants take turns
//! run by run.
//!
//! *base* is the kernel's old soft limit, a tree sorted by excess, of which the largest is
//! reclaimed whole; *base_quarter* the same with visits of 32 pages, until a quarter of the excess
//! has gone. *rework* is the series' first three patches, two passes over all groups. These decide
//! in one reclaimer at the root. *reworkoptim* is the library, with a reclaimer for each cache.
//!
//! The series' system time is here the processor time that threads spend inside charges, where all
//! reclaim is, and that of the thread that writes back.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "softlimit/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() -> std::process::ExitCode {
    program::main()
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
