//! The owner's word: what an allocator keeps behind an object to find the group that is charged for it.
//!
//! ```text
//! 0 (4) | page (14) | place of the header in its page (8) | 0 (4) | by number (1) | by index (1)
//! 0 (4)               | number of the object (26)                               | 1             | 0        without index
//! ```
//!
//! The index is that of the group's first counter. Either number is one of the process and names one object for ever,
//! whichever runtime uses the object. The object's charge keeps the group in it, so the word needs no generation. 0
//! stands for no group. The header of an index is found in two loads, without a test.

use crate::thread::directory::{Header, SlotIndex, headers};

const BY_INDEX: u32 = 1 << 0;
const BY_NUMBER: u32 = 1 << 1;
/// The bits that a place of a header leaves free.
const MARKS: u32 = size_of::<Header>() as u32 - 1;
const NUMBER_SHIFT: u32 = 2;
const NUMBER_MAX: u32 = (1 << 26) - 1;

/// The word of the counter with that index, first of the object with that number; 0 where no word can name it.
pub(crate) fn word(index: SlotIndex, number: u32) -> u32 {
    match index.number() {
        Some(index) => BY_INDEX | index,
        None if number <= NUMBER_MAX => BY_NUMBER | (number << NUMBER_SHIFT),
        None => 0,
    }
}

/// The number of an object of a pool that a word names without an index.
pub(crate) fn number(word: u32) -> u32 {
    word >> NUMBER_SHIFT
}

/// True if [`header`] takes the word.
#[inline(always)]
pub(crate) fn is_by_index(word: u32) -> bool {
    word & BY_INDEX != 0
}

/// The header that a word names by its index.
///
/// # Safety
///
/// [`is_by_index`], and the caller has an object that is charged to the counter.
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
    fn a_word_names_one_index_or_one_number() {
        let all = std::iter::successors(Some(SlotIndex::FIRST), |index| Some(index.next()));
        let indices = all.take_while(|&index| index != SlotIndex::NONE).take(1_000);
        let mut words: Vec<u32> = indices.clone().map(|index| word(index, 7)).collect();
        assert!(words.iter().zip(indices).all(|(&word, index)| Some(word & !MARKS) == index.number()));
        for number in [0, 7, NUMBER_MAX] {
            words.push(word(SlotIndex::NONE, number));
            let word = *words.last().unwrap();
            assert!(!is_by_index(word) && super::number(word) == number);
        }
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count, "each names another one");
        assert!(words.iter().all(|&word| word != 0 && word < 1 << 28), "four bits are free, and 0 names none");
        assert_eq!(word(SlotIndex::NONE, NUMBER_MAX + 1), 0);
    }
}
