//! The current group of a thread: who is charged, whatever becomes of the scopes.
//!
//! * `scopes`: closures and guards, in any order; `threads`: other threads, and the end of one;
//! * `tasks`: futures, aborted and dropped anywhere; `polled`: what is polled and is no future.

mod polled;
mod scopes;
mod tasks;
mod threads;

use memcg::{Group, Limits, Runtime};

/// The path of the current group; empty outside of all.
fn here() -> String {
    Group::current().map_or_else(String::new, |group| group.path())
}

fn runtime() -> Runtime {
    Runtime::builder().build().unwrap()
}

fn groups<const N: usize>(runtime: &Runtime, names: [&str; N]) -> [Group; N] {
    names.map(|name| runtime.root().create(name, Limits::new()).unwrap())
}
