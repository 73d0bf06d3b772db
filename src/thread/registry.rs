//! The registry of threads and what each thread owns: a transit word, the slots of its stocks, its cells.
//!
//! ```text
//! LOCAL (thread-local pointer) ──> Block ──> transit word
//!                                    ├────> directory[index / 256] ──> Page of 256 slots
//!                                    └────> directory[index / 256] ──> Page of 256 pointers to cells
//! ```
//!
//! A block belongs to a thread id. Ids and blocks outlive threads: what an ended thread leaves in its slots stays in
//! sight of every drain, and the next thread that gets the id inherits the words as they stand. The registry's mutex is
//! the hand-over edge. Blocks and pages are never freed while a thread of the process may run.
//!
//! Two thread-locals: `LOCAL` is const-initialised and has no destructor; `OWNER` has one, which clears the pointer
//! first and then releases the block. No block and `OWNER` out of reach: this thread is past its destructor.

#[cfg(not(any(loom, shuttle)))]
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::Cell;
use std::ptr;

use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicU32, AtomicU64};
use crate::sync::{AtomicPtr, Ordering, Registrar};
use crate::thread::audit::Cell as AuditCell;
use crate::thread::cells::{Cells, Place as CellsPlace, Row};
use crate::thread::context::Notes;
use crate::thread::directory::{Directory, Header, PAGE_SLOTS, SlotIndex};
use crate::thread::slot::Slot;
use crate::thread::transit::Transit;

/// What one thread id owns.
pub(crate) struct Block {
    pub(crate) transit: Transit,
    id: u32,
    /// The next older block. Blocks are only ever added.
    next: *const Block,
    slots: Directory<Slot>,
    audit: Directory<AuditCell>,
    cells: Directory<CellsPlace>,
    rows: Directory<Row>,
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
    /// On the heap without a copy on the stack: the directories are larger than a small thread's stack.
    #[allow(unsafe_code)]
    fn new(id: u32, next: *const Block) -> Box<Block> {
        #[cfg(not(any(loom, shuttle)))]
        {
            let layout = Layout::new::<Block>();
            // SAFETY: the layout is that of `Block`, which has a size; all-zero bytes are a valid one: zero integers,
            // null pointers. Zeroed memory of this size comes from the system untouched: an unused directory costs
            // address space only.
            let mut block = unsafe {
                let memory = alloc_zeroed(layout).cast::<Block>();
                if memory.is_null() {
                    handle_alloc_error(layout);
                }
                Box::from_raw(memory)
            };
            block.id = id;
            block.next = next;
            block
        }
        #[cfg(any(loom, shuttle))]
        Box::new(Block {
            transit: Transit::new(),
            id,
            next,
            slots: Directory::new(),
            audit: Directory::new(),
            cells: Directory::new(),
            rows: Directory::new(),
            row_bytes: AtomicU64::new(0),
        })
    }

    /// The thread as a counter's sole charger: not zero.
    pub(crate) fn charger(&self) -> u64 {
        u64::from(self.id) + 1
    }

