//! The registry of threads: each block and its thread, each slot index and its header.
//!
//! A block belongs to a thread id. Ids and blocks outlive threads: each drain sees what an ended
//! thread leaves in its slots, and the next thread that gets the id inherits the words as they
//! stand. One word of the block orders the two threads: set when the first one ends, cleared when
//! the next one begins. The registry frees no block and no page while a thread of the process may
//! run.
//!
//! A thread has two thread-locals: `Local` is const-initialised and has no destructor;
//! `BlockHolder` has one, which clears the pointer first and then releases the block. A thread that
//! has no block and cannot reach `BlockHolder` is past its destructor.

use std::ptr;

use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicBool as StatBool, AtomicU32 as StatU32};
use crate::sync::{AtomicU32, Ordering, PAGE_SLOTS, Shared, model_failed, process_wide};
use crate::thread::block::{Block, no_block};
use crate::thread::directory::{Header, SlotIndex, headers};
use crate::thread::local::{SlowDepth, with_local};
use crate::thread::shelf::Shelves;

pub(crate) type Registrar = Shared<Registry>;

process_wide!(registry: Registry = Registry::new);

/// The registry is there, or almost.
static MADE: StatBool = StatBool::new(false);

/// True if a thread may ask for the registry and waits for no other one that makes it.
pub(super) fn is_made() -> bool {
    MADE.load(Ordering::Relaxed)
}

crate::sync::thread_local! {
    static HOLDER: BlockHolder = BlockHolder::register(registry());
}

/// Registers this thread on first use: it gets a block. False: the thread is past its destructor
/// and stays without stock.
pub(super) fn register() -> bool {
    HOLDER.try_with(|_| ()).is_ok()
}

/// Holds a thread's block; its destructor is the thread's exit.
struct BlockHolder {
    registry: Registrar,
    block: *const Block,
}

impl BlockHolder {
    fn register(registry: Registrar) -> Self {
        // From here on `is_made` may say so: whoever calls this has made the registry.
        MADE.store(true, Ordering::Relaxed);
        let block = registry.take();
        if !block.is_null() {
            // From here on hits of this thread find the block.
            // Mutation: e8-block-given-away-in-use
            with_local(|local| local.block.set(block));
        }
        BlockHolder { registry, block }
    }
}

impl Drop for BlockHolder {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // The pointers first: destructors of other thread-locals may run after this one, and a
        // charge in one of them must not find a block that is another thread's by then. It finds
        // the empty block, misses and walks.
        with_local(|local| {
            local.slot_cache.forget();
            local.block.set(no_block());
        });
        // The release counts as a slow path, so an allocator that charges inside it takes no lock.
        let _deeper = SlowDepth::enter(false);
        self.registry.end_thread(self.block);
    }
}

/// All blocks, and the indices of slots in them.
pub(crate) struct Registry {
    shelves: Shelves,
    /// The number of blocks that have been made, which is the number of the next one.
    numbered: AtomicU32,
    threads: StatU32,
    /// Not 0 where a thread has charged or uncharged without a guard, in any tree: see
    /// `counter::raw`. A thread that has the page of a cell counts hits in it, whichever tree the
    /// counter is of.
    pub(crate) raw: AtomicU32,
    indices: Lock<FreeIndices>,
}

struct FreeIndices {
    /// The first slot index that was never given out, and the headers that are made for it and for
    /// those after it.
    fresh: SlotIndex,
    rest: &'static [Header],
}

impl Registry {
    pub(crate) fn new() -> Self {
        Registry {
            shelves: Shelves::new(),
            numbered: AtomicU32::new(0),
            threads: StatU32::new(0),
            raw: AtomicU32::new(0),
            indices: Lock::new(
                Rank::Bookkeeping,
                FreeIndices {
                    fresh: SlotIndex::FIRST,
                    rest: &[],
                },
            ),
        }
    }

    /// Threads that hold a block, and so may hold credit.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// Takes a block for the calling thread: the lowest free one, or a new one. It takes no lock
    /// and calls no allocator, because an allocator's charge may be what registers the thread. Null
    /// where the system gives no memory: the thread goes without, and each of its charges walks.
    fn take(&self) -> *const Block {
        self.threads.fetch_add(1, Ordering::Relaxed);
        // Acquire (E9): the blocks with a number are made. Which of them have no thread is a hint:
        // each of those is tried once, and another thread may be first. Pairs with the exchange in
        // `add`.
        let made = self.numbered.load(Ordering::Acquire);
        let mut from = 0;
        while let Some(lowest) = self
            .shelves
            .lowest_ended(made, from)
            // Bits are looked at by the word, and one of them may be that of a block that was
            // numbered since. Only what came before `made` is known to be made.
            .filter(|lowest| lowest.number < made)
        {
            // E8: the words are read as the last owner left them.
            if let Some(block) = lowest.block().filter(|block| block.try_take()) {
                lowest.note_ended(false);
                // A sweep may have taken the block off the list: it is there again before the
                // thread puts credit into it.
                lowest.list();
                return block;
            }
            // Another thread was first. The search goes on behind it, so that it ends.
            from = lowest.number + 1;
        }
        let taken = Block::make().and_then(|block| self.add(block));
        // Without a block the thread holds no credit, and counts for none of the margins that grow
        // with threads.
        if taken.is_none() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        taken.map_or(ptr::null(), ptr::from_ref)
    }

