//! What one thread owns. `README.md` explains how the parts work together.
//!
//! | file | holds |
//! |---|---|
//! | `local` | what the thread reaches without a call: the pointer to its block, its depth in slow paths |
//! | `block` | the thread's transit word and its four directories |
//! | `registry` | all blocks, the thread that has each one, and the slot indices with their headers |
//! | `directory` | slot indices, the header of a counter, the pages of entries that an index leads to |
//! | `slot` | credit of one thread for one counter |
//! | `transit` | the word that shows that a thread moves credit |
//! | `audit` | what the thread has charged and uncharged, for `verify` |
//! | `cells` | the statistics that the thread has written for one group |
//! | `slow_path` | runs what takes locks, waits or allocates, and registers the thread |
//! | `context` | whether foreign code runs on the thread, and the waiter that it charges for |
//! | `deferred` | what the thread does at the end of its outermost slow path |
//! | `freed` | what the thread frees on its slow paths |
//! | `foreign` | calls of foreign code, and where its panics end |
//! | `objects` | takes objects from pools, and reports them; `taken` holds what is not reported yet |
//! | `ids` | numbers that are given out once |
//!
//! The folder imports `pool`, `numa`, `error`, `units` and `sync`. Inside, the files import in this order, each only
//! from those before it: `audit`, `cells`, `slot`, `transit`, then `directory`, `block`, `local`, `registry`,
//! `slow_path`. `context` and `objects` import `local`. A file whose words no other file reads has a thread-local of
//! its own.

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
