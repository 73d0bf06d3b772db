//! Pipeline B: statistics that are cheap to write and exact to read.
//!
//! ```text
//! group.stat_add(item, delta)
//!   this thread's cells of the group ── not listed ──> the stack of the tree
//!                                    ── half a batch unannounced ──> announced at every level
//! read_stale     the published figures, and how much may be missing
//! read_exact     take the stack over, gather the listed cells of the subtree, publish from the root down, read;
//!                once more: what that finds is the error
//! unlisting      unmark what was idle, one heavy barrier, read it a last time
//! ```
//!
//! The protocol, its races and their answers are in `README.md`. A count is in `cells`, what has been published of a
//! group in `part`, who is listed in `state`, who flushes in `coordinator` and how in
//! `flush`. Who the groups are is for `charge` to know.

pub(crate) mod coordinator;
pub(crate) mod flush;
pub(crate) mod item;
mod list;
pub(crate) mod part;
mod reading;
mod state;

pub use item::{Item, Stat, Unit};
pub use reading::Stats;
