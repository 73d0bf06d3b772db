//! Places of slots: indices, pages of entries for each thread, and the header of each index.

use std::marker::PhantomData;
use std::ptr;

use crate::numa::mapping::map_for_ever;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU32};
use crate::sync::{
    AtomicPtr, AtomicU64, Ordering, PAGE_SLOTS, PAGES_MAX, displace, place, process_const,
};
use crate::thread::cells::CellsPlace;
use crate::thread::pace::{Pace, Paces};
use crate::thread::slot::Slot;
use crate::thread::tally::Tally;

/// Place of a counter's slots in every thread's block. An index has two halves, because the hit
/// path needs them apart. Only this file makes one, so that the halves stay within their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotIndex {
    /// Below `PAGES_MAX`.
    page: u32,
    /// Below `PAGE_SLOTS`.
    slot: u32,
}

impl SlotIndex {
    pub(crate) const FIRST: SlotIndex = SlotIndex { page: 0, slot: 0 };

    /// An index that no thread has a slot for: it lies in the last page of a directory, which is
    /// never made.
    pub(crate) const NONE: SlotIndex = SlotIndex {
        page: PAGES_MAX as u32 - 1,
        slot: 0,
    };

    /// Place of the header of the index, as a number: below 2^28, and a multiple of the size of a
    /// header. `None` for [`NONE`](Self::NONE).
    pub(crate) fn number(self) -> Option<u32> {
        const { assert!(PAGES_MAX <= 1 << 14 && PAGE_SLOTS * size_of::<Header>() <= 1 << PAGE_SHIFT) };
        (self != SlotIndex::NONE)
            .then_some((self.page << PAGE_SHIFT) | (self.slot * size_of::<Header>() as u32))
    }

    /// The index of a [`number`](Self::number).
    pub(crate) fn of_number(number: u32) -> SlotIndex {
        SlotIndex::of_halves([
            // The word of an object may be asked for at each free, so it is shifts and a mask, and
            // no division by the number of slots in a page, which is no power of two.
            number >> PAGE_SHIFT,
            (number & IN_PAGE) / size_of::<Header>() as u32,
        ])
    }

    pub(super) fn halves(self) -> [u32; 2] {
        [self.page, self.slot]
    }

    /// The index of these halves; `NONE` where there is none.
    pub(super) fn of_halves([page, slot]: [u32; 2]) -> SlotIndex {
        let is_one = page < SlotIndex::NONE.page && slot < PAGE_SLOTS as u32;
        if is_one {
            SlotIndex { page, slot }
        } else {
            SlotIndex::NONE
        }
    }

    /// The index after this one; `NONE` is the last. Indices are given out in this order, so pages
    /// fill from the first one on, and a directory of few groups has few pages.
    pub(crate) fn next(self) -> SlotIndex {
        if self == SlotIndex::NONE {
            self
        } else if self.slot + 1 < PAGE_SLOTS as u32 {
            SlotIndex {
                slot: self.slot + 1,
                ..self
            }
        } else {
            SlotIndex {
                page: self.page + 1,
                slot: 0,
            }
        }
    }
}

/// In a number that stands for an index: the bits of the page begin here, the others are the
/// header's place in it.
const PAGE_SHIFT: u32 = 14;
const IN_PAGE: u32 = (1 << PAGE_SHIFT) - 1;

/// The words of a counter that the hit path reads: one for each slot index, never given back.
///
/// Headers lie densely, apart from the counters: a thread that charges thousands of counters in
/// turn misses hardly more than with a plain array. Written when the stock opens or closes.
#[repr(align(64))]
pub(crate) struct Header {
    /// Twice the batch while the stock is open, 0 while it is closed: the published state of the
    /// stock.
    pub(crate) capacity: AtomicU64,
    /// Place of the slots; none if every operation goes through the slow path.
    pub(crate) slots: ShownPlace<Slot>,
    /// Place of the cells of the statistics, or none.
    pub(crate) cells: ShownPlace<CellsPlace>,
    /// The number of the tree that the counter is in. Written when a counter is made.
    tree: AtomicU32,
    /// Word that an allocator keeps behind an object that the counter is charged for; 0: no such
    /// word exists. Written once, as `owner` is.
    word: AtomicU32,
    /// The counter that has this header: a slow path starts from it. Written once, before any other
    /// thread sees the header.
    owner: StatPtr<()>,
    /// Place of the slots for allocators: the same as `slots`, but in a group that covers, whose
    /// charges take no credit.
    pub(crate) objects: ShownPlace<Slot>,
    /// Owned objects that threads without a block have counted.
    pub(crate) owned: Tally,
}