    /// The slot of a counter, if this thread has a page for it.
    #[inline(always)]
    pub(crate) fn slot(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// The slot behind a header, if this thread has a page for it.
    #[inline(always)]
    pub(crate) fn slot_behind(&self, header: &Header) -> Option<&Slot> {
        self.slots.behind(header)
    }

    /// The slot of a counter, with a page of vacant slots where there is none yet. Owner only. Allocates.
    pub(crate) fn slot_or_page(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get_or_make(index, Slot::vacant)
    }

    pub(crate) fn audit(&self, index: SlotIndex) -> Option<&AuditCell> {
        self.audit.get(index)
    }

    pub(crate) fn audit_or_page(&self, index: SlotIndex) -> Option<&AuditCell> {
        self.audit.get_or_make(index, AuditCell::new)
    }

    /// This thread's cells of the group behind a header, if it has any.
    #[inline(always)]
    pub(crate) fn cells_behind(&self, header: &Header) -> Option<Cells> {
        self.cells.behind(header)?.cells()
    }

    /// Where the cells of a group are found, if this thread has a page for it.
    pub(crate) fn cells(&self, index: SlotIndex) -> Option<&CellsPlace> {
        self.cells.get(index)
    }

    pub(crate) fn cells_or_page(&self, index: SlotIndex) -> Option<&CellsPlace> {
        self.cells.get_or_make(index, CellsPlace::empty)
    }

    /// This thread's cells of the part on a node of the group behind a header, if it has any.
    #[inline(always)]
    pub(crate) fn cells_on_behind(&self, header: &Header, node: usize) -> Option<Cells> {
        self.rows.behind(header)?.places()?.get(node)?.cells()
    }

    /// Where the cells of a group's parts on nodes are found, if this thread has a page for them.
    pub(crate) fn row(&self, index: SlotIndex) -> Option<&Row> {
        self.rows.get(index)
    }

    /// As many places as there are nodes for the cells of a group's parts there. Owner only. Allocates.
    pub(crate) fn row_or_make(&self, index: SlotIndex, nodes: usize) -> Option<&[CellsPlace]> {
        let (places, more) = self.rows.get_or_make(index, Row::empty)?.places_or_make(nodes);
        self.row_bytes.store(self.row_bytes.load(Ordering::Relaxed).wrapping_add_signed(more), Ordering::Relaxed);
        Some(places)
    }

    /// Bytes of memory that the block has come to: its head and what was made of its directories.
    fn bytes(&self) -> u64 {
        let directories = [self.slots.bytes(), self.audit.bytes(), self.cells.bytes(), self.rows.bytes()];
        HEAD + directories.iter().sum::<u64>() + self.row_bytes.load(Ordering::Relaxed)
    }
}

/// A block without its directories: the page of the system's that its first words lie in.
const HEAD: u64 = 4_096;

/// Stands for a block where a thread has none: every look-up in it finds no page. Saves the hit path a test. All zero,
/// so it takes address space only.
#[cfg(not(any(loom, shuttle)))]
static NO_BLOCK: Block = Block {
    transit: Transit::new(),
    id: 0,
    next: ptr::null(),
    slots: Directory::new(),
    audit: Directory::new(),
    cells: Directory::new(),
    rows: Directory::new(),
    row_bytes: AtomicU64::new(0),
};

#[cfg(not(any(loom, shuttle)))]
const fn no_block() -> *const Block {
    &raw const NO_BLOCK
}

#[cfg(any(loom, shuttle))]
const fn no_block() -> *const Block {
    ptr::null()
}

/// The words that this thread reaches without a call.
pub(crate) struct Local {
    /// `no_block` before the first charge and after the destructor.
    block: Cell<*const Block>,
    /// Depth of slow paths on this thread's stack. A charge from an allocator or a callback inside one sees it above
    /// zero, takes no lock and waits for nothing.
    slow: Cell<u32>,
    /// This thread runs a pressure hook or reclaims.
    pub(crate) hook: Cell<bool>,
    /// Units that this thread has uncharged on slow paths beyond those that it has charged there; wraps.
    uncharged: Cell<u64>,
    /// What this thread has to bury once it holds nothing: a list through the dead themselves.
    release_queue: Cell<*const ()>,
    /// The last id that this thread gave out.
    pub(crate) last_id: Cell<u64>,
    /// What walks leave for the end of a slow path.
    pub(crate) notes: Notes,
    /// What it has taken from pools and has to tell.
    #[cfg(feature = "tracing")]
    pub(crate) taken: crate::thread::taken::AllTaken,
    /// Rank of the innermost lock that this thread holds; kept in debug builds.
    #[cfg(debug_assertions)]
    pub(crate) held: Cell<u8>,
}

impl Local {
    pub(crate) const fn new() -> Self {
        Local {
            block: Cell::new(no_block()),
            slow: Cell::new(0),
            hook: Cell::new(false),
            uncharged: Cell::new(0),
            release_queue: Cell::new(ptr::null()),
            last_id: Cell::new(0),
            notes: Notes::new(),
            #[cfg(feature = "tracing")]
            taken: crate::thread::taken::AllTaken::new(),
            #[cfg(debug_assertions)]
            held: Cell::new(0),
        }
    }

    /// This thread's block, once it has one.
    pub(crate) fn block(&self) -> Option<&Block> {
        if ptr::eq(self.block.get(), no_block()) { None } else { self.fast_block() }
    }

