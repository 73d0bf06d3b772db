#![cfg(not(loom))]
//! Memory on nodes, and bytes that go from thread to thread.
//!
//! * `numa`: which nodes the machine has, and on which of them a page lies;
//! * `nodes`: bytes are charged first and accounted to their node afterwards;
//! * `central_stock`: what one thread gives back is credit, and another one takes it.

#[path = "../support/mod.rs"]
mod support;

mod central_stock;
mod nodes;
mod numa;
