#![cfg(not(loom))]
//! The examples, run as their users run them.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod litmus;
mod numa_kmem;
mod tenants;