    /// This thread's block, or one without pages.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn fast_block(&self) -> Option<&Block> {
        let block = self.block.get();
        #[cfg(any(loom, shuttle))]
        if block.is_null() {
            return None;
        }
        // SAFETY: `NO_BLOCK`, or the pointer of a block that the registry never frees; `Owner` takes it away before it
        // releases the block to another thread.
        Some(unsafe { &*block })
    }
}

/// Runs `work` as a slow path of this thread. `nested` tells that it runs inside another one.
#[inline]
pub(crate) fn slow_path<R>(work: impl FnOnce(Option<&Block>, bool) -> R) -> R {
    struct Leave<'a>(&'a Local);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.slow.set(self.0.slow.get() - 1);
        }
    }
    crate::sync::with_local(|local| {
        let nested = local.slow.get() > 0;
        local.slow.set(local.slow.get() + 1);
        let _leave = Leave(local);
        let mut block = local.block();
        // Registration allocates and locks: never inside another slow path.
        if block.is_none() && !nested && crate::sync::owner() {
            block = local.block();
        }
        work(block, nested)
    })
}

/// This thread's block, once it has one.
pub(crate) fn with_block<R>(read: impl FnOnce(Option<&Block>) -> R) -> R {
    crate::sync::with_local(|local| read(local.block()))
}

/// The number of this thread's block, given out again when the thread has ended; 0 where it has none.
pub(crate) fn number() -> u32 {
    with_block(|block| block.map_or(0, |block| block.id))
}

/// Puts `first` in front of what this thread has to bury; returns what stood there.
pub(crate) fn exchange_release_queue(first: *const ()) -> *const () {
    crate::sync::with_local(|local| local.release_queue.replace(first))
}

/// Runs foreign code as a pressure hook or as a reclaimer, outside of any slow path. `None` inside another: pressure
/// does not nest.
pub(crate) fn in_hook<R>(hook: impl FnOnce() -> R) -> Option<R> {
    struct Leave<'a>(&'a Local, u32);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.hook.set(false);
            self.0.slow.set(self.1);
        }
    }
    crate::sync::with_local(|local| {
        if local.hook.replace(true) {
            return None;
        }
        let _leave = Leave(local, local.slow.replace(0));
        Some(hook())
    })
}

/// Whether this thread runs a pressure hook or reclaims.
#[inline]
pub(crate) fn in_reclaim() -> bool {
    crate::sync::with_local(|local| local.hook.get())
}

/// Whether this thread is in a slow path: it is an allocator that charges inside one.
pub(crate) fn in_slow_path() -> bool {
    crate::sync::with_local(|local| local.slow.get() > 0)
}

/// Whether this thread is in a slow path inside another one: an allocator that charges, which must not be entered again.
pub(crate) fn is_nested() -> bool {
    crate::sync::with_local(|local| local.slow.get() > 1)
}

/// Count what this thread uncharges on a slow path.
pub(crate) fn note_uncharged(units: u64) {
    crate::sync::with_local(|local| local.uncharged.set(local.uncharged.get().wrapping_add(units)));
}

/// Count what this thread charges on a slow path, against what it uncharges.
pub(crate) fn note_charged(units: u64) {
    note_uncharged(units.wrapping_neg());
}

/// What this thread has uncharged on slow paths since it was `before`, less what it has charged.
pub(crate) fn uncharged_since(before: u64) -> u64 {
    uncharged().wrapping_sub(before).cast_signed().max(0).cast_unsigned()
}

/// What has been counted: to compare with later.
pub(crate) fn uncharged() -> u64 {
    crate::sync::with_local(|local| local.uncharged.get())
}

/// Holds a thread's id and block; its destructor is the thread's exit.
pub(crate) struct Owner {
    registry: Registrar,
    block: *const Block,
}

impl Owner {
    pub(crate) fn register(registry: Registrar) -> Self {
        let block = registry.take();
        crate::sync::with_local(|local| local.block.set(block));
        Owner { registry, block }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        // The pointer first: a charge in a later destructor must not find a block that is somebody else's.
        crate::sync::with_local(|local| local.block.set(no_block()));
        // No lock is taken below this one by an allocator that charges.
        slow_path(|_, _| self.registry.release(self.block));
    }
}

