#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod account;
#[cfg(feature = "session")]
mod again;
#[cfg(feature = "session")]
mod allocates;
mod arrow;
#[cfg(feature = "session")]
mod askers;
#[cfg(feature = "session")]
mod attempts;
#[cfg(feature = "session")]
mod caches;
mod config;
mod consumer;
#[cfg(feature = "session")]
mod contexts;
mod demand;
mod ended;
#[cfg(feature = "session")]
mod figures;
#[cfg(feature = "session")]
mod files;
#[cfg(feature = "session")]
mod frames;
#[cfg(feature = "session")]
mod lines;
#[cfg(feature = "session")]
mod merges;
#[cfg(all(test, feature = "session"))]
mod names;
#[cfg(feature = "session")]
mod passes_on;
mod patience;
#[cfg(feature = "session")]
mod plan;
mod pool;
#[cfg(feature = "session")]
mod queue;
#[cfg(feature = "session")]
mod queued;
#[cfg(feature = "session")]
mod readers;
mod refusal;
#[cfg(feature = "session")]
mod repeats;
mod replays;
#[cfg(feature = "session")]
mod rules;
#[cfg(feature = "session")]
mod runs;
#[cfg(feature = "session")]
mod session;
#[cfg(feature = "session")]
mod settings;
mod sorts;
mod spilling;
#[cfg(feature = "session")]
mod state;
#[cfg(feature = "session")]
mod tables;
#[cfg(feature = "session")]
mod tracer;
#[cfg(feature = "session")]
mod unreserved;

pub use arrow::ArrowPool;
#[cfg(feature = "session")]
pub use caches::GroupCaches;
pub use config::PoolConfig;
pub use ended::{EndReason, EndedError};
#[cfg(feature = "session")]
#[doc(hidden)]
pub use plan::plan_in_group;
pub use pool::GroupPool;
#[cfg(feature = "session")]
pub use queue::{QueryQueue, QueueCounts};
pub use refusal::PoolError;
#[cfg(feature = "session")]
pub use session::{InGroupSession, QuerySession};
#[cfg(feature = "session")]
pub use tracer::{GroupTracer, TracerError};

/// The chapter's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/queries.md")]
struct Chapter;
