//! Where slots lie: indices, pages of entries for each thread, and the header of each index.

use std::ptr;

use crate::numa::mapping::map_for_ever;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU32, AtomicU64 as StatU64};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, PAGE_SLOTS, PAGES_MAX, displace, place, process_const};
use crate::thread::audit::Cell as AuditCell;
use crate::thread::cells::{CellsPlace, CellsRow};
use crate::thread::gross::GrossCell;
use crate::thread::ledger::OwnedCell;
use crate::thread::pace::{Pace, Paces};
use crate::thread::raw::RawCell;
use crate::thread::slot::Slot;

/// Where a counter's slots lie in every thread's block. An index has two halves, because the hit path needs them apart.
/// Only this file makes one, so that the halves stay within their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotIndex {
    /// Below `PAGES_MAX`.
    page: u32,
    /// Below `PAGE_SLOTS`.
    slot: u32,
}

impl SlotIndex {
    pub(crate) const FIRST: SlotIndex = SlotIndex { page: 0, slot: 0 };

    /// An index that no thread has a slot for: it lies in the last page of a directory, which is never made.
    pub(crate) const NONE: SlotIndex = SlotIndex { page: PAGES_MAX as u32 - 1, slot: 0 };

    /// Where the header of the index lies, as a number: below 2^28, and a multiple of the size of a header. `None` for
    /// [`NONE`](Self::NONE).
    pub(crate) fn number(self) -> Option<u32> {
        const { assert!(PAGES_MAX <= 1 << 14 && PAGE_SLOTS * size_of::<Header>() <= 1 << PAGE_SHIFT) };
        (self != SlotIndex::NONE).then_some((self.page << PAGE_SHIFT) | (self.slot * size_of::<Header>() as u32))
    }

    /// The index of a number.
    ///
    /// # Safety
    ///
    /// [`number`](Self::number) has returned it.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn of_number(number: u32) -> SlotIndex {
        SlotIndex { page: number >> PAGE_SHIFT, slot: (number & IN_PAGE) / size_of::<Header>() as u32 }
    }

    pub(super) fn halves(self) -> [u32; 2] {
        [self.page, self.slot]
    }

    /// The index of these halves; `NONE` where there is none.
    pub(super) fn of_halves([page, slot]: [u32; 2]) -> SlotIndex {
        let is_one = page < SlotIndex::NONE.page && slot < PAGE_SLOTS as u32;
        if is_one { SlotIndex { page, slot } } else { SlotIndex::NONE }
    }

    /// The index after this one; `NONE` is the last.
    pub(crate) fn next(self) -> SlotIndex {
        if self == SlotIndex::NONE {
            self
        } else if self.slot + 1 < PAGE_SLOTS as u32 {
            SlotIndex { slot: self.slot + 1, ..self }
        } else {
            SlotIndex { page: self.page + 1, slot: 0 }
        }
    }
}

/// In a number that stands for an index: the bits of the page begin here, the others are the header's place in it.
const PAGE_SHIFT: u32 = 14;
const IN_PAGE: u32 = (1 << PAGE_SHIFT) - 1;

/// What the hit path reads of a counter: one for each slot index, never given back.
///
/// Headers lie densely, apart from the counters: a thread that charges thousands of counters in turn misses hardly
/// more than with a plain array. Written when the stock opens or closes.
#[repr(align(64))]
pub(crate) struct Header {
    /// Twice the batch while the stock is open, 0 while it is closed: the published state of the stock.
    pub(crate) capacity: AtomicU64,
    /// The slot index as the hit path sees it: `NONE` where every operation goes through the slow path. Written when a
    /// counter is made; the second half in bytes, which saves the hit path a shift.
    page: AtomicU32,
    offset: AtomicU32,
    /// The same for the cells of the statistics.
    cells_page: AtomicU32,
    cells_offset: AtomicU32,
    /// The number of the tree that the counter is in. Written when a counter is made.
    tree: AtomicU32,
    /// What an allocator keeps behind an object that the counter is charged for; 0: no such word exists. Written once, as
    /// `owner` is.
    word: AtomicU32,
    /// The counter that has this header: a slow path starts from it. Written once, before any other thread sees the
    /// header.
    owner: StatPtr<()>,
    /// The slot index as allocators see it: the same, but where a group covers. Its charges take no credit.
    objects_page: AtomicU32,
    objects_offset: AtomicU32,
    /// What threads without a block have allocated of owned bytes, and freed.
    allocated: StatU64,
    freed: StatU64,
}

