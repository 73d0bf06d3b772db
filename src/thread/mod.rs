//! What one thread owns: its block in the registry, the slots and cells in it, its transit word, its context.

pub(crate) mod audit;
pub(crate) mod block;
pub(crate) mod cells;
pub(crate) mod context;
pub(crate) mod deferred;
pub(crate) mod directory;
pub(crate) mod foreign;
pub(crate) mod freed;
pub(crate) mod ids;
pub(crate) mod local;
pub(crate) mod objects;
pub(crate) mod registry;
pub(crate) mod slot;
pub(crate) mod slow_path;
#[cfg(feature = "tracing")]
pub(crate) mod taken;
pub(crate) mod transit;
