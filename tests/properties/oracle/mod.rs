#![cfg(not(loom))]
//! Naive twins of the library, and the operations that both are driven with: for each the twin,
//! `ops` (its operations, and how records of bytes become them, for the fuzzer) and `run` (the
//! interpreter that drives library and twin together).
//!
//! * `counters`: a tree of counters; `stats`: statistics of groups. `tests/simulator` has groups, their
//!   charges and their reclaimers.

// Each test program takes the part it needs.
#![allow(dead_code)]

pub(crate) mod counters;
pub(crate) mod record;
pub(crate) mod stats;
#[path = "../../support/workers.rs"]
pub(crate) mod workers;

/// The same tree with nodes and statistics, which change no figure of its counters.
pub(crate) fn declaring(config: memcg::CounterConfig) -> memcg::CounterConfig {
    config.nodes(2)
}
