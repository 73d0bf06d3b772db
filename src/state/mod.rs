//! The state of each policy for a counter, a group or a tree: one leaf file for each, without the
//! policy's algorithm.

pub(crate) mod applied;
pub(crate) mod callback;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod incidents;
pub(crate) mod key;
pub(crate) mod limits;
pub(crate) mod listeners;
pub(crate) mod name;
pub(crate) mod oom;
pub(crate) mod pressure_level;
pub(crate) mod reclaim;
pub(crate) mod reclaimer;
pub(crate) mod shares;
pub(crate) mod stalls;
pub(crate) mod started;
pub(crate) mod waiting;
