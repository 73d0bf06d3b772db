//! The owner's word: what an allocator keeps behind an object to find the group that is charged for
//! it.
//!
//! ```text
//! 0 (4) | page (14) | place of the header in its page (8) | 0 (5) | 1 (1)
//! ```
//!
//! The index is that of the group's first counter. It is one of the process and names one counter
//! for ever, whichever runtime uses it. The object's charge keeps the group in it, so the word
//! needs no generation. 0 stands for no group: a counter without an index has no word. The header
//! is found in two loads, without a test.

use crate::thread::directory::{Header, SlotIndex, headers};

const OWNED: u32 = 1;
/// The bits that a place of a header leaves free.
const MARKS: u32 = size_of::<Header>() as u32 - 1;

/// The word of the counter with that index; 0 where it has none.
pub(crate) fn word(index: SlotIndex) -> u32 {
    index.number().map_or(0, |number| OWNED | number)
}

/// The header that a word names.
///
/// # Safety
///
/// The word is not 0, and the caller has an object that is charged to the counter.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn header(word: u32) -> &'static Header {
    // No edge: the header is older than the object, which the program has handed to the caller.
    // SAFETY: says the caller.
    unsafe { headers().of_number(word & !MARKS) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_one_index() {
        let all = std::iter::successors(Some(SlotIndex::FIRST), |index| Some(index.next()));
        let indices = all
            .take_while(|&index| index != SlotIndex::NONE)
            .take(1_000);
        let mut words: Vec<u32> = indices.clone().map(word).collect();
        assert!(
            words
                .iter()
                .zip(indices)
                .all(|(&word, index)| Some(word & !MARKS) == index.number())
        );
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count, "each names another one");
        assert!(
            words.iter().all(|&word| word != 0 && word < 1 << 28),
            "four bits are free, and 0 names none"
        );
        assert_eq!(word(SlotIndex::NONE), 0);
    }
}
