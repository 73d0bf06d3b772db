//! The second count. Without it the identity of usage, live charge and credit holds by definition.
//!
//! `live` is usage minus credit, so it always agrees with them. With `audit` on, each pair of thread and counter has
//! two cumulative cells, charged and uncharged, that only its own thread writes. `verify` adds them up and compares.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;

/// What one thread has charged to and uncharged from one counter, ever.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    charged: AtomicU64,
    uncharged: AtomicU64,
}

impl Cell {
    /// Counts a charge. Owner only.
    pub(crate) fn charged(&self, n: u64) {
        // The owner loads and stores: no other thread writes the cell. Relaxed: `verify` compares the two counts only
        // where no thread charges, and its caller orders itself after all threads that did.
        self.charged.store(self.charged.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Counts an uncharge. Owner only.
    pub(crate) fn uncharged(&self, n: u64) {
        self.uncharged.store(self.uncharged.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Charged minus uncharged; negative where another thread charged what this one freed.
    pub(crate) fn live(&self) -> i64 {
        let uncharged = self.uncharged.load(Ordering::Relaxed);
        self.charged.load(Ordering::Relaxed).wrapping_sub(uncharged).cast_signed()
    }

    /// Starts over for the next counter with this index. No thread writes the cell meanwhile.
    pub(crate) fn reset(&self) {
        self.charged.store(0, Ordering::Relaxed);
        self.uncharged.store(0, Ordering::Relaxed);
    }
}

/// What threads without a block have charged and not uncharged. Charges inside a slow path count here, too.
#[derive(Debug, Default)]
pub(crate) struct SharedCell(AtomicU64);

impl SharedCell {
    pub(crate) fn charged(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn uncharged(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Charged minus uncharged; negative where other threads charged what these freed.
    pub(crate) fn live(&self) -> i64 {
        self.0.load(Ordering::Relaxed).cast_signed()
    }

    /// Starts over for the next counter in the object.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
