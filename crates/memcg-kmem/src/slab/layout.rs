//! The layout of a page of a slab: arithmetic.
//!
//! ```text
//! | head | words: the holder of each slot | slots | left over |
//! ```

use crate::mapping::assert_page_aligns;
use crate::mapping::page_size;
use memcg::kmem::{Kmem, PackedKmem};

/// Ends a list of slots.
pub(super) const END: u32 = u32::MAX;

/// The fewest slots of a page, if a page of moderate size has room for them.
const SLOTS_MIN: usize = 8;

/// No page grows beyond this to have more slots.
const PAGE_MODERATE: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct PageLayout {
    pub(super) page: usize,
    pub(super) slots: u32,
    /// Offset of the first word.
    pub(super) words: usize,
    /// Offset of the first slot.
    pub(super) first: usize,
    /// Bytes charged for an object.
    pub(super) object: u64,
}

/// The word of a slot: its holder, and the holder's account.
pub(super) enum SlotWord {
    /// The slot is free, and this is the next free one.
    Free(u32),
    /// The slot has a holder, and no account yet.
    Taken,
    Held(PackedKmem),
    /// A thread is moving the account; the slot's holder does not take part.
    Moving,
    /// The holder has given the slot back meanwhile: the thread that moves the account ends it.
    Gone,
}

impl SlotWord {
    /// A slot whose holder has this account.
    #[inline]
    pub(super) fn of(kmem: Kmem) -> SlotWord {
        // An account of some bytes on one node has two words. Any other ends here.
        kmem.pack().map_or(SlotWord::Taken, SlotWord::Held)
    }
}

impl PageLayout {
    /// The smallest page with some slots; one slot where objects are large. Nothing overflows: a
    /// page that is too large is never mapped.
    pub(super) fn of<T>(head: usize) -> PageLayout {
        // `with` rounds the offset of the first slot, and the page itself is aligned to a page of
        // the system and no more.
        const { assert_page_aligns::<T>() };
        let mut page = page_size().max(4_096);
        loop {
            let layout = PageLayout::fit::<T>(head, page);
            if layout.slots as usize >= SLOTS_MIN || page >= PAGE_MODERATE && layout.slots > 0 {
                return layout;
            }
            page = match page.checked_mul(2) {
                Some(larger) if larger <= isize::MAX.unsigned_abs() => larger,
                _ => {
                    return PageLayout {
                        page: usize::MAX,
                        ..PageLayout::with::<T>(head, 1)
                    };
                }
            };
        }
    }

    fn fit<T>(head: usize, page: usize) -> PageLayout {
        let room = page.saturating_sub(head);
        let most = room / (size_of::<T>() + size_of::<SlotWord>());
        let layouts = (0..=most.min(END as usize - 1))
            .rev()
            .map(|slots| PageLayout::with::<T>(head, slots));
        // Alignment and rounding take less than a few slots.
        let fits = layouts
            .take(align_of::<T>() + 64)
            .find(|layout| layout.end::<T>() <= page);
        PageLayout {
            page,
            ..fits.unwrap_or(PageLayout::with::<T>(head, 0))
        }
    }

    fn with<T>(head: usize, slots: usize) -> PageLayout {
        // Each object pays the same part of the head.
        let part = head.div_ceil(slots.max(1));
        let words = (part * slots.max(1)).next_multiple_of(align_of::<SlotWord>());
        let first = (words + slots * size_of::<SlotWord>()).next_multiple_of(align_of::<T>());
        let object = (size_of::<T>() + size_of::<SlotWord>() + part) as u64;
        PageLayout {
            page: 0,
            slots: u32::try_from(slots).unwrap_or(0),
            words,
            first,
            object,
        }
    }

    fn end<T>(&self) -> usize {
        self.first
            .saturating_add((self.slots as usize).saturating_mul(size_of::<T>()))
    }
}
