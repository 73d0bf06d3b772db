//! The block of a thread: its transit word, the slots of its stocks, its audit cells and its cells
//! of statistics.
//!
//! A block belongs to a thread id, and outlives the thread: see `registry`.

use std::ops::Deref;

use crate::numa::mapping::map_for_ever;
use crate::sync::stat_atomic::{AtomicBool, AtomicU32 as StatU32, AtomicU64};
use crate::sync::{AtomicU32, Ordering, place_zeroed, stand_in};
use crate::thread::cells::{CellsPlace, CellsRow, ThreadStats};
use crate::thread::counts::UnownedCounts;
use crate::thread::directory::{Directory, EntryPlace, Header, SlotIndex};
use crate::thread::pace::Paces;
use crate::thread::raw::RawCell;
use crate::thread::slot::Slot;
use crate::thread::tally::Tally;
use crate::thread::transit::Transit;

/// The memory of one thread, where its hits store: those of two threads never write the same line.
/// The next thread with the number takes it over as it stands.
#[repr(C)]
pub(crate) struct Block {
    pub(crate) transit: OwnLines<Transit>,
    /// Bytes that no group owns, as the thread has counted them.
    pub(crate) unowned: OwnLines<UnownedCounts>,
    /// The number of the thread, which another thread gets once this one has ended.
    id: StatU32,
    /// 1: its thread has ended, and no other thread has it yet (E8).
    free: AtomicU32,
    /// The same as `free`, for readers to whom a late answer does no harm.
    ended: AtomicBool,
    /// Where a sweep has found credit last, as the halves of an index.
    credit_at: [StatU32; 2],
    pub(crate) slots: Directory<Slot, Paces>,
    pub(crate) audit: Directory<Tally>,
    /// Units that the thread has charged and uncharged without a guard. A page is made after the
    /// page of `slots` that has the same indices.
    raw: Directory<SlotSized<RawCell>>,
    /// Bytes of owned objects. A page is made after the page of `slots` that has the same indices.
    owned: Directory<SlotSized<Tally>>,
    /// Places of the cells of each group.
    pub(crate) cells: Directory<CellsPlace>,
    rows: Directory<CellsRow>,
    /// Bytes of what rows point to. Stored by the owner.
    row_bytes: AtomicU64,
}

/// Words that their thread writes all the time, on lines with no other that threads read: they pass
/// over blocks. A block is not aligned to lines, for the system gives zeroed memory untouched only
/// at its own alignment.
#[derive(Default)]
#[repr(C)]
pub(crate) struct OwnLines<T> {
    before: [u64; 8],
    value: T,
    after: [u64; 8],
}

impl<T> Deref for OwnLines<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// A cell as large as a slot, so that one offset finds both.
#[derive(Default)]
#[repr(C, align(32))]
pub(crate) struct SlotSized<T>(T);

