//! A set of numbers that gives out the lowest: a bit for each number.

use super::pages::PageVec;
use crate::numa::mapping::NoMemory;

const BITS: usize = u64::BITS as usize;

pub(super) struct LowestFirst {
    words: PageVec<u64>,
    /// Each word before this one is zero.
    first: usize,
    len: usize,
}

impl LowestFirst {
    pub(super) fn new() -> LowestFirst {
        LowestFirst {
            words: PageVec::new(),
            first: 0,
            len: 0,
        }
    }

    /// Makes room for the numbers below `most`. If the system refuses it, the set has not changed.
    pub(super) fn reserve(&mut self, most: usize) -> Result<(), NoMemory> {
        let more = most.div_ceil(BITS).saturating_sub(self.words.len());
        self.words.reserve(more)?;
        (0..more).for_each(|_| self.words.push(0));
        Ok(())
    }

    /// Adds a number that the set has room for and does not hold.
    pub(super) fn insert(&mut self, number: usize) {
        self.words[number / BITS] |= 1 << (number % BITS);
        self.first = self.first.min(number / BITS);
        self.len += 1;
    }

    pub(super) fn take(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        self.first += self.words[self.first..]
            .iter()
            .take_while(|&&word| word == 0)
            .count();
        let word = &mut self.words[self.first];
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(self.first * BITS + bit)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sync::many;

    #[test]
    fn it_is_an_ordered_set() {
        let mut set = LowestFirst::new();
        let mut twin = BTreeSet::new();
        set.reserve(100).unwrap();
        let mut random = 1_u64;
        for round in 0..many(100_000) as usize {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
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
}
