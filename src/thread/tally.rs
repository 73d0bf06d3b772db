//! Counts of one thread for one counter, or for the process. They are figures: no protocol depends
//! on their order.
//!
//! | tally | added | taken |
//! |---|---|---|
//! | audit | charged, less what was uncharged: without this second count the identity of usage, live charge and credit holds by definition | nothing |
//! | owned objects | bytes that allocators have handed out | bytes freed: see `counter::ledger` |
//!
//! Both counts only grow, and wrap. An object may be freed on another thread than it was allocated
//! on, so the difference of one tally means nothing; the sum over all threads does.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;

#[derive(Default)]
pub(crate) struct Tally {
    added: AtomicU64,
    taken: AtomicU64,
}

impl Tally {
    /// Adds to the first count. Here and in `take` the caller owns the tally: no other thread
    /// writes it.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.added.store(
            self.added.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    #[inline(always)]
    pub(crate) fn take(&self, n: u64) {
        self.taken.store(
            self.taken.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// Does what [`add`](Self::add) does, to a tally that threads without a block share.
    pub(crate) fn add_shared(&self, n: u64) {
        self.added.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn take_shared(&self, n: u64) {
        self.taken.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the units taken, and the units added.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        (taken, self.added.load(Ordering::Relaxed))
    }

    /// Returns the units added less those taken. It wraps below zero if another thread has added
    /// what this one took.
    pub(crate) fn net(&self) -> u64 {
        let (taken, added) = self.counts();
        added.wrapping_sub(taken)
    }

    /// Sets both counts to 0 for the next counter with this index. No thread writes the tally
    /// meanwhile.
    pub(crate) fn reset(&self) {
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }
}
