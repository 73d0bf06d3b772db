#![cfg(not(loom))]
//! The examples that try a machine, run as their users run them.

#[path = "../../tests/program.rs"]
mod program;

mod litmus;
