//! Statistics that are cheap to write and exact to read.
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
//! The protocol, its races and their answers are in `README.md`. The files, each of which imports only from those above
//! it:
//!
//! | file | holds |
//! |---|---|
//! | `item` | what is counted |
//! | `visits` | what a flush has visited, and what follows from that |
//! | `list`, `stack` | lists by index; newly listed cells |
//! | `rows` | what one slice of a flush has gathered |
//! | `published` | what is published of a group |
//! | `tables` | behind the lock: groups, cells, and which of them are listed |
//! | `gather`, `retire` | a slice of a flush; cells that leave the lists |
//! | `coordinator` | the tree's statistics as their writers use them |
//! | `flush` | flush, unlist, release |
//! | `reading` | figures as a reader gets them |
//!
//! What one thread has counted is in `thread::cells`. This folder knows no groups: `hierarchy` has them.

pub(crate) mod coordinator;
pub(crate) mod flush;
mod gather;
pub(crate) mod item;
mod list;
pub(crate) mod published;
pub(crate) mod reading;
mod retire;
mod rows;
mod stack;
mod tables;
pub(crate) mod visits;

pub use item::{Item, Stat, Unit};
pub use reading::Stats;
