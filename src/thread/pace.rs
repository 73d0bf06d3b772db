//! Size of the next refill of a slot, in two bits for each slot. They lie behind the slots of a
//! page.
//!
//! A slot's first refill walks for a 64th of a batch, each further one for four times as much, up
//! to the batch. So what a thread has in advance is no more than about four times what it has
//! charged since its slot was last idle. A figure that no protocol depends on: the owner steps it,
//! a visit of idle credit resets it, and a store of either may undo one that the other makes in the
//! same byte.

use crate::sync::stat_atomic::AtomicU8;
use crate::sync::{Ordering, PAGE_SLOTS};

/// Steps from the first refill to that of a batch.
const STEPS: u8 = 3;

/// Bits of a pace.
const BITS: u32 = 2;

/// Paces in a byte.
const IN_BYTE: usize = (u8::BITS / BITS) as usize;

/// The paces of a page of slots.
pub(crate) struct Paces([AtomicU8; PAGE_SLOTS.div_ceil(IN_BYTE)]);

impl Default for Paces {
    fn default() -> Self {
        Paces(std::array::from_fn(|_| AtomicU8::new(0)))
    }
}

impl Paces {
    /// `slot` is below `PAGE_SLOTS`.
    pub(super) fn of(&self, slot: usize) -> Pace<'_> {
        Pace {
            byte: &self.0[slot / IN_BYTE],
            shift: (slot % IN_BYTE) as u32 * BITS,
        }
    }
}

/// The pace of one slot.
pub(crate) struct Pace<'a> {
    byte: &'a AtomicU8,
    shift: u32,
}

impl Pace<'_> {
    fn step(&self) -> u8 {
        self.byte.load(Ordering::Relaxed) >> self.shift & STEPS
    }

    fn set(&self, step: u8) {
        let others = self.byte.load(Ordering::Relaxed) & !(STEPS << self.shift);
        self.byte
            .store(others | step << self.shift, Ordering::Relaxed);
    }

    /// Units for a refill that charges `n` of them, at most `most`, which is the batch or that of a
    /// wide stock; the next refill takes more. Twice `n` at least: a second charge of the same size
    /// hits. More than a batch is taken in advance for no smaller charge: a wide stock does not have
    /// its threads take more for them.
    pub(crate) fn next_refill(&self, n: u64, batch: u64, most: u64) -> u64 {
        let step = self.step();
        if step < STEPS {
            self.set(step + 1);
        }
        let units = batch >> (BITS * u32::from(STEPS - step));
        units.max(n.saturating_mul(2)).min(most)
    }

    pub(crate) fn reset(&self) {
        if self.step() > 0 {
            self.set(0);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn refills_grow_up_to_the_batch() {
        let paces = Paces::default();
        let refills =
            |slot, n| [(); 5].map(|()| paces.of(slot).next_refill(n, 256 << 10, 256 << 10));
        assert_eq!(
            refills(0, 1),
            [4 << 10, 16 << 10, 64 << 10, 256 << 10, 256 << 10]
        );
        assert_eq!(
            refills(1, 20 << 10),
            [40 << 10, 40 << 10, 64 << 10, 256 << 10, 256 << 10]
        );
        assert_eq!(
            refills(PAGE_SLOTS - 1, 200 << 10),
            [256 << 10; 5],
            "never more than the batch"
        );
        let in_wide = |n| paces.of(2).next_refill(n, 256 << 10, 4 << 20);
        assert_eq!(
            [1, 1, 1 << 20, 1, 1, 3 << 20].map(in_wide),
            [4 << 10, 16 << 10, 2 << 20, 256 << 10, 256 << 10, 4 << 20],
            "more than a batch for a large charge alone"
        );
        paces.of(2).reset();
        paces.of(1).reset();
        let begun: Vec<usize> = (0..PAGE_SLOTS)
            .filter(|&slot| paces.of(slot).step() > 0)
            .collect();
        assert_eq!(begun, [0, PAGE_SLOTS - 1]);
    }

    #[test]
    fn a_small_batch_is_charged_for_what_is_asked() {
        let paces = Paces::default();
        assert_eq!([(); 4].map(|()| paces.of(0).next_refill(1, 2, 2)), [2; 4]);
        assert_eq!(
            [(); 4].map(|()| paces.of(1).next_refill(1, 64, 64)),
            [2, 4, 16, 64]
        );
        assert_eq!(paces.of(2).next_refill(1, 1, 1), 1);
    }
}
