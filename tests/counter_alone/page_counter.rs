//! The files of `page_counter/` that need no policy.

#[path = "../../src/page_counter/handle.rs"]
pub(crate) mod handle;
#[path = "../../src/page_counter/peak_live.rs"]
pub(crate) mod peak_live;
#[path = "../../src/page_counter/reading.rs"]
pub(crate) mod reading;

pub use handle::PageCounter;
pub use peak_live::{PeakLive, PeakLiveWindow};
pub use reading::{PeakWindow, TreeCounts};