/// All blocks, and the indices of slots in them.
pub(crate) struct Registry {
    /// Newest block. Followed by `Block::next`, without a lock.
    head: AtomicPtr<Block>,
    /// Threads that hold a block now.
    threads: AtomicU32,
    state: Lock<Free>,
}

struct Free {
    /// Blocks of ended threads.
    blocks: Vec<*const Block>,
    made: u32,
    /// The first slot index never given out, and headers made for it and those after it.
    fresh: SlotIndex,
    headers: &'static [Header],
}

// SAFETY: the pointers name blocks of this registry, which are `Send` and `Sync` and outlive it being shared.
#[allow(unsafe_code)]
unsafe impl Send for Free {}

impl Registry {
    pub(crate) fn new() -> Self {
        Registry {
            head: AtomicPtr::new(ptr::null_mut()),
            threads: AtomicU32::new(0),
            state: Lock::new(
                Rank::Bookkeeping,
                Free { blocks: Vec::new(), made: 0, fresh: SlotIndex::FIRST, headers: &[] },
            ),
        }
    }

    /// Threads that hold a block, and so may hold credit.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// A block for the calling thread: the lowest free one, or a new one.
    #[allow(unsafe_code)]
    fn take(&self) -> *const Block {
        self.threads.fetch_add(1, Ordering::Relaxed);
        let mut free = self.state.lock();
        // SAFETY: the registry's own blocks, alive as long as it is.
        let lowest = (0..free.blocks.len()).min_by_key(|&at| unsafe { (*free.blocks[at]).id });
        if let Some(lowest) = lowest {
            // E8: the mutex hands the slots over. The words are read as the last owner left them.
            return free.blocks.swap_remove(lowest);
        }
        let id = free.made;
        free.made += 1;
        // Room for all of them: a thread that ends must not allocate.
        let known = free.blocks.len();
        free.blocks.reserve(id as usize + 1 - known);
        let block = Box::into_raw(Block::new(id, self.head.load(Ordering::Relaxed)));
        // Release (E9): published before the thread puts anything into it; pairs with `blocks`.
        self.head.store(block, Ordering::Release);
        block
    }

    /// Give an ended thread's block to whoever comes next.
    fn release(&self, block: *const Block) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
        // E8: see `take`.
        self.state.lock().blocks.push(block);
    }

    /// Every block there is, newest first.
    #[allow(unsafe_code)]
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        // Acquire (E9): pairs with `take`.
        let mut next: *const Block = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: blocks are published initialised and live as long as the registry.
            let block = unsafe { next.as_ref()? };
            next = block.next;
            Some(block)
        })
    }

    /// Bytes of memory that all blocks have come to, those of ended threads included.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks().map(Block::bytes).sum()
    }

    /// A slot index and its header, for ever the caller's. [`SlotIndex::NONE`] when all are taken: what gets that goes
    /// without stock, behind a header that never opens. `Err`: the bytes that there are not.
    pub(crate) fn take_index(&self) -> Result<(SlotIndex, &'static Header), usize> {
        let mut free = self.state.lock();
        let (header, rest) = match free.headers.split_first() {
            Some(split) => split,
            // A page of headers at a time, so that they lie densely.
            None => page_of_headers()?.split_first().expect("a page has headers"),
        };
        let index = free.fresh;
        free.fresh = index.next();
        free.headers = rest;
        Ok((index, header))
    }
}

fn page_of_headers() -> Result<&'static [Header], usize> {
    let mut headers = Vec::new();
    headers.try_reserve_exact(PAGE_SLOTS).map_err(|_| PAGE_SLOTS * size_of::<Header>())?;
    headers.extend((0..PAGE_SLOTS).map(|_| Header::new()));
    Ok(headers.leak())
}

impl Drop for Registry {
    /// Runs in models only.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        let mut next: *const Block = self.head.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: came from `Box::into_raw` in `take`; nobody refers to the registry any more.
            let block = unsafe { Box::from_raw(next.cast_mut()) };
            next = block.next;
        }
    }
}
