//! Bytes that one thread has allocated in small objects for one counter, ever: see `small`.

use crate::sync::Ordering;
use crate::sync::stat_atomic::{AtomicBool, AtomicU64};

/// A thread has counted for a group: one that is released may have counts.
static ANY: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub(crate) struct GrossCell(AtomicU64);

/// A thread counts for a group from here on.
pub(super) fn expect_counts() {
    // Relaxed: the thread has the group, whose handle goes before the release looks.
    ANY.store(true, Ordering::Relaxed);
}

impl GrossCell {
    /// Owner only.
    pub(super) fn add(&self, bytes: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Starts over for the next counter with this index. No thread counts meanwhile.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Whether there may be counts.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}
