#![cfg(not(loom))]
//! Figures of the whole process: resident memory, the pools and their live objects. Each test that
//! reads such a figure starts this program again for itself alone.
//!
//! * `own_bytes`: what a runtime takes itself; `churn`: what groups cost in memory;
//! * `recycling`, `stat_recycling`: objects that are used again hold nothing of their last group;
//! * `unowned`: what allocators hand out that no group owns;
//! * `wide`: stocks that get wider for large charges.

#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod churn;
#[cfg(target_os = "linux")]
mod own_bytes;
mod recycling;
mod stat_recycling;
mod unowned;
mod wide;
