#![cfg(not(loom))]
//! A group that is full: what the library does before it refuses a charge.
//!
//! * `throttle`: it delays charges above high; `reclaim`: it asks reclaimers;
//! * `waiting`: it lets charges wait for room; `oom`: it chooses a victim.

#[path = "../support/mod.rs"]
mod support;

mod oom;
mod reclaim;
mod throttle;
mod waiting;
