//! Chunks of a cache, and what of them lies in no stash.
//!
//! Objects come out in order: the lowest that are back, and only then new ones, from the lowest on. So what lives lies
//! together, and everything above the first new one has never been touched.

use std::ptr::NonNull;

use super::directory::{directory, number};
use super::lowest::Lowest;
use super::pages::{NoMemory, PageVec};
use super::shape::Shape;
use super::stash::{BATCH, Stash};
use crate::numa::mapping::Mapping;

pub(super) struct Depot {
    shape: Shape,
    /// By age. Given back in models only.
    chunks: PageVec<PoolChunk>,
    /// Places of objects that are back.
    back: Lowest,
    /// Place of the first object that nobody has had.
    pub(super) fresh: usize,
    unmake: Unmake,
}

/// Drops what its owner has made in an object, or may not have made: then all of it is zero.
pub(crate) type Unmake = unsafe fn(NonNull<u8>);

struct PoolChunk {
    pages: Mapping,
    number: u32,
}

impl Depot {
    pub(super) fn new(shape: Shape, unmake: Unmake) -> Depot {
        Depot { shape, chunks: PageVec::new(), back: Lowest::new(), fresh: 0, unmake }
    }

    /// Fill an empty stash.
    pub(super) fn fill(&mut self, stash: &mut Stash) -> Result<(), NoMemory> {
        let objects = self.shape.objects_per_chunk();
        while stash.back.len() < BATCH
            && let Some(place) = self.back.take()
        {
            stash.back.push(number(self.chunks[place / objects].number, place % objects));
        }
        // The lowest on top.
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
        self.fresh += count;
        Ok(())
    }

    /// Objects that have been given out.
    pub(super) fn fresh(&self) -> usize {
        self.fresh
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Take objects back, which are of these chunks.
    pub(super) fn put(&mut self, numbers: &[u32]) {
        let directory = directory();
        for &number in numbers {
            if let Some(place) = directory.place(number) {
                self.back.insert(place);
            }
        }
    }

    /// One more chunk. Nothing has changed where the system refuses it.
    fn grow(&mut self) -> Result<(), NoMemory> {
        let shape = self.shape;
        let (objects, bytes) = (shape.objects_per_chunk(), shape.chunk());
        let first = self.chunks.len() * objects;
        self.back.reserve(first + objects)?;
        self.chunks.reserve(1)?;
        let pages = Mapping::new(bytes)?;
        if let Some(node) = shape.node {
            pages.bind(pages.range(), node);
        }
        let number = directory().add(pages.start(), shape.given(), objects, first)?;
        self.chunks.push(PoolChunk { pages, number });
        Ok(())
    }
}

impl Drop for Depot {
    /// Runs in models only.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        let objects = self.shape.objects_per_chunk();
        for place in 0..self.fresh {
            let start = self.chunks[place / objects].pages.start();
            // SAFETY: within the chunk, which has so many objects; nobody has the cache, so nobody has them.
            unsafe { (self.unmake)(start.add(place % objects * self.shape.given())) };
        }
    }
}
