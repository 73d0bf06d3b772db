//! The chunks of a cache, and the objects of them that lie in no stash.
//!
//! The depot gives out the lowest returned objects first, and only then fresh ones, in order. So
//! live objects lie close together, and no thread has touched memory above the first fresh object.

use std::ops::Range;

use smallvec::SmallVec;

use super::directory::{directory, number, parts};
use super::lowest::LowestFirst;
use super::pages::PageVec;
use super::shape::Shape;
use crate::numa::mapping::{Mapping, NoMemory};
use crate::sync::POOL_STASH;

pub(super) struct Depot {
    shape: Shape,
    /// By age. Only a model gives chunks back.
    chunks: PageVec<PoolChunk>,
    /// Places of the objects that have been returned.
    back: LowestFirst,
    /// Objects that have had a user, or lie in a stash: the first ones of all.
    pub(super) fresh: usize,
}

struct PoolChunk {
    /// Keeps the memory of the chunk.
    _pages: Mapping,
    number: u32,
}

impl Depot {
    pub(super) fn new(shape: Shape) -> Depot {
        Depot {
            shape,
            chunks: PageVec::new(),
            back: LowestFirst::new(),
            fresh: 0,
        }
    }

    pub(super) fn fill(&mut self, stash: &mut Stash) -> Result<(), NoMemory> {
        let objects = self.shape.objects_per_chunk();
        while stash.back.len() < BATCH
            && let Some(place) = self.back.take()
        {
            stash
                .back
                .push(number(self.chunks[place / objects].number, place % objects));
        }
        // The lowest lies on top.
        stash.back.reverse();
        if !stash.back.is_empty() {
            return Ok(());
        }
        if self.fresh == self.chunks.len() * objects {
            self.grow()?;
        }
        let chunk = self.chunks[self.fresh / objects].number;
        let index = self.fresh % objects;
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
        let objects = self.shape.objects_per_chunk();
        for &number in numbers {
            let (chunk, index) = parts(number);
            // Numbers of chunks rise.
            // Mutation: only-the-first-chunk-takes-objects-back
            if let Ok(at) = self
                .chunks
                .binary_search_by_key(&chunk, |chunk| chunk.number)
            {
                self.back.insert(at * objects + index);
            }
        }
    }

    /// Adds a chunk. If the system refuses it, nothing has changed.
    fn grow(&mut self) -> Result<(), NoMemory> {
        let shape = self.shape;
        let objects = shape.objects_per_chunk();
        let bytes = shape.chunk();
        // Room for all its objects first: the number of a chunk is never given back, so nothing may
        // fail once it has one.
        self.back.reserve((self.chunks.len() + 1) * objects)?;
        self.chunks.reserve(1)?;
        let pages = Mapping::new(bytes)?;
        if let Some(node) = shape.node {
            pages.bind(node);
        }
        let number = directory().add(pages.start(), shape.given(), objects)?;
        self.chunks.push(PoolChunk {
            _pages: pages,
            number,
        });
        Ok(())
    }
}

// === Stashes ===

/// Objects that move between a stash and a depot at a time.
pub(super) const BATCH: usize = POOL_STASH.div_ceil(2);

/// Numbers of objects, in place: no allocation.
pub(super) type ObjectNumbers = SmallVec<[u32; POOL_STASH]>;

/// A few free objects in front of a depot, for the threads of one number.
#[derive(Default)]
pub(super) struct Stash {
    /// Returned by their users; the last one is the warmest.
    pub(super) back: ObjectNumbers,
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
        let recycled = self.back.pop().map(|number| FreeObject {
            number,
            recycled: true,
        });
        let free = recycled.or_else(|| {
            self.fresh.next().map(|number| FreeObject {
                number,
                recycled: false,
            })
        })?;
        self.live = self.live.wrapping_add(1);
        Some(free)
    }

    /// Takes an object back. If the stash is full, returns the coldest objects, for the depot.
    pub(super) fn put(&mut self, number: u32) -> ObjectNumbers {
        // Mutation: the-depot-gets-what-the-stash-keeps
        let too_many = if self.back.len() < POOL_STASH {
            ObjectNumbers::new()
        } else {
            self.back.drain(..BATCH).collect()
        };
        self.back.push(number);
        self.live = self.live.wrapping_sub(1);
        too_many
    }
}
