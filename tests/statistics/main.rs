#![cfg(not(loom))]
//! Statistics of groups.
//!
//! * `stats`: what threads add is read, and how far a read may be off;
//! * `stories`: three readers that the kernel once misled, and what they read here.

#[path = "../support/mod.rs"]
mod support;

mod stats;
mod stories;
