//! Words that one thread owns. `README.md` explains how the parts work together.
//!
//! Files import in this order, each only from those before it: `tally`, `raw`, `cells`, `slot`,
//! `pace`, `transit`, `deferred`, then `directory`, `counts`, `block`, `slot_cache`, `local`,
//! `registry`, `slow_path`. `context` imports `local`, `reports` imports `context`, `objects`
//! imports `local` and `reports`, `current` and `owner` import `directory`, `unowned` imports
//! `registry`. A file whose words no other file reads has a thread-local of its own.

pub(crate) mod block;
pub(crate) mod cells;
pub(crate) mod context;
pub(crate) mod counts;
pub(crate) mod current;
pub(crate) mod deferred;
pub(crate) mod directory;
pub(crate) mod foreign;
pub(crate) mod freed;
pub(crate) mod helper;
pub(crate) mod ids;
pub(crate) mod local;
pub(crate) mod objects;
pub(crate) mod owner;
pub(crate) mod pace;
pub(crate) mod raw;
pub(crate) mod registry;
pub(crate) mod reports;
mod shelf;
pub(crate) mod slot;
pub(crate) mod slot_cache;
pub(crate) mod slow_path;
pub(crate) mod tally;
pub(crate) mod transit;
pub(crate) mod unowned;