    /// Gives a new block its number and lists it. Several threads may try for one number; the
    /// exchange decides.
    fn add(&self, block: &'static Block) -> Option<&'static Block> {
        loop {
            let number = self.numbered.load(Ordering::Relaxed);
            // Before the block has its number: where the system gives no memory, the thread goes
            // without.
            let place = self.shelves.place_or_make(number)?;
            block.set_number(number);
            // Release (E9): the block is made before its number is there; pairs with `take` and
            // `made`.
            // Mutation: e9-number-given-relaxed
            let next = self.numbered.compare_exchange(
                number,
                number + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if next.is_ok() {
                place.put(block);
                place.list();
                return Some(block);
            }
        }
    }

    /// Gives an ended thread's block to the next thread that registers.
    #[allow(unsafe_code)]
    fn end_thread(&self, block: *const Block) {
        // SAFETY: null, or one of the registry's own blocks, alive as long as it is.
        if let Some(block) = unsafe { block.as_ref() } {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            self.give_up(block);
        }
    }

    fn give_up(&self, block: &Block) {
        block.give_up();
        self.shelves
            .place_of(block.number())
            .inspect(|place| place.note_ended(true));
    }

    /// Returns the blocks in which credit may be, oldest first: a thread that drains visits no
    /// other.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Block> {
        self.shelves.listed(self.made())
    }

    /// Takes the blocks of ended threads that hold no credit off the list, so that drains pass over
    /// them. `leaves` gets each index of which such a block has a slot, active and empty, before
    /// the block leaves the list.
    pub(crate) fn sweep(&self, leaves: impl Fn(SlotIndex)) {
        let made = self.made();
        // Each block has its thread, mostly. A thread that ends just now has its block swept by the
        // next drain.
        if self.threads() >= made {
            return;
        }
        for place in self.shelves.ended_and_listed(made) {
            // Where the last sweep found credit there mostly still is some: one look instead of a
            // search of all slots.
            let Some(block) = place.block().filter(|block| !block.seems_to_hold_credit()) else {
                continue;
            };
            // The sweep takes the block as the next thread would, so no thread puts credit there
            // meanwhile.
            // Mutation: e54-swept-while-a-thread-has-it
            if !block.try_take() {
                continue;
            }
            if !block.holds_credit() {
                block.active_slots().for_each(&leaves);
                place.unlist();
                // A drainer whose barrier has failed has given credit back meanwhile, and lists the
                // block afterwards, or has listed it before: then it is seen here.
                if block.holds_credit() {
                    place.list();
                }
            }
            // Whatever came of it, the block is free for the next thread again.
            self.give_up(block);
        }
    }

    /// Lists all blocks again. A drainer whose barrier has failed has given claims back to slots of
    /// whatever threads, and their blocks may have left the list.
    pub(crate) fn list_all(&self) {
        self.shelves.list_all(self.numbered.load(Ordering::Relaxed));
    }

    /// Returns the block with that number, if it is in its place yet.
    pub(crate) fn block(&self, number: u32) -> Option<&Block> {
        self.shelves
            .place_of(number)
            .and_then(|place| place.block())
    }

    /// How many blocks have a number. A thread numbers its block before it lists it, so whoever has
    /// to find it in the list finds the number, too.
    fn made(&self) -> u32 {
        // Acquire (E9): pairs with `add`. A reader looks whether the block is in its place yet.
        self.numbered.load(Ordering::Acquire)
    }

    /// Returns every block, also those of ended threads that hold nothing.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        (0..self.made()).filter_map(|number| self.block(number))
    }

    /// Bytes of memory that all blocks take, those of ended threads included.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks().map(Block::bytes).sum()
    }

    /// Gives the caller a slot index and its header, for ever. [`SlotIndex::NONE`] when all are
    /// taken: a counter that gets it has no stock, and its header never opens. `Err`: the bytes
    /// that the system does not give.
    pub(crate) fn take_index(&self) -> Result<(SlotIndex, &'static Header), usize> {
        let mut free = self.indices.lock();
        let index = free.fresh;
        if free.rest.is_empty() {
            // The registry makes a page of headers at a time, so that they lie densely.
            free.rest = page_of_headers()?;
            // Once all indices are taken, each further counter gets a header of its own all the
            // same. Nobody looks for it by its index, as no slot has that.
            if index != SlotIndex::NONE {
                headers().publish(index, free.rest);
            }
        }
        let (header, rest) = free.rest.split_first().expect("a page has headers");
        free.fresh = index.next();
        free.rest = rest;
        Ok((index, header))
    }

    /// The header of an index. The caller has found credit in a slot of it.
    pub(crate) fn header(&self, index: SlotIndex) -> Option<&'static Header> {
        headers().get(index)
    }
}

fn page_of_headers() -> Result<&'static [Header], usize> {
    let mut headers = Vec::new();
    headers
        .try_reserve_exact(PAGE_SLOTS)
        .map_err(|_| PAGE_SLOTS * size_of::<Header>())?;
    headers.extend((0..PAGE_SLOTS).map(|_| Header::new()));
    Ok(headers.leak())
}

impl Drop for Registry {
    /// Runs in models only.
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // All blocks, by an exchange: a load may be an old one (E9). Each thread has given its
        // block up: what it did before comes before this (E8).
        let made = self.numbered.fetch_add(0, Ordering::Acquire);
        (0..made)
            .filter_map(|number| self.block(number))
            .for_each(|block| {
                block.try_take();
            });
    }
}
