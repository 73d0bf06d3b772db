//! The registry of threads: each block and its thread, each slot index and its header.
//!
//! A block belongs to a thread id. Ids and blocks outlive threads: each drain sees what an ended thread leaves in its
//! slots, and the next thread that gets the id inherits the words as they stand. The registry's mutex orders the two
//! threads. The registry frees no block and no page while a thread of the process may run.
//!
//! A thread has two thread-locals: `Local` is const-initialised and has no destructor; `Owner` has one, which clears
//! the pointer first and then releases the block. A thread that has no block and cannot reach `Owner` is past its
//! destructor.

use std::ptr;

use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU32 as StatU32;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, PAGE_SLOTS, Shared, model_failed, process_wide, until_thread_exit};
use crate::thread::block::{Block, no_block};
use crate::thread::directory::{Header, Headers, SlotIndex};
use crate::thread::local::{Deeper, with_local};

pub(crate) type Registrar = Shared<Registry>;

process_wide!(registry: Registry = Registry::new);

until_thread_exit! {
    /// Registers this thread on first use. False: the thread is past its destructor and stays without stock.
    pub(super) register: Owner = Owner::register(registry())
}

/// Holds a thread's block; its destructor is the thread's exit.
struct Owner {
    registry: Registrar,
    block: *const Block,
}

impl Owner {
    fn register(registry: Registrar) -> Self {
        let block = registry.take();
        with_local(|local| local.block.set(block));
        Owner { registry, block }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // The pointer first: a charge in a later destructor must not find a block that is another thread's.
        with_local(|local| local.block.set(no_block()));
        // No lock is taken below this one by an allocator that charges.
        let _deeper = Deeper::enter();
        self.registry.release(self.block);
    }
}

/// All blocks, and the indices of slots in them.
pub(crate) struct Registry {
    /// The newest block. Threads follow `Block::next` from it, without a lock.
    head: AtomicPtr<Block>,
    threads: StatU32,
    headers: Box<Headers>,
    /// Not 0 where a thread has charged or uncharged without a guard, in any tree: see `counter::raw`. A thread that has
    /// the page of a cell counts hits in it, whichever tree the counter is of.
    pub(crate) raw: AtomicU32,
    state: Lock<Free>,
}

struct Free {
    blocks: Vec<*const Block>,
    made: u32,
    /// The first slot index never given out, and headers made for it and those after it.
    fresh: SlotIndex,
    rest: &'static [Header],
}

// SAFETY: the pointers name blocks of this registry, which are `Send` and `Sync` and outlive it being shared.
#[allow(unsafe_code)]
unsafe impl Send for Free {}

impl Registry {
    pub(crate) fn new() -> Self {
        Registry {
            head: AtomicPtr::new(ptr::null_mut()),
            threads: StatU32::new(0),
            headers: Headers::new(),
            raw: AtomicU32::new(0),
            state: Lock::new(
                Rank::Bookkeeping,
                Free { blocks: Vec::new(), made: 0, fresh: SlotIndex::FIRST, rest: &[] },
            ),
        }
    }

    /// Threads that hold a block, and so may hold credit.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// Takes a block for the calling thread: the lowest free one, or a new one.
    #[allow(unsafe_code)]
    fn take(&self) -> *const Block {
        self.threads.fetch_add(1, Ordering::Relaxed);
        let mut free = self.state.lock();
        // SAFETY: the registry's own blocks, alive as long as it is.
        let lowest = (0..free.blocks.len()).min_by_key(|&at| unsafe { (*free.blocks[at]).id });
        if let Some(lowest) = lowest {
            // E8: the mutex hands the slots over. The words are read as the last owner left them.
            let block = free.blocks.swap_remove(lowest);
            // SAFETY: as above.
            unsafe { (*block).set_ended(false) };
            return block;
        }
        let id = free.made;
        free.made += 1;
        // This makes room for all blocks, because a thread that ends must not allocate.
        let known = free.blocks.len();
        free.blocks.reserve(id as usize + 1 - known);
        let block = Box::into_raw(Block::new(id, self.head.load(Ordering::Relaxed)));
        // Release (E9): published before the thread puts anything into it; pairs with `blocks`.
        self.head.store(block, Ordering::Release);
        block
    }

    /// Gives an ended thread's block to the next thread that registers.
    #[allow(unsafe_code)]
    fn release(&self, block: *const Block) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
        // E8: see `take`.
        let mut free = self.state.lock();
        // SAFETY: one of the registry's own blocks, alive as long as it is.
        unsafe { (*block).set_ended(true) };
        free.blocks.push(block);
    }

    /// Returns every block, newest first.
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

    /// Bytes of memory that all blocks take, those of ended threads included.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks().map(Block::bytes).sum()
    }

    /// Gives the caller a slot index and its header, for ever. [`SlotIndex::NONE`] when all are taken: a counter that
    /// gets it has no stock, and its header never opens. `Err`: the bytes that the system does not give.
    pub(crate) fn take_index(&self) -> Result<(SlotIndex, &'static Header), usize> {
        let mut free = self.state.lock();
        let index = free.fresh;
        if free.rest.is_empty() {
            // The registry makes a page of headers at a time, so that they lie densely.
            free.rest = page_of_headers()?;
            if index != SlotIndex::NONE {
                self.headers.publish(index, free.rest);
            }
        }
        let (header, rest) = free.rest.split_first().expect("a page has headers");
        free.fresh = index.next();
        free.rest = rest;
        Ok((index, header))
    }

    /// The header of an index. The caller has found credit in a slot of it.
    pub(crate) fn header(&self, index: SlotIndex) -> Option<&'static Header> {
        self.headers.get(index)
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
        if model_failed() {
            return;
        }
        let mut next: *const Block = self.head.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: came from `Box::into_raw` in `take`; no thread refers to the registry any more.
            let block = unsafe { Box::from_raw(next.cast_mut()) };
            next = block.next;
        }
    }
}
