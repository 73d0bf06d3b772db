//! A set of numbers that gives out the lowest.
//!
//! A tree of words. A bit of the lowest level stands for a number; a bit of a level above stands for a word below that
//! is not zero. Five levels of 64 are 2^30 numbers. Adding a number or taking the lowest looks at one word of each
//! level.

use super::pages::{NoMemory, PageVec};

const BITS: usize = u64::BITS as usize;
const LEVELS: usize = 5;

/// The most numbers that the set can hold.
const MOST: usize = BITS.pow(LEVELS as u32);

/// Levels above the first level of one word are empty.
pub(super) struct Lowest([PageVec<u64>; LEVELS]);

impl Lowest {
    pub(super) fn new() -> Lowest {
        Lowest(std::array::from_fn(|_| PageVec::new()))
    }

    /// Makes room for the numbers below `most`. If the system refuses it, the set has not changed.
    pub(super) fn reserve(&mut self, most: usize) -> Result<(), NoMemory> {
        if most > MOST {
            return Err(NoMemory { bytes: most / u8::BITS as usize });
        }
        let mut words = most.div_ceil(BITS);
        for at in 0..LEVELS {
            let (below, level) = self.0.split_at_mut(at);
            let Some(level) = level.first_mut() else { break };
            level.reserve(words.saturating_sub(level.len()))?;
            while level.len() < words {
                // The words of a new level tell what is below.
                let first = level.len() * BITS;
                let under = below.last().and_then(|below| below.get(first..)).unwrap_or_default();
                let bit = |(bit, &word): (usize, &u64)| u64::from(word != 0) << bit;
                level.push(under.iter().take(BITS).enumerate().map(bit).sum());
            }
            if words <= 1 {
                break;
            }
            words = words.div_ceil(BITS);
        }
        Ok(())
    }

    /// Adds a number that the set has room for and does not hold.
    pub(super) fn insert(&mut self, number: usize) {
        let mut at = number;
        for level in self.0.iter_mut().take_while(|level| !level.is_empty()) {
            let word = &mut level[at / BITS];
            let was_empty = *word == 0;
            *word |= 1 << (at % BITS);
            if !was_empty {
                return;
            }
            at /= BITS;
        }
    }

    pub(super) fn take(&mut self) -> Option<usize> {
        let mut at = 0;
        for level in self.0.iter().rev().skip_while(|level| level.is_empty()) {
            let word = *level.get(at)?;
            if word == 0 {
                return None;
            }
            at = at * BITS + word.trailing_zeros() as usize;
        }
        if self.0[0].is_empty() {
            return None;
        }
        let number = at;
        for level in self.0.iter_mut().take_while(|level| !level.is_empty()) {
            let word = &mut level[at / BITS];
            *word &= !(1 << (at % BITS));
            if *word != 0 {
                break;
            }
            at /= BITS;
        }
        Some(number)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sync::many;

    #[test]
    #[cfg_attr(miri, ignore = "Miri: millions of bits take minutes")]
    fn the_lowest_comes_first() {
        let mut set = Lowest::new();
        assert_eq!(set.take(), None);
        set.reserve(300_000).unwrap();
        assert_eq!(set.take(), None);
        for number in [299_999, 4_096, 64, 63, 0] {
            set.insert(number);
        }
        // More room changes no number.
        set.reserve(17_000_000).unwrap();
        set.insert(16_777_216);
        let taken: Vec<_> = std::iter::from_fn(|| set.take()).collect();
        assert_eq!(taken, [0, 63, 64, 4_096, 299_999, 16_777_216]);
    }

    #[test]
    fn it_is_an_ordered_set() {
        let mut set = Lowest::new();
        let mut twin = BTreeSet::new();
        set.reserve(100).unwrap();
        let mut random = 1_u64;
        for round in 0..many(100_000) as usize {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The room grows up to the third level.
            let room = 100 + round / 8;
            set.reserve(room).unwrap();
            let number = (random >> 33) as usize % room;
            if random >> 63 == 0 && twin.insert(number) {
                set.insert(number);
            } else if random >> 63 == 1 {
                assert_eq!(set.take(), twin.pop_first());
            }
        }
    }

    #[test]
    fn more_than_it_can_hold_is_refused() {
        let mut set = Lowest::new();
        assert!(set.reserve(MOST + 1).is_err());
    }
}
