//! What one thread has charged and uncharged without a guard: see `counter::raw`.
//!
//! The cells look like those of `audit`. But the thread that claims an object decides by them whether it may go, so they
//! are words of a protocol.

use crate::sync::{AtomicU64, Ordering};

/// What one thread has charged to and uncharged from one counter without a guard, ever.
#[derive(Default)]
pub(crate) struct RawCell {
    charged: AtomicU64,
    uncharged: AtomicU64,
}

impl RawCell {
    /// Counts a charge. Owner only.
    #[inline]
    pub(crate) fn charged(&self, n: u64) {
        // Relaxed (E15): no other thread writes the cell, and the owner's handle goes after this; pairs with `live`.
        self.charged.store(self.charged.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Counts an uncharge. Owner only.
    #[inline]
    pub(crate) fn uncharged(&self, n: u64) {
        // Relaxed (E15): as in `charged`.
        self.uncharged.store(self.uncharged.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Charged minus uncharged; negative where another thread charged what this one freed.
    pub(crate) fn live(&self) -> i64 {
        // Relaxed (E15): the claim, before this, comes after all handles have gone; pairs with `charged`.
        let uncharged = self.uncharged.load(Ordering::Relaxed);
        self.charged.load(Ordering::Relaxed).wrapping_sub(uncharged).cast_signed()
    }

    /// Starts over for the next counter with this index. No thread writes the cell meanwhile.
    pub(crate) fn reset(&self) {
        self.charged.store(0, Ordering::Relaxed);
        self.uncharged.store(0, Ordering::Relaxed);
    }
}
