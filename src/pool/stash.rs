//! A few free objects in front of a depot, for the threads of one number.

use std::ops::Range;

use smallvec::SmallVec;

use crate::sync::POOL_STASH;

/// Objects that move between a stash and a depot at a time.
pub(super) const BATCH: usize = POOL_STASH.div_ceil(2);

/// Numbers of objects, in place: no allocation.
pub(super) type Numbers = SmallVec<[u32; POOL_STASH]>;

/// The free objects of a stash.
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
        let too_many = if self.back.len() < POOL_STASH { Numbers::new() } else { self.back.drain(..BATCH).collect() };
        self.back.push(number);
        self.live = self.live.wrapping_sub(1);
        too_many
    }
}
