//! Which blocks a drain has to visit: those of threads that run, and those in which ended threads
//! have left credit.
//!
//! A shelf has two bits for each block. *Listed*: credit may be in the block's slots. *Ended*: the
//! block may have no thread, a hint for the next thread that looks for one. A thread lists its
//! block before it uses it. A *sweep* takes off the blocks of ended threads that hold no credit. It
//! owns such a block meanwhile, as a thread would (E8), so no thread puts credit there. A drainer
//! whose barrier has failed gives credit back to slots that it does not own: it lists all blocks
//! again afterwards, and a sweep that was there before finds the credit when it looks once more.
//!
//! Edge: E54 (listed/a drain).

use std::ptr;

use crate::numa::mapping::map_for_ever;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU64 as StatU64};
use crate::sync::{
    AtomicPtr, AtomicU64, Ordering, SHELF_WORDS, SHELVES, displace, model_failed, place,
};
use crate::thread::block::Block;
use crate::thread::cells::SetBits;

/// The number of blocks that one word has bits for.
const WORD: u32 = u64::BITS;
/// The number of blocks on a shelf.
const SHELF: u32 = SHELF_WORDS as u32 * WORD;

/// The bits of the blocks of one range of numbers, and where these blocks are. Made with the first
/// block of the range, and never given back.
struct Shelf {
    listed: [AtomicU64; SHELF_WORDS],
    ended: [StatU64; SHELF_WORDS],
    /// Stored before the bit *listed* is set.
    blocks: [[StatPtr<Block>; WORD as usize]; SHELF_WORDS],
}

pub(super) struct Shelves([AtomicPtr<Shelf>; SHELVES]);

/// Where the bits of one block are.
#[derive(Clone, Copy)]
pub(super) struct ShelfPlace<'a> {
    shelf: &'a Shelf,
    /// The number of the block.
    pub(super) number: u32,
}

impl Shelves {
    pub(super) fn new() -> Shelves {
        Shelves(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
    }

    #[allow(unsafe_code)]
    fn shelf(&self, number: usize) -> Option<&Shelf> {
        // Acquire (E54): the shelf is made; pairs with the exchange in `place_or_make`.
        // SAFETY: null, or a shelf that lives as long as this.
        unsafe { self.0.get(number)?.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the place of the block with that number. `None`: its shelf has not been made yet.
    pub(super) fn place_of(&self, number: u32) -> Option<ShelfPlace<'_>> {
        Some(ShelfPlace {
            shelf: self.shelf((number / SHELF) as usize)?,
            number,
        })
    }

    /// Does what [`place_of`](Self::place_of) does for a new block, and makes its shelf where there
    /// is none. It calls no allocator, because an allocator's charge may be what registers the
    /// thread. `None` where the system gives no memory.
    #[allow(unsafe_code)]
    pub(super) fn place_or_make(&self, number: u32) -> Option<ShelfPlace<'_>> {
        if let Some(place) = self.place_of(number) {
            return Some(place);
        }
        // All shelves together have places for a million threads at once. One beyond them goes
        // without a block.
        let pointer = self.0.get((number / SHELF) as usize)?;
        // SAFETY: the map gives whole pages of the system, zeroed and for ever.
        let made = unsafe { place(map_for_ever::<Shelf>, Shelf::new) }?;
        // AcqRel (E54): before a block is listed in it. Where another thread was first, its shelf
        // counts, and this one stays unused. Pairs with `place_of`.
        if pointer
            .compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: no other thread has seen it.
            unsafe { displace(made) };
        }
        self.place_of(number)
    }

    /// Of the first `blocks` blocks, returns those that a drain has to visit, oldest first.
    pub(super) fn listed(&self, blocks: u32) -> impl Iterator<Item = &Block> {
        // Acquire (E54): what came before the block was taken off the list; pairs with `unlist`,
        // and with `list` of the thread that made the block.
        self.places(blocks, |shelf, word| {
            shelf.listed[word].load(Ordering::Acquire)
        })
        .filter_map(|place| place.block())
    }

