#![cfg(not(loom))]
//! Memory on nodes.
//!
//! * `numa`: which nodes the machine has, and on which of them a page lies;
//! * `nodes`: bytes are charged first and accounted to their node afterwards;
//! * `owners`: vector, slab, store and memory by processor charge and account what they hold.

#[path = "../support/mod.rs"]
mod support;

mod nodes;
mod numa;
mod owners;
