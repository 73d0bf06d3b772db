//! Code that the test programs share: each declares this module once and takes what it needs.
#![allow(dead_code, reason = "each test program takes what it needs")]

pub(crate) mod alone;
pub(crate) mod crowds;
#[cfg(target_os = "linux")]
pub(crate) mod denials;
pub(crate) mod executor;
pub(crate) mod payloads;
pub(crate) mod poll;
pub(crate) mod processes;
pub(crate) mod reclaimers;
pub(crate) mod stretches;
pub(crate) mod swapping;
pub(crate) mod trees;
pub(crate) mod turns;
pub(crate) mod waiters;
pub(crate) mod watchdog;
pub(crate) mod workers;