    /// Of the first `blocks` blocks, returns the lowest from the number `from` on that may have no
    /// thread.
    pub(super) fn lowest_ended(&self, blocks: u32, from: u32) -> Option<ShelfPlace<'_>> {
        self.places(blocks, |shelf, word| {
            shelf.ended[word].load(Ordering::Relaxed)
        })
        .find(|place| place.number >= from)
    }

    /// Of the first `blocks` blocks, returns the places of those that are listed and may have no
    /// thread: what a sweep looks at.
    pub(super) fn ended_and_listed(&self, blocks: u32) -> impl Iterator<Item = ShelfPlace<'_>> {
        self.places(blocks, |shelf, word| {
            match shelf.ended[word].load(Ordering::Relaxed) {
                // Mostly no block of a word has ended: then the other word need not be read.
                0 => 0,
                // Acquire (E54): as in `listed`.
                ended => ended & shelf.listed[word].load(Ordering::Acquire),
            }
        })
    }

    /// Lists each of the first `blocks` blocks.
    pub(super) fn list_all(&self, blocks: u32) {
        (0..blocks)
            .filter_map(|number| self.place_of(number))
            .for_each(|place| place.list());
    }

    /// Returns the places of the bits that are set, in the words of the first `blocks` blocks
    /// alone: most of a shelf has never had a block. Shelves are made in their order, so the search
    /// ends at the first that is not there.
    fn places<'a>(
        &'a self,
        blocks: u32,
        bits: impl Fn(&Shelf, usize) -> u64,
    ) -> impl Iterator<Item = ShelfPlace<'a>> {
        // By words and not by blocks: a program that once had ten thousand threads has ten thousand
        // places, of which a drain should look at those few with a bit.
        let words = (0..blocks.div_ceil(WORD)).map_while(|word| {
            let first = word * WORD;
            Some((self.shelf((first / SHELF) as usize)?, first))
        });
        words.flat_map(move |(shelf, first)| {
            SetBits(bits(shelf, (first % SHELF / WORD) as usize)).map(move |bit| ShelfPlace {
                shelf,
                number: first + bit as u32,
            })
        })
    }
}

impl Drop for Shelves {
    /// Runs in models only.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        for shelf in self
            .0
            .iter()
            .map(|shelf| shelf.load(Ordering::Relaxed))
            .filter(|shelf| !shelf.is_null())
        {
            // SAFETY: the shelf is from `place_or_make`, its blocks are from `Block::make`, and no
            // thread refers to the registry any more.
            unsafe {
                let blocks = &(*shelf).blocks;
                let blocks = blocks
                    .iter()
                    .flatten()
                    .map(|block| block.load(Ordering::Relaxed));
                blocks
                    .filter(|block| !block.is_null())
                    .for_each(|block| displace(block));
                displace(shelf);
            }
        }
    }
}

impl Shelf {
    fn new() -> Shelf {
        Shelf {
            listed: std::array::from_fn(|_| AtomicU64::new(0)),
            ended: std::array::from_fn(|_| StatU64::new(0)),
            blocks: std::array::from_fn(|_| std::array::from_fn(|_| StatPtr::new(ptr::null_mut()))),
        }
    }
}

impl<'a> ShelfPlace<'a> {
    fn word(self) -> usize {
        (self.number % SHELF / WORD) as usize
    }

    fn bit(self) -> u64 {
        1 << (self.number % WORD)
    }

    fn pointer(self) -> &'a StatPtr<Block> {
        &self.shelf.blocks[self.word()][(self.number % WORD) as usize]
    }

    #[allow(unsafe_code)]
    pub(super) fn block(self) -> Option<&'a Block> {
        // Acquire (E54): made; pairs with `put`.
        // SAFETY: null, or a block of the registry, which lives as long as its shelf.
        unsafe { self.pointer().load(Ordering::Acquire).as_ref() }
    }

    /// Puts the block of a thread that begins into its place. It is listed afterwards, so who finds
    /// the bit finds the block.
    pub(super) fn put(self, block: &'a Block) {
        // Release (E54): pairs with `block`.
        self.pointer()
            .store(ptr::from_ref(block).cast_mut(), Ordering::Release);
    }

    /// Lists the block: from here on each drain visits it.
    pub(super) fn list(self) {
        // AcqRel (E54): before the thread puts anything into it; pairs with `listed`. An exchange:
        // of a sweep and a drainer that gives credit back, the second sees what the first did.
        // Mutation: e54-block-is-listed-relaxed
        self.shelf.listed[self.word()].fetch_or(self.bit(), Ordering::AcqRel);
    }

    /// Unlists the block: no drain visits it any more. The caller owns it, as its thread would, so
    /// nobody puts credit there meanwhile.
    pub(super) fn unlist(self) {
        // AcqRel (E54): as in `list`.
        self.shelf.listed[self.word()].fetch_and(!self.bit(), Ordering::AcqRel);
    }

    /// Notes whether the block may have no thread. A hint for threads that look for a block;
    /// `Block::try_take` decides.
    pub(super) fn note_ended(self, ended: bool) {
        let word = &self.shelf.ended[self.word()];
        if ended {
            word.fetch_or(self.bit(), Ordering::Relaxed);
        } else {
            word.fetch_and(!self.bit(), Ordering::Relaxed);
        }
    }
}