impl<T> Deref for SlotSized<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Block {
    /// Makes a block in pages of the system: an allocator may need one. `None` where the system
    /// gives none.
    #[allow(unsafe_code)]
    pub(super) fn make() -> Option<&'static Block> {
        // Directories are tables of pointers, longer than most threads ever need. What of them is
        // not touched is address space and no memory, as long as nothing writes the zeroes.
        //
        // SAFETY: all-zero bytes are the empty block, zero integers and null pointers; `map` gives
        // whole pages for ever, and the directories are larger than a small thread's stack.
        unsafe { place_zeroed(map_for_ever::<Block>, Block::empty).map(|block| &*block) }
    }

    /// Sets the number of a block that no other thread can find yet.
    pub(super) fn set_number(&self, number: u32) {
        self.id.store(number, Ordering::Relaxed);
    }

    fn empty() -> Block {
        Block {
            transit: OwnLines::default(),
            unowned: OwnLines::default(),
            id: StatU32::new(0),
            free: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            credit_at: [StatU32::new(0), StatU32::new(0)],
            slots: Directory::new(),
            audit: Directory::new(),
            raw: Directory::new(),
            owned: Directory::new(),
            cells: Directory::new(),
            rows: Directory::new(),
            row_bytes: AtomicU64::new(0),
        }
    }

    /// The number of the block, and of its thread. A newer block has a larger one.
    pub(crate) fn number(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// True if the block has no thread. Another thread may take it at any moment.
    pub(crate) fn has_ended(&self) -> bool {
        // Relaxed: a hint. A visit claims the block's slots as it claims those of a thread that
        // runs (E2).
        self.ended.load(Ordering::Relaxed)
    }

    /// Takes a block that has no thread, for the next thread or for a sweep. False where it has
    /// one, or another thread was first.
    pub(super) fn try_take(&self) -> bool {
        // Acquire (E8): pairs with `give_up`.
        let taken = self
            .free
            .compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            self.ended.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// The thread ends and leaves its words to the next one.
    pub(super) fn give_up(&self) {
        // Release (E8): pairs with `try_take`.
        // Mutation: e8-block-given-up-relaxed
        self.free.store(1, Ordering::Release);
        // The next thread may have the block by now, and this store may come after its own. So the
        // word is a hint: see `has_ended`.
        self.ended.store(true, Ordering::Relaxed);
    }

    /// True if there is credit where a sweep has found some before. A first look by one slot: where
    /// it finds any, no search is needed.
    pub(super) fn seems_to_hold_credit(&self) -> bool {
        // The two halves may be of two sweeps. For a first look any slot will do, and no index is
        // out of bounds.
        let at = SlotIndex::of_halves(
            self.credit_at
                .each_ref()
                .map(|half| half.load(Ordering::Relaxed)),
        );
        self.slots.get(at).is_some_and(|slot| slot.available() > 0)
    }

    /// True if there is credit in any slot. It looks through all of them, and remembers where it
    /// found some for [`seems_to_hold_credit`](Self::seems_to_hold_credit).
    pub(super) fn holds_credit(&self) -> bool {
        // The first one will do: the question is whether drains have to visit this block, and they
        // look at every slot then.
        let found = self.slots.made().find(|(_, slot)| slot.available() > 0);
        if let Some((at, _)) = found {
            let halves = self.credit_at.iter().zip(at.halves());
            halves.for_each(|(half, now)| half.store(now, Ordering::Relaxed));
        }
        found.is_some()
    }

    /// The indices of slots that are not vacant.
    pub(super) fn active_slots(&self) -> impl Iterator<Item = SlotIndex> {
        self.slots
            .made()
            .filter(|(_, slot)| !slot.is_vacant())
            .map(|(index, _)| index)
    }

    /// The thread as a counter's sole charger: its number plus 1, because 0 says that nobody has
    /// charged the counter.
    pub(crate) fn charger(&self) -> u64 {
        u64::from(self.number()) + 1
    }

    /// The number of the thread that is a counter's sole charger. `None`: nobody has charged it, or
    /// several threads have.
    pub(crate) fn number_of_charger(charger: u64) -> Option<u32> {
        u32::try_from(charger.checked_sub(1)?).ok()
    }

    #[inline(always)]
    pub(crate) fn slot(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get(index)
    }

    #[inline(always)]
    pub(crate) fn slot_behind(&self, header: &Header) -> Option<&Slot> {
        self.slots.at(&header.slots.get())
    }

    /// The slot behind a header as allocators see it.
    pub(crate) fn objects_slot_behind(&self, header: &Header) -> Option<&Slot> {
        self.slots.at(&header.objects.get())
    }

    /// Units that a refill takes for a charge of `n`, at most `most`: a batch, or less while the
    /// thread has refilled the slot seldom. Owner only.
    pub(crate) fn next_refill(&self, index: SlotIndex, n: u64, batch: u64, most: u64) -> u64 {
        self.slots
            .pace(index)
            // Without a page there is no slot to fill, so the number does not matter.
            .map_or(most, |pace| pace.next_refill(n, batch, most))
    }

    /// Calls `with` for the slot at a place of a header and for the cell beside it, where the
    /// thread has that cell. A hit that needs both pays for one test: where the cell is, the slot
    /// is, too.
    ///
    /// # Safety
    ///
    /// The owner calls, and makes a page of such cells after the page of the slots.
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn both_at<T, R>(
        &self,
        cells: &Directory<SlotSized<T>>,
        place: &EntryPlace<Slot>,
        with: impl FnOnce(&Slot, &T) -> R,
    ) -> Option<R> {
        let cell = cells.at(place)?;
        // SAFETY: the page of the cell is there, so that of the slot is, says the caller.
        Some(with(unsafe { self.slots.at_made(place) }, cell))
    }

    /// The result of `with` for the slot behind a header and the cell of charges without a guard,
    /// where the thread has that cell. Owner only.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn raw_behind<R>(
        &self,
        header: &Header,
        with: impl FnOnce(&Slot, &RawCell) -> R,
    ) -> Option<R> {
        // SAFETY: `raw_or_make` makes the page of the slots first.
        unsafe { self.both_at(&self.raw, &header.slots.get(), with) }
    }

    /// The cell of charges without a guard, if its page exists.
    pub(crate) fn raw(&self, index: SlotIndex) -> Option<&RawCell> {
        self.raw.get(index).map(Deref::deref)
    }

    /// Returns the cell of charges without a guard, and makes its page where there is none. Owner
    /// only. It allocates.
    pub(crate) fn raw_or_make(&self, index: SlotIndex) -> Option<&RawCell> {
        // The page of the slots first: a hit tests for the cell alone.
        self.slots.get_or_make(index, Slot::vacant)?;
        self.raw
            .get_or_make(index, SlotSized::default)
            .map(Deref::deref)
    }

    /// As [`raw_behind`](Self::raw_behind), with the cell of owned bytes.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn owned_behind<R>(
        &self,
        header: &Header,
        with: impl FnOnce(&Slot, &Tally) -> R,
    ) -> Option<R> {
        // SAFETY: `owned_or_make` makes the page of the slots first.
        unsafe { self.both_at(&self.owned, &header.objects.get(), with) }
    }

    /// The cell of owned bytes, if its page exists.
    pub(crate) fn owned(&self, index: SlotIndex) -> Option<&Tally> {
        self.owned.get(index).map(Deref::deref)
    }

    /// Returns the cell of owned bytes, and makes its page where there is none. Owner only.
    pub(crate) fn owned_or_make(&self, index: SlotIndex) -> Option<&Tally> {
        // The page of the slots first: a hit tests for the cell alone.
        self.slots.get_or_make(index, Slot::vacant)?;
        self.owned
            .get_or_make(index, SlotSized::default)
            .map(Deref::deref)
    }

    #[inline(always)]
    pub(crate) fn cells_behind(&self, header: &Header) -> Option<ThreadStats> {
        self.cells.at(&header.cells.get())?.cells()
    }

    /// This thread's cells for memory on a node of the group behind a header, if it has any.
    #[inline(always)]
    pub(crate) fn cells_on_behind(&self, header: &Header, node: usize) -> Option<ThreadStats> {
        self.row_behind(header)?.get(node)?.cells()
    }

    /// The places of this thread's cells for memory on nodes of the group behind a header, if it has
    /// a row.
    #[inline(always)]
    pub(crate) fn row_behind(&self, header: &Header) -> Option<&[CellsPlace]> {
        self.rows.at(&header.cells.get())?.places()
    }

    /// Places of the cells for a group's memory on nodes, if this thread has a page for them.
    pub(crate) fn row(&self, index: SlotIndex) -> Option<&CellsRow> {
        self.rows.get(index)
    }

    /// Returns one place for each node, for the cells of a group's memory there, and makes them
    /// where there are none. Owner only. It allocates.
    pub(crate) fn row_or_make(&self, index: SlotIndex, nodes: usize) -> Option<&[CellsPlace]> {
        // What a row points to is counted here and not in the row: `bytes` would have to visit
        // every row of every page, and a row may be made while it does.
        let (places, more) = self
            .rows
            .get_or_make(index, CellsRow::default)?
            .places_or_make(nodes);
        self.row_bytes.store(
            self.row_bytes
                .load(Ordering::Relaxed)
                .wrapping_add_signed(more),
            Ordering::Relaxed,
        );
        Some(places)
    }

    /// Bytes of memory that the block takes: its head and the parts of its directories that were
    /// made.
    pub(super) fn bytes(&self) -> u64 {
        let Block {
            slots,
            audit,
            raw,
            owned,
            cells,
            rows,
            ..
        } = self;
        let of_charges = slots.bytes() + audit.bytes() + raw.bytes() + owned.bytes();
        HEAD + of_charges + cells.bytes() + rows.bytes() + self.row_bytes.load(Ordering::Relaxed)
    }
}

/// A block without its directories: the page of the system's that its first words lie in.
const HEAD: u64 = 4_096;

stand_in! {
    /// Stands for the block of a thread that has none. Every look-up in it finds no page, which
    /// saves the hit path a test. It is all zero, so it takes address space only.
    #[allow(unsafe_code)]
    pub(super) no_block: Block =
        // SAFETY: as in `Block::make`.
        unsafe { std::mem::zeroed() }
}
