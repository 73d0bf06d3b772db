//! Bytes that allocators have handed out for one counter, as one thread counts them: see `counter::ledger`.
//!
//! Both counts of a cell only grow, and wrap. An object may be freed on another thread than it was allocated on, so the difference of one cell means
//! nothing; the sum over all threads does. No cell starts over: with a group's last object the sum is zero.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64 as StatU64;

/// Bytes of owned objects. Figures: the charge of the object is what counts.
#[derive(Default)]
pub(crate) struct OwnedCell {
    allocated: StatU64,
    freed: StatU64,
}

impl OwnedCell {
    /// Owner only, here and below.
    #[inline(always)]
    pub(crate) fn allocated(&self, n: u64) {
        self.allocated.store(self.allocated.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn freed(&self, n: u64) {
        self.freed.store(self.freed.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Bytes freed, then bytes allocated.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let freed = self.freed.load(Ordering::Relaxed);
        (freed, self.allocated.load(Ordering::Relaxed))
    }
}
