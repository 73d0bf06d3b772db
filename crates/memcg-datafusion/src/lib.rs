#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod account;
mod arrow;
mod config;
mod demand;
mod ended;
mod merges;
mod patience;
mod plan;
mod pool;
mod session;
mod tracer;

pub use arrow::ArrowPool;
pub use config::PoolConfig;
pub use ended::{EndReason, Ended};
pub use pool::GroupPool;
pub use session::{InGroupSession, QuerySession};
pub use tracer::{GroupTracer, TracerError};

/// The chapter's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/queries.md")]
struct Chapter;
