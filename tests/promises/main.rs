#![cfg(not(loom))]
//! What types and documentation promise.
//!
//! * `types`: what holds as soon as it compiles; `blocking`: functions that may block say so.

mod blocking;
mod types;
