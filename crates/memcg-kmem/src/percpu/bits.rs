//! The taken granules of a chunk: a bit for each.

/// Granules, taken or free. First fit, so that taken ones stay near the start.
pub(super) struct GranuleBits {
    words: Box<[u64]>,
    len: usize,
    /// No granule below this one is free.
    first: usize,
    /// No run of free granules is longer than this.
    longest: usize,
    taken: usize,
}

const WORD: usize = u64::BITS as usize;

impl GranuleBits {
    pub(super) fn new(len: usize) -> GranuleBits {
        GranuleBits {
            words: vec![0; len.div_ceil(WORD)].into(),
            len,
            first: 0,
            longest: len,
            taken: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Takes the first run of `many` free granules that starts at a multiple of `align`, a power of
    /// two. `None`: there is none.
    pub(super) fn take(&mut self, many: usize, align: usize) -> Option<usize> {
        // No free run is so long: refused without a look at the bits.
        if many > self.longest {
            return None;
        }
        let first = self.first_free(self.first);
        self.first = first;
        let mut at = first;
        let found = loop {
            at = (at + align - 1) & !(align - 1);
            let end = at + many;
            if end > self.len {
                break None;
            }
            match self.last_taken(at, end) {
                None => break Some(at),
                // A run from there or from before would contain it.
                Some(taken) => at = self.first_free(taken + 1),
            }
        };
        let Some(at) = found else {
            // A search that steps by a larger alignment passes over free runs.
            if align == 1 {
                self.longest = many - 1;
            }
            return None;
        };
        self.turn(at, many);
        self.taken += many;
        if at == self.first {
            self.first = at + many;
        }
        Some(at)
    }

    pub(super) fn give_back(&mut self, at: usize, many: usize) {
        // Mutation: of-granules-the-first-word-comes-back
        self.turn(at, many);
        self.taken -= many;
        self.first = self.first.min(at);
        // The run may have joined its neighbours. How long it is by now is left to the next search.
        // Mutation: what-is-given-back-is-not-found
        self.longest = self.len;
    }

    /// Makes taken granules free, and free ones taken.
    fn turn(&mut self, at: usize, many: usize) {
        let end = at + many;
        let mut at = at;
        while at < end {
            let bits = (WORD - at % WORD).min(end - at);
            self.words[at / WORD] ^= (u64::MAX >> (WORD - bits)) << (at % WORD);
            at += bits;
        }
    }

    /// The first free granule from `at` on; `len` or more where there is none.
    fn first_free(&self, mut at: usize) -> usize {
        while let Some(word) = self.words.get(at / WORD) {
            let free = !word >> (at % WORD);
            if free != 0 {
                return at + free.trailing_zeros() as usize;
            }
            at = (at / WORD + 1) * WORD;
        }
        at
    }

    fn last_taken(&self, at: usize, end: usize) -> Option<usize> {
        let mut end = end;
        while at < end {
            let word = (end - 1) / WORD;
            let start = at.max(word * WORD);
            let bits = (self.words[word] >> (start % WORD)) & (u64::MAX >> (WORD - (end - start)));
            if bits != 0 {
                return Some(start + bits.ilog2() as usize);
            }
            end = start;
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::many;

    #[test]
    fn a_run_is_found_where_it_fits_first() {
        let mut bits = GranuleBits::new(200);
        assert_eq!(bits.take(60, 1), Some(0));
        assert_eq!(bits.take(10, 1), Some(60), "over the end of a word");
        assert_eq!(bits.take(64, 64), Some(128));
        assert_eq!(bits.take(58, 1), Some(70));
        assert_eq!(bits.take(9, 1), None);
        assert_eq!(bits.take(8, 1), Some(192));
        assert_eq!(bits.take(1, 1), None);
        bits.give_back(60, 10);
        assert_eq!(bits.take(11, 1), None);
        assert_eq!(bits.take(4, 4), Some(60));
        assert_eq!(bits.take(6, 1), Some(64));
        for (at, many) in [(0, 60), (60, 4), (64, 6), (70, 58), (128, 64), (192, 8)] {
            bits.give_back(at, many);
        }
        assert!(bits.is_empty());
        assert_eq!(bits.take(200, 1), Some(0));
    }

    #[test]
    fn as_a_list_of_booleans_does() {
        let mut bits = GranuleBits::new(130);
        let mut list = [false; 130];
        let mut taken = Vec::new();
        let mut random = 1_u64;
        for _ in 0..many(20_000) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let draw = (random >> 33) as usize;
            if draw.is_multiple_of(2) && !taken.is_empty() {
                let (at, many) = taken.swap_remove(draw / 2 % taken.len());
                bits.give_back(at, many);
                list[at..at + many].fill(false);
            } else {
                let many = 1 + draw / 2 % 70;
                let align = 1 << (draw / 256 % 5);
                let fits = |&at: &usize| at + many <= 130 && !list[at..at + many].contains(&true);
                let at = (0..130).step_by(align).find(fits);
                assert_eq!(
                    bits.take(many, align),
                    at,
                    "{many} at a multiple of {align}"
                );
                if let Some(at) = at {
                    list[at..at + many].fill(true);
                    taken.push((at, many));
                }
            }
            assert_eq!(bits.is_empty(), taken.is_empty());
        }
    }
}
