//! How many stocks below a level are open, in the word by which a refusal knows that there is no
//! credit to drain.
//!
//! ```text
//! high half  openings and closings so far, wrapping
//! low half   stocks that are open now
//! ```
//!
//! One word, so that a thread that reads zero stocks twice, with the same number of openings and
//! closings, knows that no stock was open in between.
//!
//! Edge: E10 (open count).

use crate::sync::{AtomicU64, Ordering};

const ONE_STOCK: u64 = 1;
const ONE_MOVE: u64 = 1 << 32;

/// The word of a level.
#[derive(Default)]
pub(crate) struct OpenStocks(AtomicU64);

/// What a thread has read in [`OpenStocks`]. Two that are equal had no opening and no closing
/// between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenCount(u64);

impl OpenCount {
    /// Some stock below the level was open, so there may have been credit.
    #[inline(always)]
    pub(crate) fn is_any(self) -> bool {
        self.stocks() > 0
    }

    /// Some stock below the level has been open since the counter began.
    #[inline(always)]
    pub(crate) fn has_been(self) -> bool {
        self.0 != 0
    }

    /// The stocks that were open: the low half.
    #[inline(always)]
    pub(crate) fn stocks(self) -> usize {
        self.0 as u32 as usize
    }
}

impl OpenStocks {
    /// The caller's comment says which ordering, and why.
    #[inline(always)]
    pub(crate) fn load(&self, ordering: Ordering) -> OpenCount {
        OpenCount(self.0.load(ordering))
    }

    /// Counts a stock that opens, before its first batch.
    pub(crate) fn add_one(&self) {
        // SeqCst (E10): before the credit that it may get; pairs with
        // `LevelRefusal::without_credit`. E4: before the look at usage that follows.
        self.0.fetch_add(ONE_MOVE + ONE_STOCK, Ordering::SeqCst);
    }

    /// Uncounts a stock that has closed, once its credit is back.
    pub(crate) fn remove_one(&self) {
        // AcqRel (E10): after the drain; pairs with `LevelRefusal::without_credit`.
        self.0.fetch_add(ONE_MOVE - ONE_STOCK, Ordering::AcqRel);
    }

    /// No thread uses the counter.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// As new.
    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_stock_that_opens_and_closes_leaves_another_word() {
        let open = OpenStocks::default();
        let before = open.load(Ordering::Relaxed);
        open.add_one();
        let between = open.load(Ordering::Relaxed);
        open.remove_one();
        let after = open.load(Ordering::Relaxed);
        assert_eq!(
            [before, between, after].map(|count| (count.is_any(), count.stocks())),
            [(false, 0), (true, 1), (false, 0)]
        );
        assert_ne!(before, after);
    }

    /// The halves do not reach into each other, however often a stock has closed.
    #[test]
    fn the_number_of_moves_wraps() {
        let open = OpenStocks(AtomicU64::new(u64::from(u32::MAX) << 32));
        open.add_one();
        assert_eq!(open.load(Ordering::Relaxed), OpenCount(1));
        open.remove_one();
        assert_eq!(open.load(Ordering::Relaxed), OpenCount(ONE_MOVE));
    }
}
