#![cfg(not(loom))]
//! Real threads that do random work for a while. Modules run one after the other: each has the
//! processors for itself.
//!
//! * `counters`, `groups`, `statistics`, `reclaim`: all must add up whenever the threads rest;
//! * `outlive`: handles that outlive their group, runtime and thread; `scale`: a large tree;
//! * `refused`: charges that fit beside charges that are refused;
//! * `amounts`: what guards hold, in amounts that no word counts;
//! * `central_stock`: bytes go from thread to thread while limits move and groups come and go;
//! * `storm`: groups at their limit; `async_waiters`, `large_waiter`: tasks and threads that wait
//!   for room.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, `MEMCG_STRESS_SECONDS` how long `storm` lasts.

#[path = "../support/mod.rs"]
mod support;

mod amounts;
mod async_waiters;
mod central_stock;
mod counters;
mod forced;
mod groups;
mod large_waiter;
mod outlive;
mod reclaim;
mod refused;
mod scale;
mod statistics;
mod storm;

/// The number of operations of a test: `MEMCG_STRESS_OPS`, or else its own number.
pub(crate) fn ops(usually: u64) -> u64 {
    std::env::var("MEMCG_STRESS_OPS").map_or(usually, |ops| {
        ops.replace('_', "")
            .parse()
            .unwrap_or_else(|e| panic!("MEMCG_STRESS_OPS={ops}: {e}"))
    })
}
