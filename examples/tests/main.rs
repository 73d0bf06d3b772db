#![cfg(not(loom))]
//! The examples, run as their users run them.

mod program;

mod litmus;
mod numa_kmem;
mod page_counter;
mod tenants;
