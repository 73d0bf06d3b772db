//! The block of a thread: its transit word, the slots of its stocks, its audit cells and its cells of statistics.
//!
//! A block belongs to a thread id, and outlives the thread: see `registry`.

use std::ptr;

use crate::sync::stat_atomic::{AtomicBool, AtomicU64};
use crate::sync::{Ordering, box_zeroed, stand_in};
use crate::thread::audit::Cell as AuditCell;
use crate::thread::cells::{CellsPlace, CellsRow, ThreadStats};
use crate::thread::directory::{Directory, Header, SlotIndex};
use crate::thread::raw::RawCell;
use crate::thread::slot::Slot;
use crate::thread::transit::Transit;

pub(crate) struct Block {
    pub(crate) transit: Transit,
    /// The number of the thread, which another thread gets once this one has ended.
    pub(super) id: u32,
    /// The next older block, null behind the oldest. Blocks are only ever added.
    pub(super) next: *const Block,
    /// Its thread has ended, and no other thread has it yet.
    ended: AtomicBool,
    pub(crate) slots: Directory<Slot>,
    pub(crate) audit: Directory<AuditCell>,
    /// What the thread has charged and uncharged without a guard. A page is made after the page of `slots` that has the
    /// same indices.
    raw: Directory<RawCell>,
    /// Where the cells of a group are found.
    pub(crate) cells: Directory<CellsPlace>,
    rows: Directory<CellsRow>,
    /// Bytes of what rows point to. Stored by the owner.
    row_bytes: AtomicU64,
}

// SAFETY: `next` is written before the block is published and names a block of the same registry, which never drops one
// while it is shared; all else is atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Block {}
// SAFETY: as above; nothing in a block is tied to the thread that made it.
#[allow(unsafe_code)]
unsafe impl Send for Block {}

impl Block {
    /// Made in place: the directories are larger than a small thread's stack.
    #[allow(unsafe_code)]
    pub(super) fn new(id: u32, next: *const Block) -> Box<Block> {
        // SAFETY: all-zero bytes are the empty block: zero integers, null pointers.
        let mut block = unsafe { box_zeroed(Block::empty) };
        block.id = id;
        block.next = next;
        block
    }

    fn empty() -> Block {
        Block {
            transit: Transit::default(),
            id: 0,
            next: ptr::null(),
            ended: AtomicBool::new(false),
            slots: Directory::new(),
            audit: Directory::new(),
            raw: Directory::new(),
            cells: Directory::new(),
            rows: Directory::new(),
            row_bytes: AtomicU64::new(0),
        }
    }

    /// The number of the thread. A newer block has a larger one.
    pub(crate) fn number(&self) -> u32 {
        self.id
    }

    /// Whether the block has no thread. Another thread may take it at any moment.
    pub(crate) fn has_ended(&self) -> bool {
        // Relaxed: a hint. A visit claims the block's slots as it claims those of a thread that runs (E2).
        self.ended.load(Ordering::Relaxed)
    }

    /// Under the registry's lock.
    pub(super) fn set_ended(&self, ended: bool) {
        self.ended.store(ended, Ordering::Relaxed);
    }

    /// The number of the thread as a counter's sole charger: not zero.
    pub(crate) fn charger(&self) -> u64 {
        u64::from(self.id) + 1
    }

    #[inline(always)]
    pub(crate) fn slot(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get(index)
    }

    #[inline(always)]
    pub(crate) fn slot_behind(&self, header: &Header) -> Option<&Slot> {
        self.slots.behind(header)
    }

    /// Units for a refill that charges `n` of them: a batch, or less while the thread has refilled the slot seldom. Owner
    /// only.
    pub(crate) fn next_refill(&self, index: SlotIndex, n: u64, batch: u64) -> u64 {
        self.slots.pace(index).map_or(batch, |pace| pace.next_refill(n, batch))
    }

    /// What `with` returns for the slot behind a header and the cell of charges without a guard, where the thread has
    /// that cell. The test whether the cell is there stands for both.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn raw_behind<R>(&self, header: &Header, with: impl FnOnce(&Slot, &RawCell) -> R) -> Option<R> {
        let place = header.place();
        let cell = self.raw.at_slot(place)?;
        // SAFETY: the page of the cell is there, so `raw_or_make` has made the page of the slot before it.
        Some(with(unsafe { self.slots.at_made(place) }, cell))
    }

    /// The cell of charges without a guard, if its page exists.
    pub(crate) fn raw(&self, index: SlotIndex) -> Option<&RawCell> {
        self.raw.get(index)
    }

    /// Returns the cell of charges without a guard, and makes its page where there is none. Owner only. It allocates.
    pub(crate) fn raw_or_make(&self, index: SlotIndex) -> Option<&RawCell> {
        self.slots.get_or_make(index, Slot::vacant)?;
        self.raw.get_or_make(index, RawCell::default)
    }

    #[inline(always)]
    pub(crate) fn cells_behind(&self, header: &Header) -> Option<ThreadStats> {
        self.cells.behind(header)?.cells()
    }

    /// This thread's cells for memory on a node of the group behind a header, if it has any.
    #[inline(always)]
    pub(crate) fn cells_on_behind(&self, header: &Header, node: usize) -> Option<ThreadStats> {
        self.rows.behind(header)?.places()?.get(node)?.cells()
    }

    /// Where the cells for a group's memory on nodes are found, if this thread has a page for them.
    pub(crate) fn row(&self, index: SlotIndex) -> Option<&CellsRow> {
        self.rows.get(index)
    }

    /// Returns one place for each node, for the cells of a group's memory there, and makes them where there are none.
    /// Owner only. It allocates.
    pub(crate) fn row_or_make(&self, index: SlotIndex, nodes: usize) -> Option<&[CellsPlace]> {
        let (places, more) = self.rows.get_or_make(index, CellsRow::default)?.places_or_make(nodes);
        self.row_bytes.store(self.row_bytes.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
        Some(places)
    }

    /// Bytes of memory that the block takes: its head and the parts of its directories that were made.
    pub(super) fn bytes(&self) -> u64 {
        let Block { slots, audit, raw, cells, rows, .. } = self;
        let directories = [slots.bytes(), audit.bytes(), raw.bytes(), cells.bytes(), rows.bytes()];
        HEAD + directories.iter().sum::<u64>() + self.row_bytes.load(Ordering::Relaxed)
    }
}

/// A block without its directories: the page of the system's that its first words lie in.
const HEAD: u64 = 4_096;

stand_in! {
    /// Stands for the block of a thread that has none. Every look-up in it finds no page, which saves the hit path a
    /// test. It is all zero, so it takes address space only.
    #[allow(unsafe_code)]
    pub(super) no_block: Block =
        // SAFETY: as in `Block::new`.
        unsafe { std::mem::zeroed() }
}
