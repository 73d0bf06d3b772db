//! Units that one thread has charged and uncharged without a guard: see `counter::raw`.
//!
//! The cells look like tallies. But the thread that claims an object decides by them whether it may
//! go, so they are words of a protocol.

use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// Units that a slow path leaves to hits, at least.
const LENT: i128 = 1 << 61;

/// Units charged by one thread to one counter without a guard, less those uncharged so: below zero
/// where another thread charged what this one freed.
///
/// It is the difference of two words. No hit takes the first word below zero: an uncharge beyond it
/// misses, and the slow path lends more. So no run of hits wraps to what the cell was before.
/// Charges alone may wrap the first word: another thread has uncharged 2^63 of them then. The
/// difference is too small from there on, and the object stays for ever.
#[derive(Default)]
pub(crate) struct RawCell {
    /// Units that hits may uncharge.
    left: AtomicU64,
    /// So many times [`LENT`] of those units are lent.
    lent: AtomicI64,
}

impl RawCell {
    /// Counts a charge that has hit. Owner only.
    #[inline(always)]
    pub(crate) fn charged(&self, n: u64) {
        // Relaxed (E15): no other thread writes the cell, and the owner's handle goes after this;
        // pairs with `net`.
        self.left.store(
            self.left.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// Units left where an uncharge of `n` hits. Owner only.
    #[inline(always)]
    pub(crate) fn left_without(&self, n: u64) -> Option<u64> {
        self.left.load(Ordering::Relaxed).checked_sub(n)
    }

    /// Counts an uncharge that has hit, by what [`left_without`](Self::left_without) has returned.
    /// Owner only.
    #[inline(always)]
    pub(crate) fn leave(&self, left: u64) {
        // Relaxed (E15): as in `charged`.
        self.left.store(left, Ordering::Relaxed);
    }

    /// Counts what did not hit: a charge, or below zero an uncharge. Owner only.
    pub(crate) fn count_slow(&self, n: i128) {
        let net = self.net() + n;
        let left = LENT + net.rem_euclid(LENT);
        // Relaxed (E15): as in `charged`.
        self.left.store(left as u64, Ordering::Relaxed);
        self.lent
            .store(((left - net) / LENT) as i64, Ordering::Relaxed);
    }

    /// Charged minus uncharged.
    pub(crate) fn net(&self) -> i128 {
        // Relaxed (E15): the claim, before this, comes after all handles have gone; pairs with
        // `charged`.
        let lent = i128::from(self.lent.load(Ordering::Relaxed)) * LENT;
        i128::from(self.left.load(Ordering::Relaxed)) - lent
    }

    /// Starts over for the next counter with this index. No thread writes the cell meanwhile.
    pub(crate) fn reset(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.lent.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::many;

    /// Charges and uncharges of all sizes, most of them hits, against one number.
    #[test]
    fn the_difference_never_wraps() {
        let cell = RawCell::default();
        let mut net = 0_i128;
        let mut random = 1_u64;
        let steps = many(200_000);
        for step in 0..steps {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let n = random >> 1 >> (random % 4 * 20);
            // In the middle all go one way.
            let charge = if step % (steps / 4) < steps / 8 {
                random & 1 == 0
            } else {
                step < steps / 2
            };
            let hits = i128::from(n) < LENT;
            let change = if charge {
                i128::from(n)
            } else {
                -i128::from(n)
            };
            match (charge, cell.left_without(n)) {
                (true, _) if hits && cell.left.load(Ordering::Relaxed).checked_add(n).is_some() => {
                    cell.charged(n)
                }
                (false, Some(left)) if hits => cell.leave(left),
                _ => cell.count_slow(change),
            }
            net += change;
            assert_eq!(cell.net(), net);
        }
    }
}