const _: () = assert!(PAGE_SLOTS < 252 || size_of::<Header>() == 64);

impl Header {
    /// Closed, and bound to no counter.
    pub(crate) fn new() -> Self {
        let header = Header {
            capacity: AtomicU64::new(0),
            page: AtomicU32::new(0),
            offset: AtomicU32::new(0),
            cells_page: AtomicU32::new(0),
            cells_offset: AtomicU32::new(0),
            tree: AtomicU32::new(0),
            word: AtomicU32::new(0),
            owner: StatPtr::new(ptr::null_mut()),
            objects_page: AtomicU32::new(0),
            objects_offset: AtomicU32::new(0),
            allocated: StatU64::new(0),
            freed: StatU64::new(0),
        };
        header.set_index(SlotIndex::NONE);
        header.set_objects_index(SlotIndex::NONE);
        header.set_cells_index(SlotIndex::NONE);
        header
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

    /// Counts owned bytes for a thread without a block.
    pub(crate) fn count_allocated(&self, n: u64) {
        self.allocated.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count_freed(&self, n: u64) {
        self.freed.fetch_add(n, Ordering::Relaxed);
    }

    /// Owned bytes that threads without a block have freed, then what they have allocated.
    pub(crate) fn owned_counts(&self) -> (u64, u64) {
        let freed = self.freed.load(Ordering::Relaxed);
        (freed, self.allocated.load(Ordering::Relaxed))
    }

    /// The number of the tree that the counter is in, or was in before it was released.
    #[inline]
    pub(crate) fn tree(&self) -> u32 {
        self.tree.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tree(&self, number: u32) {
        self.tree.store(number, Ordering::Relaxed);
    }

    /// Shows an index to the hit path.
    pub(crate) fn set_index(&self, index: SlotIndex) {
        self.page.store(index.page, Ordering::Relaxed);
        self.offset.store(index.slot * size_of::<Slot>() as u32, Ordering::Relaxed);
    }

    /// Shows an index to the hit path of allocators.
    pub(crate) fn set_objects_index(&self, index: SlotIndex) {
        self.objects_page.store(index.page, Ordering::Relaxed);
        self.objects_offset.store(index.slot * size_of::<Slot>() as u32, Ordering::Relaxed);
    }

    /// Where a slot lies as the hit path of allocators sees it.
    #[inline(always)]
    pub(crate) fn objects_place(&self) -> SlotPlace {
        SlotPlace {
            page: self.objects_page.load(Ordering::Relaxed),
            offset: self.objects_offset.load(Ordering::Relaxed),
        }
    }

    /// Where a slot lies as the hit path sees it.
    #[inline(always)]
    pub(crate) fn place(&self) -> SlotPlace {
        SlotPlace { page: self.page.load(Ordering::Relaxed), offset: self.offset.load(Ordering::Relaxed) }
    }

    /// Shows an index of cells to the hit path.
    pub(crate) fn set_cells_index(&self, index: SlotIndex) {
        self.cells_page.store(index.page, Ordering::Relaxed);
        self.cells_offset.store(index.slot * size_of::<CellsPlace>() as u32, Ordering::Relaxed);
    }
}

/// The halves of an index, the second in bytes. Only a [`Header`] makes one, so the halves are within their bounds.
/// A hit that needs two entries reads the header once.
#[derive(Clone, Copy)]
pub(crate) struct SlotPlace {
    page: u32,
    offset: u32,
}

process_const!(pub(super) headers: Headers = Headers::new());

/// The header of each index, by page. A thread that finds credit in a slot finds the slot's counter here.
pub(super) struct Headers {
    pages: [StatPtr<Header>; PAGES_MAX],
}

impl Headers {
    /// What is not written takes address space only.
    const fn new() -> Headers {
        Headers { pages: [const { StatPtr::new(ptr::null_mut()) }; PAGES_MAX] }
    }

    /// Publishes the page that begins with `first`, an index that begins a page.
    pub(super) fn publish(&self, first: SlotIndex, page: &'static [Header]) {
        debug_assert!(first.slot == 0 && page.len() == PAGE_SLOTS, "a page holds all its indices");
        self.pages[first.page as usize].store(page.as_ptr().cast_mut(), Ordering::Relaxed);
    }

    /// The caller has found credit in a slot of the index.
    #[allow(unsafe_code)]
    pub(super) fn get(&self, index: SlotIndex) -> Option<&'static Header> {
        // No edge: the credit is later than the page, and the caller has read it (E2, E3) or put it there.
        let page = self.pages[index.page as usize].load(Ordering::Relaxed);
        // SAFETY: null, or the first of `PAGE_SLOTS` headers that live for ever, as `publish` asserts; `slot` is below
        // that, see `SlotIndex`.
        unsafe { page.wrapping_add(index.slot as usize).as_ref().filter(|_| !page.is_null()) }
    }

    /// The header of the index that a number stands for: [`get`](Self::get) without the test whether there is a page.
    ///
    /// # Safety
    ///
    /// [`SlotIndex::number`] has returned the number, for a header that the caller has been shown.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) unsafe fn of_number(&self, number: u32) -> &'static Header {
        // SAFETY: says the caller, and as in `get`.
        unsafe {
            let page = self.pages.get_unchecked((number >> PAGE_SHIFT) as usize).load(Ordering::Relaxed);
            &*page.byte_add((number & IN_PAGE) as usize)
        }
    }
}

/// Cells and rows of cells are found by the same offset.
const _: () = assert!(size_of::<CellsPlace>() == size_of::<CellsRow>());

/// What lies in pages.
pub(crate) trait PageEntry {
    /// What a page has behind its entries.
    type Behind: Default;
}

impl PageEntry for Slot {
    type Behind = Paces;
}

impl PageEntry for AuditCell {
    type Behind = ();
}

impl PageEntry for RawCell {
    type Behind = ();
}

impl PageEntry for GrossCell {
    type Behind = ();
}

impl PageEntry for OwnedCell {
    type Behind = ();
}

impl PageEntry for CellsPlace {
    type Behind = ();
}

impl PageEntry for CellsRow {
    type Behind = ();
}

/// Aligned so that no two threads share a line, nor a pair of lines. The entries come first.
#[repr(C, align(128))]
struct Page<T: PageEntry> {
    entries: [T; PAGE_SLOTS],
    behind: T::Behind,
}

/// As large as a page of the system's, where it is not small for a model.
const _: () = assert!(PAGE_SLOTS < 252 || size_of::<Page<Slot>>() == 4_096);

/// The pages of one thread, by index. All zero when empty.
pub(crate) struct Directory<T: PageEntry> {
    pages: [AtomicPtr<Page<T>>; PAGES_MAX],
    /// How many pages there are. The owner stores it, and what follows.
    made: AtomicU32,
    /// Which parts of `pages` have been written to, a bit each: the others are address space only.
    touched: AtomicU32,
}

/// Pointers that share a bit of `touched`: as many as fit into a page of the system's, of 4 KiB.
const PART: usize = PAGES_MAX.div_ceil(u32::BITS as usize);

impl<T: PageEntry> Directory<T> {
    pub(crate) fn new() -> Self {
        Directory {
            pages: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            made: AtomicU32::new(0),
            touched: AtomicU32::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let pages = u64::from(self.made.load(Ordering::Relaxed)) * size_of::<Page<T>>() as u64;
        let parts = u64::from(self.touched.load(Ordering::Relaxed).count_ones());
        pages + parts * (PART * size_of::<*const Page<T>>()) as u64
    }

    /// The entry of an index, if its page exists.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self, index: SlotIndex) -> Option<&T> {
        // SAFETY: the halves of an index are within their bounds, see `SlotIndex`.
        let place = unsafe { self.pages.get_unchecked(index.page as usize) };
        // Acquire (E7): another thread sees the page initialised; pairs with the store in `get_or_make`.
        let page = place.load(Ordering::Acquire);
        // SAFETY: a page is published initialised and lives as long as its directory; as above for `slot`.
        unsafe { Some(page.as_ref()?.entries.get_unchecked(index.slot as usize)) }
    }

