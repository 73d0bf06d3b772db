#![cfg(not(loom))]
//! The example `tenants`, run as its users run it.

#[path = "../../tests/program.rs"]
mod program;
mod tenants;
