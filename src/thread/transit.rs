//! The transit word: whether a thread moves credit that is in no slot, and of which tree.
//!
//! ```text
//! high half  the tree whose credit it is, 0 for any
//! low half   a sequence number, odd while in transit
//! ```
//!
//! One word, so that a closer reads both together.
//!
//! A thread in transit promises three things:
//! * What it moves is credit of the tree in its word, or of any tree where that is [`ANY`].
//! * How much it moves rests on what it has read since it entered. So whoever has stored capacity
//!   0, or a lower max, waits for the transits that it finds under way, and for none that begins
//!   later: that one reads the new word.
//! * It is out again soon. It waits for nobody who may wait for it: it does not take the tree's
//!   lock (`Tree::lock` asserts that), under which others wait here, and it runs no foreign code
//!   (`foreign::contain` asserts that). What it may take are locks that rank after the tree's
//!   (`sync/lock.rs`), as a look at a level does: their holders wait for no transit. What it calls
//!   of the program is the allocator at most, whose own charges inside it take no lock.
//!
//! Those who wait do so in `Tree::wait_transits`, for a millisecond at most for each thread that
//! they find in transit; a max that is lowered tries again for 64 turns at most
//! (`at_limit::set_max`). They are: a thread that closes a stock, one that lowers a max, and one
//! that has to know that what others uncharge has arrived (`Tree::wait_for_walks`).
//!
//! Edges: E5, E6.

use crate::sync::barrier::light_side;
use crate::sync::{AtomicU64, Ordering, Patience, model_failed};

/// Stands for any tree: a transit with it covers all trees.
pub(crate) const ANY: u32 = 0;

/// Set before the first step of a refill, a cut, a take-back or a walk, cleared after the last.
/// Written by its thread only.
///
/// Four walks are in no transit of their own:
/// * that of a forced charge, after its drain: it moves no credit, no max refuses it, and it is
///   never undone;
/// * those of a refused charge that drains and tries again (`at_limit::drain_and_retry`): under the
///   tree's lock, which whoever closes a stock or lowers a max needs, too;
/// * that of a thread without a block, which has no word to set;
/// * that of an allocator that charges inside another slow path of its thread.
///
/// The last two fill no slot, so a drain need not wait for them. But they may show at a level whose
/// max is lowered meanwhile, until they are undone.
#[derive(Default)]
pub(crate) struct Transit(AtomicU64);

/// A transit of this thread that ends with the value.
#[must_use]
pub(crate) struct InTransit<'a>(&'a Transit);

impl Drop for InTransit<'_> {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed is past its atomics.
        if !model_failed() {
            self.0.end();
        }
    }
}

fn sequence(word: u64) -> u32 {
    word as u32
}

fn tree(word: u64) -> u32 {
    (word >> 32) as u32
}

fn is_over(word: u64) -> bool {
    sequence(word).is_multiple_of(2)
}

impl Transit {
    /// Enters transit. The drop of the result ends it, also when a panic leaves the steps. Values
    /// that the thread reads after this call decide how much credit moves; see E5.
    #[inline]
    pub(crate) fn enter(&self, of: u32, fenced: bool) -> InTransit<'_> {
        // Relaxed: only the owner writes the word.
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(is_over(word), "transit does not nest");
        self.0.store(
            u64::from(of) << 32 | u64::from(sequence(word).wrapping_add(1)),
            Ordering::Relaxed,
        );
        // light (E5): pairs with the heavy in `Tree::wait_transits`. Either the closer sees this
        // word odd and waits, or what the thread reads from here on says closed.
        // Mutation: e5-transit-without-light
        light_side(fenced);
        InTransit(self)
    }

    /// Lets the transit cover every tree: an allocator charges inside a slow path that is in
    /// transit already.
    pub(crate) fn widen(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // Release (E6): as in `end`.
        self.0.store(
            u64::from(ANY) << 32 | u64::from(sequence(word)),
            Ordering::Release,
        );
    }

    /// Owner only.
    pub(crate) fn is_over(&self) -> bool {
        is_over(self.0.load(Ordering::Relaxed))
    }

    /// The word where no transit is under way, for a figure: two reads that return the same had
    /// none between them.
    pub(crate) fn seen_over(&self) -> Option<u64> {
        // Acquire (E6): as in `wait`.
        Some(self.0.load(Ordering::Acquire)).filter(|&word| is_over(word))
    }

    #[inline]
    fn end(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // Release (E6): a closer that sees the sequence even, or changed, sees what was moved:
        // pairs with `wait`.
        self.0
            .store(u64::from(sequence(word).wrapping_add(1)), Ordering::Release);
    }

    /// Waits until a transit that this thread sees, and that may hold credit of the tree, is over.
    /// False where it takes longer than the thread has patience for.
    pub(crate) fn wait(&self, of: u32) -> bool {
        // Acquire (E6): pairs with `end`.
        let seen = self.0.load(Ordering::Acquire);
        // Mutation: e5-a-transit-of-any-tree-is-not-waited-for
        // A transit of another tree holds none of this one's credit: to wait for it would only cost
        // time, under the lock.
        if is_over(seen) || (tree(seen) != ANY && tree(seen) != of) {
            return true;
        }
        let patience = Patience::new();
        // Until the number changes, not until it is even: the thread may have begun its next
        // transit, which reads the new capacity and need not be waited for.
        while sequence(self.0.load(Ordering::Acquire)) == sequence(seen) {
            // A thread that the system has stopped in transit would stop the drainer as well, under
            // the tree's lock. The drainer leaves the stock marked as stuck instead.
            if !patience.wait() {
                return false;
            }
        }
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_transit_ends_where_its_steps_panic() {
        let transit = Transit::default();
        let steps = || {
            let _transit = transit.enter(7, true);
            panic!("on purpose");
        };
        catch_unwind(AssertUnwindSafe(steps)).expect_err("it panics");
        assert!(transit.is_over() && transit.wait(7));
    }
}
