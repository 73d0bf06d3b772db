//! The chunks of a cache, and the objects of them that lie in no stash.
//!
//! The depot gives out returned objects first, the last one first, and only then fresh ones, in order. So no thread has
//! touched memory above the first fresh object.

use std::ops::Range;
use std::ptr::NonNull;

use smallvec::SmallVec;

use super::directory::{directory, number};
use super::pages::PageVec;
use super::shape::Shape;
use crate::numa::mapping::{Mapping, NoMemory};
use crate::sync::{POOL_STASH, model_failed};

pub(super) struct Depot {
    shape: Shape,
    /// By age. Only a model gives chunks back.
    chunks: PageVec<PoolChunk>,
    /// Numbers of the objects that have been returned, with room for all.
    back: PageVec<u32>,
    /// Objects that have had a user, or lie in a stash: the first ones of all.
    pub(super) fresh: usize,
    unmake: Unmake,
}

/// Drops the value in an object, if there is one. Memory that is all zero holds none.
pub(crate) type Unmake = unsafe fn(NonNull<u8>);

struct PoolChunk {
    pages: Mapping,
    number: u32,
}

impl Depot {
    pub(super) fn new(shape: Shape, unmake: Unmake) -> Depot {
        Depot { shape, chunks: PageVec::new(), back: PageVec::new(), fresh: 0, unmake }
    }

    pub(super) fn fill(&mut self, stash: &mut Stash) -> Result<(), NoMemory> {
        let objects = self.shape.objects_per_chunk();
        while stash.back.len() < BATCH
            && let Some(number) = self.back.pop()
        {
            stash.back.push(number);
        }
        // The last one that came back lies on top.
        stash.back.reverse();
        if !stash.back.is_empty() {
            return Ok(());
        }
        if self.fresh == self.chunks.len() * objects {
            self.grow()?;
        }
        let (chunk, index) = (self.chunks[self.fresh / objects].number, self.fresh % objects);
        let count = BATCH.min(objects - index);
        stash.fresh = number(chunk, index)..number(chunk, index) + count as u32;
        // Mutation: a-free-object-is-given-out-twice
        self.fresh += count;
        Ok(())
    }

    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Takes back objects of these chunks.
    pub(super) fn put(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|&number| self.back.push(number));
    }

    /// Adds a chunk. If the system refuses it, nothing has changed.
    fn grow(&mut self) -> Result<(), NoMemory> {
        let shape = self.shape;
        let (objects, bytes) = (shape.objects_per_chunk(), shape.chunk());
        self.back.reserve((self.chunks.len() + 1) * objects - self.back.len())?;
        self.chunks.reserve(1)?;
        let pages = Mapping::new(bytes)?;
        if let Some(node) = shape.node {
            pages.bind(node);
        }
        let number = directory().add(pages.start(), shape.given(), objects)?;
        self.chunks.push(PoolChunk { pages, number });
        Ok(())
    }
}

impl Drop for Depot {
    /// Runs in models only.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let objects = self.shape.objects_per_chunk();
        for place in 0..self.fresh {
            let start = self.chunks[place / objects].pages.start();
            // SAFETY: the place is within the chunk, which has so many objects. The cache has no user, so its objects
            // have none.
            unsafe { (self.unmake)(start.add(place % objects * self.shape.given())) };
        }
    }
}

// === Stashes ===

/// Objects that move between a stash and a depot at a time.
pub(super) const BATCH: usize = POOL_STASH.div_ceil(2);

/// Numbers of objects, in place: no allocation.
pub(super) type Numbers = SmallVec<[u32; POOL_STASH]>;

/// A few free objects in front of a depot, for the threads of one number.
#[derive(Default)]
pub(super) struct Stash {
    /// Returned by their users; the last one is the warmest.
    pub(super) back: Numbers,
    /// Never in use.
    pub(super) fresh: Range<u32>,
    /// Objects that these threads have taken, less those that they have put back; wraps.
    pub(super) live: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeObject {
    pub(super) number: u32,
    pub(super) recycled: bool,
}

impl Stash {
    pub(super) fn take(&mut self) -> Option<FreeObject> {
        let recycled = self.back.pop().map(|number| FreeObject { number, recycled: true });
        let free = recycled.or_else(|| self.fresh.next().map(|number| FreeObject { number, recycled: false }))?;
        self.live = self.live.wrapping_add(1);
        Some(free)
    }

    /// Takes an object back. If the stash is full, returns the coldest objects, for the depot.
    pub(super) fn put(&mut self, number: u32) -> Numbers {
        // Mutation: the-depot-gets-what-the-stash-keeps
        let too_many = if self.back.len() < POOL_STASH { Numbers::new() } else { self.back.drain(..BATCH).collect() };
        self.back.push(number);
        self.live = self.live.wrapping_sub(1);
        too_many
    }
}