    /// Every entry that has a page, in the order of the indices. What the owner makes meanwhile may be missing.
    #[allow(unsafe_code)]
    pub(crate) fn made(&self) -> impl Iterator<Item = (SlotIndex, &T)> {
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
            entries.iter().zip(0..).map(move |(entry, slot)| (SlotIndex { page, slot }, entry))
        })
    }

    /// Returns the entry of an index, and makes its page where there is none. Owner only. The page comes from the system:
    /// an allocator may call this.
    #[allow(unsafe_code)]
    pub(crate) fn get_or_make(&self, index: SlotIndex, fill: impl Fn() -> T) -> Option<&T> {
        if index == SlotIndex::NONE {
            return None;
        }
        let pointer = self.pages.get(index.page as usize)?;
        // Relaxed: only the owner stores the pointer.
        if pointer.load(Ordering::Relaxed).is_null() {
            let make = || Page { entries: std::array::from_fn(|_| fill()), behind: T::Behind::default() };
            // SAFETY: the map gives whole pages of the system, zeroed and for ever.
            let page = unsafe { place(map_for_ever::<Page<T>>, make) }?;
            // Release (E7): pairs with `get`.
            // Mutation: e7-page-published-relaxed
            pointer.store(page, Ordering::Release);
            self.made.store(self.made.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            let part = 1 << (index.page as usize / PART);
            self.touched.store(self.touched.load(Ordering::Relaxed) | part, Ordering::Relaxed);
        }
        self.get(index)
    }
}

