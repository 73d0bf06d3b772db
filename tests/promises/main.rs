#![cfg(not(loom))]
//! Promises of types and of documentation.
//!
//! * `types`: what holds as soon as it compiles; `blocking`: functions that may block say so.

mod blocking;
mod types;
