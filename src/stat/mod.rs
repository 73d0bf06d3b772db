//! Statistics that are cheap to write and exact to read.
//!
//! ```text
//! group.stat_add(item, delta)
//!   this thread's cells of the group ── not listed ──> the stack of the tree
//!                                    ── half a batch unannounced ──> announced at every level
//! a stale read   the published figures, and how much may be missing
//! an exact read  take the stack over, gather the listed cells of the subtree, publish from the root down, read;
//!                once more: what that finds is the error
//! unlisting      unmark what was idle, one heavy barrier, read it a last time
//! ```
//!
//! The protocol, its races and their answers are in `README.md`. The counts of one thread are in
//! `thread::cells`. This folder knows no groups: `hierarchy` has them.

pub(crate) mod coordinator;
pub(crate) mod flush;
mod gather;
pub(crate) mod item;
mod list;
pub(crate) mod published;
pub(crate) mod reading;
mod rows;
mod tables;
pub(crate) mod visits;

pub use item::{StatItem, StatKey, Unit};
pub use reading::Stats;