const _: () = assert!(PAGE_SLOTS < 252 || size_of::<Header>() == 64);

impl Header {
    /// Closed, and bound to no counter.
    pub(crate) fn new() -> Self {
        Header {
            capacity: AtomicU64::new(0),
            slots: ShownPlace::new(),
            cells: ShownPlace::new(),
            tree: AtomicU32::new(0),
            word: AtomicU32::new(0),
            owner: StatPtr::new(ptr::null_mut()),
            objects: ShownPlace::new(),
            owned: Tally::default(),
        }
    }

    /// Ties the header to its owner and to a word for allocators, for ever.
    pub(crate) fn bind(&self, owner: *const (), word: u32) {
        self.owner.store(owner.cast_mut(), Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
    }

    /// The word that the header was tied to; 0 for none.
    #[inline(always)]
    pub(crate) fn word(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// Returns what the header was tied to; null where it was not tied.
    #[inline]
    pub(crate) fn owner(&self) -> *const () {
        self.owner.load(Ordering::Relaxed)
    }

    /// The number of the tree that the counter is in, or was in before it was released.
    #[inline]
    pub(crate) fn tree(&self) -> u32 {
        self.tree.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tree(&self, number: u32) {
        self.tree.store(number, Ordering::Relaxed);
    }
}

/// An index as the hit path sees it: the second half in bytes of entries of that type, which saves
/// the hit path a shift. Written when a counter is made.
pub(crate) struct ShownPlace<E> {
    page: AtomicU32,
    offset: AtomicU32,
    of: PhantomData<fn() -> E>,
}

/// The halves of a shown index. A hit that needs two entries reads the header once.
pub(crate) struct EntryPlace<E> {
    page: u32,
    offset: u32,
    of: PhantomData<fn() -> E>,
}

impl<E> ShownPlace<E> {
    fn new() -> Self {
        let nowhere = SlotIndex::NONE;
        ShownPlace {
            page: AtomicU32::new(nowhere.page),
            offset: AtomicU32::new(nowhere.slot),
            of: PhantomData,
        }
    }

    pub(crate) fn show(&self, index: SlotIndex) {
        self.page.store(index.page, Ordering::Relaxed);
        self.offset
            .store(index.slot * size_of::<E>() as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> EntryPlace<E> {
        let page = self.page.load(Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed);
        EntryPlace {
            page,
            offset,
            of: PhantomData,
        }
    }
}

// A page that is not written takes address space only.
process_const!(pub(super) headers: HeaderPages = HeaderPages { pages: [const { StatPtr::new(ptr::null_mut()) }; PAGES_MAX] });

/// The header of each index, by page. A thread that finds credit in a slot finds the slot's counter
/// here.
pub(super) struct HeaderPages {
    pages: [StatPtr<Header>; PAGES_MAX],
}

impl HeaderPages {
    /// Publishes the page that begins with `first`, an index that begins a page.
    pub(super) fn publish(&self, first: SlotIndex, page: &'static [Header]) {
        debug_assert!(
            first.slot == 0 && page.len() == PAGE_SLOTS,
            "a page holds all its indices"
        );
        self.pages[first.page as usize].store(page.as_ptr().cast_mut(), Ordering::Relaxed);
    }

    /// The caller has found credit in a slot of the index.
    #[allow(unsafe_code)]
    pub(super) fn get(&self, index: SlotIndex) -> Option<&'static Header> {
        // No edge: the credit is later than the page, and the caller has read it (E2, E3) or put it
        // there.
        let page = self.pages[index.page as usize].load(Ordering::Relaxed);
        // SAFETY: null, or the first of `PAGE_SLOTS` headers that live for ever, as `publish`
        // asserts; `slot` is below that, see `SlotIndex`.
        unsafe {
            page.wrapping_add(index.slot as usize)
                .as_ref()
                .filter(|_| !page.is_null())
        }
    }

    /// The header of the index that a number stands for: [`get`](Self::get) without the test
    /// whether there is a page.
    ///
    /// # Safety
    ///
    /// [`SlotIndex::number`] has returned the number, for a header that the caller has been shown.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) unsafe fn of_number(&self, number: u32) -> &'static Header {
        // SAFETY: says the caller, and as in `get`.
        unsafe {
            let page = self
                .pages
                .get_unchecked((number >> PAGE_SHIFT) as usize)
                .load(Ordering::Relaxed);
            &*page.byte_add((number & IN_PAGE) as usize)
        }
    }
}

/// Aligned so that no two threads share a line, nor a pair of lines. The entries come first.
#[repr(C, align(128))]
struct Page<T, B> {
    entries: [T; PAGE_SLOTS],
    behind: B,
}

/// Two pages of the system's, where it is not small for a model.
const _: () = assert!(PAGE_SLOTS < 252 || size_of::<Page<Slot, Paces>>() == 2 * 4_096);

/// The pages of one thread, by index; `B` is what a page has behind its entries. All zero when
/// empty.
pub(crate) struct Directory<T, B = ()> {
    pages: [AtomicPtr<Page<T, B>>; PAGES_MAX],
    /// Number of pages. The owner stores it, and what follows.
    made: AtomicU32,
    /// Which parts of `pages` have been written to, a bit each: the others are address space only.
    touched: AtomicU32,
}

/// Pointers that share a bit of `touched`: as many as fit into a page of the system's, of 4 KiB.
const PART: usize = PAGES_MAX.div_ceil(u32::BITS as usize);

impl<T, B: Default> Directory<T, B> {
    pub(crate) fn new() -> Self {
        Directory {
            pages: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            made: AtomicU32::new(0),
            touched: AtomicU32::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let pages = u64::from(self.made.load(Ordering::Relaxed)) * size_of::<Page<T, B>>() as u64;
        let parts = u64::from(self.touched.load(Ordering::Relaxed).count_ones());
        pages + parts * (PART * size_of::<*const Page<T, B>>()) as u64
    }

    /// The entry of an index, if its page exists.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self, index: SlotIndex) -> Option<&T> {
        // SAFETY: the halves of an index are within their bounds, see `SlotIndex`.
        let place = unsafe { self.pages.get_unchecked(index.page as usize) };
        // Acquire (E7): another thread sees the page initialised; pairs with the store in
        // `get_or_make`.
        let page = place.load(Ordering::Acquire);
        // SAFETY: a page is published initialised and lives as long as its directory; as above for
        // `slot`.
        unsafe { Some(page.as_ref()?.entries.get_unchecked(index.slot as usize)) }
    }

    /// Every entry that has a page, in the order of the indices. What the owner makes meanwhile may
    /// be missing.
    #[allow(unsafe_code)]
    pub(crate) fn made(&self) -> impl Iterator<Item = (SlotIndex, &T)> {
        // A directory has thousands of pointers, and most threads have made the first few pages.
        // The bits say which parts were written to, so that the search touches no page of pointers
        // that is address space only.
        let parts = self.touched.load(Ordering::Relaxed);
        let in_part = move |&page: &u32| parts >> (page as usize / PART) & 1 == 1;
        let pages = (0..PAGES_MAX as u32).filter(in_part).filter_map(|page| {
            // Acquire (E7): as in `get`.
            let entries = self.pages[page as usize].load(Ordering::Acquire);
            // SAFETY: as in `get`.
            unsafe { Some((page, entries.as_ref()?)) }
        });
        // The count ends the search: the pages of most threads are the first ones.
        let pages = pages.take(self.made.load(Ordering::Relaxed) as usize);
        pages.flat_map(|(page, Page { entries, .. })| {
            entries
                .iter()
                .zip(0..)
                .map(move |(entry, slot)| (SlotIndex { page, slot }, entry))
        })
    }

    /// Returns the entry of an index, and makes its page where there is none. Owner only. The page
    /// comes from the system and not from the allocator, which may be the one that calls this.
    #[inline]
    pub(crate) fn get_or_make(&self, index: SlotIndex, fill: impl Fn() -> T) -> Option<&T> {
        self.get(index).or_else(|| self.make(index, fill))
    }

    /// Makes the page of an index, which the owner has not found.
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    fn make(&self, index: SlotIndex, fill: impl Fn() -> T) -> Option<&T> {
        // The last page is never made, so that every look-up of this index misses: a counter
        // without slots costs the hit path no test of its own.
        if index == SlotIndex::NONE {
            return None;
        }
        let pointer = self.pages.get(index.page as usize)?;
        let empty = || Page {
            entries: std::array::from_fn(|_| fill()),
            behind: B::default(),
        };
        // SAFETY: the map gives whole pages of the system, zeroed and for ever.
        let page = unsafe { place(map_for_ever::<Page<T, B>>, empty) }?;
        // Release (E7): pairs with `get`.
        // Mutation: e7-page-published-relaxed
        pointer.store(page, Ordering::Release);
        // The owner alone stores both figures, so neither needs an exchange. A search that reads
        // them now may pass over this page.
        self.made
            .store(self.made.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let part = 1 << (index.page as usize / PART);
        self.touched.store(
            self.touched.load(Ordering::Relaxed) | part,
            Ordering::Relaxed,
        );
        self.get(index)
    }

    /// The entry at a place that is shown for entries of that size.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn at<E>(&self, &EntryPlace { page, offset, .. }: &EntryPlace<E>) -> Option<&T> {
        const { assert!(PAGE_SLOTS < 252 || size_of::<T>() == size_of::<E>()) };
        let offset = offset as usize;
        let shown = size_of::<E>();
        // A place has its offset in bytes of the entries that it is shown for, which saves the hit
        // a shift. Any other directory may use it only if its entries are as large; the assertion
        // above holds that outside of checkers.
        // The entries of a checker may differ in size.
        let offset = if size_of::<T>() == shown {
            offset
        } else {
            offset / shown * size_of::<T>()
        };
        // SAFETY: `ShownPlace::show` alone writes places, and stores the halves of an index, which
        // are within their bounds.
        let place = unsafe { self.pages.get_unchecked(page as usize) };
        // Acquire (E7): as in `get`.
        let page = place.load(Ordering::Acquire);
        // No entry: the thread has never used the counter, or the place is `NONE`. A test by the
        // caller, and not a page that stands for none, because what follows depends on the entry.
        if page.is_null() {
            return None;
        }
        // SAFETY: a page once read is published initialised and lives as long as its directory; the
        // offset is that of an entry, as above.
        Some(unsafe { &*page.cast::<T>().byte_add(offset) })
    }
}

impl Directory<Slot, Paces> {
    /// Size of the next refill of a slot, if its page exists.
    #[allow(unsafe_code)]
    pub(crate) fn pace(&self, index: SlotIndex) -> Option<Pace<'_>> {
        // Acquire (E7): as in `get`.
        let page = self.pages[index.page as usize].load(Ordering::Acquire);
        // SAFETY: as in `get`.
        unsafe { Some(page.as_ref()?.behind.of(index.slot as usize)) }
    }

    /// [`at`](Self::at) without the test whether there is a page.
    ///
    /// # Safety
    ///
    /// The caller is the owner, which has made the page.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn at_made(&self, place: &EntryPlace<Slot>) -> &Slot {
        // SAFETY: as in `at`; the page is there, says the caller. Relaxed: the owner made it.
        unsafe {
            let page = self
                .pages
                .get_unchecked(place.page as usize)
                .load(Ordering::Relaxed);
            &*page.cast::<Slot>().byte_add(place.offset as usize)
        }
    }
}

impl<T, B> Drop for Directory<T, B> {
    /// Runs in models only; the process's registry is never dropped.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for page in &self.pages {
            let page = page.load(Ordering::Relaxed);
            if !page.is_null() {
                // SAFETY: from `get_or_make`, and goes with its directory.
                unsafe { displace(page) };
            }
        }
    }
}
