//! What one thread owns. `README.md` explains how the parts work together.
//!
//! Files import in this order, each only from those before it: `audit`, `raw`, `cells`, `slot`, `pace`, `transit`, then `directory`,
//! `block`, `local`, `registry`, `slow_path`. `context` and `objects` import `local`, `current` imports `directory`. A file whose
//! words no other file reads has a thread-local of its own.

pub(crate) mod audit;
pub(crate) mod block;
pub(crate) mod cells;
pub(crate) mod context;
pub(crate) mod current;
pub(crate) mod directory;
pub(crate) mod foreign;
pub(crate) mod freed;
pub(crate) mod ids;
pub(crate) mod local;
pub(crate) mod objects;
pub(crate) mod pace;
pub(crate) mod raw;
pub(crate) mod registry;
pub(crate) mod slot;
pub(crate) mod slow_path;
pub(crate) mod transit;
