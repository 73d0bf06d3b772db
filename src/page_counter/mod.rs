//! `PageCounter`: one counter in a tree, as users hold it, alone or as a group's.
//!
//! `handle`, `reading` and `peak_live` need no policy. `declared` makes a counter with nodes or statistics: a
//! group object without a name is behind it, and `stats` reads it.

pub(crate) mod declared;
pub(crate) mod handle;
pub(crate) mod peak_live;
pub(crate) mod reading;
mod stats;

pub use handle::PageCounter;
pub use peak_live::{PeakLive, PeakLiveWindow};
pub use reading::{PeakWindow, TreeCounts};
