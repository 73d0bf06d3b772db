//! The word of a tree that a checkpoint loads: zero while no group is above a limit or cancelled.
//!
//! Edge: E44 (count/mark).

use crate::sync::{AtomicU64, Ordering};

/// News for a task of a tree at its next checkpoint: marks of groups in the low half, victims in
/// the high half.
#[derive(Default)]
pub(crate) struct Alerts(AtomicU64);

const VICTIM: u32 = 32;

impl Alerts {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Relaxed (E44): a thread that has set or found a mark is ordered by that; pairs with the
        // count in `exceeded_mark::correct`.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// A group was chosen to give its memory back, and is being waited for.
    pub(crate) fn any_victim(&self) -> bool {
        self.0.load(Ordering::Relaxed) >> VICTIM != 0
    }

    /// One victim more. The caller holds the lock of the list.
    pub(crate) fn count_victim(&self) {
        self.0.fetch_add(1 << VICTIM, Ordering::Relaxed);
    }

    /// So many victims fewer. The caller holds the lock of the list.
    pub(crate) fn uncount_victims(&self, victims: usize) {
        self.0
            .fetch_sub((victims as u64) << VICTIM, Ordering::Relaxed);
    }

    pub(super) fn count_exceeded(&self) {
        // Relaxed (E44): before the mark, which is set with release; pairs with
        // `exceeded_mark::is_marked`, which an `any` follows.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uncount_exceeded(&self) {
        // Relaxed (E44): after the mark. As in `count_exceeded`.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of marks.
    pub(crate) fn exceeded(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ((1 << VICTIM) - 1)
    }
}
