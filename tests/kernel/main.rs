#![cfg(not(loom))]
//! The kernel's memory controller as the measure.
//!
//! * `conformance`: one test for each behaviour that the library takes over or decides on purpose;
//! * `selftests`: the scenarios of the kernel's own tests.

#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod selftests;