impl Directory<Slot> {
    /// The slot behind a header as allocators see it.
    pub(crate) fn behind_objects(&self, header: &Header) -> Option<&Slot> {
        let SlotPlace { page, offset } = header.objects_place();
        // SAFETY: as in `behind`, with `Header::set_objects_index`.
        #[allow(unsafe_code)]
        unsafe {
            self.at(page, offset)
        }
    }

    /// How much the next refill of a slot takes, if its page exists.
    #[allow(unsafe_code)]
    pub(crate) fn pace(&self, index: SlotIndex) -> Option<Pace<'_>> {
        // Acquire (E7): as in `get`.
        let page = self.pages[index.page as usize].load(Ordering::Acquire);
        // SAFETY: as in `get`.
        unsafe { Some(page.as_ref()?.behind.of(index.slot as usize)) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn behind(&self, header: &Header) -> Option<&Slot> {
        // SAFETY: `Header::set_index` is the only writer and stores the halves of an index, which are within their
        // bounds.
        unsafe { self.at(header.page.load(Ordering::Relaxed), header.offset.load(Ordering::Relaxed)) }
    }

    /// [`behind`](Self::behind) without the test whether there is a page.
    ///
    /// # Safety
    ///
    /// The caller is the owner, which has made the page.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn at_made(&self, place: SlotPlace) -> &Slot {
        // SAFETY: as above; the page is there, says the caller. Relaxed: the owner made it.
        unsafe {
            let page = self.pages.get_unchecked(place.page as usize).load(Ordering::Relaxed);
            &*page.cast::<Slot>().byte_add(place.offset as usize)
        }
    }
}

/// Cells of this kind are found by the offset of the slot.
pub(crate) trait BesideSlot: PageEntry {}

impl BesideSlot for RawCell {}
impl BesideSlot for OwnedCell {}

impl<T: BesideSlot> Directory<T> {
    /// The cell with the index of the slot at a place.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn at_slot(&self, SlotPlace { page, offset }: SlotPlace) -> Option<&T> {
        const { assert!(PAGE_SLOTS < 252 || size_of::<T>() == size_of::<Slot>()) };
        // SAFETY: as above; a cell is as large as a slot.
        unsafe { self.at(page, offset) }
    }
}

impl Directory<CellsPlace> {
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn behind(&self, header: &Header) -> Option<&CellsPlace> {
        // SAFETY: as above, with `Header::set_cells_index`.
        unsafe { self.at(header.cells_page.load(Ordering::Relaxed), header.cells_offset.load(Ordering::Relaxed)) }
    }
}

impl Directory<CellsRow> {
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn behind(&self, header: &Header) -> Option<&CellsRow> {
        // SAFETY: as above; a row is as large as a place of cells.
        unsafe { self.at(header.cells_page.load(Ordering::Relaxed), header.cells_offset.load(Ordering::Relaxed)) }
    }
}

impl<T: PageEntry> Directory<T> {
    /// # Safety
    ///
    /// The halves are those of an index, the second in bytes.
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn at(&self, page: u32, offset: u32) -> Option<&T> {
        // SAFETY: within its bounds, says the caller.
        let place = unsafe { self.pages.get_unchecked(page as usize) };
        // Acquire (E7): as in `get`.
        let page = place.load(Ordering::Acquire);
        if page.is_null() {
            return None;
        }
        // SAFETY: a page once read is published initialised and lives as long as its directory; the offset is that of
        // an entry, says the caller.
        Some(unsafe { &*page.cast::<T>().byte_add(offset as usize) })
    }
}

impl<T: PageEntry> Drop for Directory<T> {
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
