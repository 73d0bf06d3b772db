#![cfg(not(loom))]
//! The library's steps before it refuses a charge to a full group.
//!
//! * `throttle`: it delays charges above high; `reclaim`: it asks reclaimers;
//! * `at_once`: where the caller never blocks, another thread does it;
//! * `waiting`: it lets charges wait for room; `oom`: it chooses a victim;
//! * `stalls`: for how long chargers stand still in all this, and the event that tells it;
//! * `marks`: no mark stays up by credit alone;
//! * `checkpoint`: a task that does not charge learns of all this;
//! * `foreign`: which foreign code each call runs on its own thread.

#[path = "../support/mod.rs"]
mod support;

mod at_once;
mod checkpoint;
mod foreign;
mod marks;
mod oom;
mod reclaim;
mod stalls;
mod throttle;
mod waiting;
