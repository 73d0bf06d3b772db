#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod engine;
mod plan;
mod stage;
mod tenant;
mod tree;

pub use engine::GroupEngine;
pub use tenant::{TenantOptions, config_producer};

/// The chapter's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/ballista.md")]
struct Chapter;
