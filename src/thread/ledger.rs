//! Bytes that allocators have handed out for one counter, as one thread counts them: see `counter::ledger`.
//!
//! Two cells for each counter: bytes that the group is charged for, and bytes that a charge covers. Both counts only grow,
//! and wrap. An object may be freed on another thread than it was allocated on, so the difference of one cell means
//! nothing; the sum over all threads does. No cell starts over: with a group's last object the sum is zero.
//!
//! Edge: E49 (a covered object is freed/what is covered is added up).

use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{AtomicU64, Ordering};

/// A thread has a look taken each time its count of covered bytes passes a multiple of this.
pub(crate) const STEP: u64 = 64 << 10;

/// The same where the record is coarse.
const COARSE_STEP: u64 = 1 << 20;

/// Whether a count that has grown by `n` has passed a multiple of the coarse step.
pub(crate) fn passed_coarse_step(now: u64, n: u64) -> bool {
    now ^ now.wrapping_sub(n) >= COARSE_STEP
}

/// Bytes of owned objects that are not covered. Figures: the charge of the object is what counts.
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

/// Bytes of covered objects.
#[derive(Default)]
pub(crate) struct CoveredCell {
    allocated: AtomicU64,
    freed: AtomicU64,
}

impl CoveredCell {
    /// Whether the count has passed a multiple of [`STEP`]. Owner only, here and below.
    #[inline(always)]
    pub(crate) fn allocated(&self, n: u64) -> bool {
        // Relaxed (E49): the free of the object, which comes after this, is published with release.
        let before = self.allocated.load(Ordering::Relaxed);
        let now = before.wrapping_add(n);
        self.allocated.store(now, Ordering::Relaxed);
        before ^ now >= STEP
    }

    /// Counts, unless the count would pass a multiple of [`STEP`]: then the caller takes a handle first.
    #[inline(always)]
    pub(crate) fn freed_within_step(&self, n: u64) -> bool {
        let before = self.freed.load(Ordering::Relaxed);
        let is_within = before ^ before.wrapping_add(n) < STEP;
        if is_within {
            self.freed(n);
        }
        is_within
    }

    /// Returns the count.
    #[inline(always)]
    pub(crate) fn freed(&self, n: u64) -> u64 {
        let now = self.freed.load(Ordering::Relaxed).wrapping_add(n);
        // Release (E49): a look that finds the free finds the allocation; pairs with `sum_freed`.
        // Mutation: e49-freed-relaxed
        self.freed.store(now, Ordering::Release);
        now
    }

    pub(crate) fn sum_freed(&self) -> u64 {
        // Acquire (E49): before any count of allocations is read; pairs with `freed`.
        self.freed.load(Ordering::Acquire)
    }

    pub(crate) fn sum_allocated(&self) -> u64 {
        // Relaxed (E49): after all counts of frees.
        self.allocated.load(Ordering::Relaxed)
    }
}
