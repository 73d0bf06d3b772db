//! Locks in a written order.
//!
//! ```text
//! Places            the shape of a tree, its drains: held over everything that changes a counter's stock
//!   Statistics      the lists of a tree's coordinator: held over at most a slice of a flush
//!     Waiting       who waits for room: held over the walks of those who are served
//!       Bookkeeping the registry, peak windows: held over what may allocate, and so over a charge by an allocator
//!         Forcing   the forced units of one level: held over one exchange
//!           Rings   who is in excess, who can be reclaimed, a table of nodes: held over a few links, never over what
//!                           allocates
//!             Stash         a few free objects of a pool: held over what its depot does
//!               Depot       the chunks of a pool: held over calls to the system, never over what allocates
//!                 Chunks    the numbers of all chunks: the same
//! ```
//!
//! A thread takes a lock only below those that it holds; debug builds assert it. Nobody waits for `Places` while in
//! transit, see `transit`.

use std::ops::{Deref, DerefMut};

use super::{Mutex, MutexGuard};

/// Place in the order, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Places = 1,
    Statistics = 2,
    Waiting = 3,
    Bookkeeping = 4,
    Forcing = 5,
    Rings = 6,
    Stash = 7,
    Depot = 8,
    Chunks = 9,
}

/// A mutex that knows its place.
pub(crate) struct Lock<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// Holds a [`Lock`].
pub(crate) struct LockGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Lock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Lock { rank, inner: Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        let held = Held::enter(self.rank);
        LockGuard { inner: self.inner.lock(), _held: held }
    }

    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Trying cannot deadlock, but what is locked below it can.
        let inner = self.inner.try_lock()?;
        Some(LockGuard { inner, _held: Held::enter(self.rank) })
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The innermost rank that this thread holds, restored on drop. Nothing in release builds.
struct Held {
    #[cfg(debug_assertions)]
    outer: u8,
}

impl Held {
    #[cfg(debug_assertions)]
    fn enter(rank: Rank) -> Self {
        let outer = super::with_local(|local| local.held.replace(rank as u8));
        assert!(outer < rank as u8, "lock order: {rank:?} inside rank {outer}");
        Held { outer }
    }

    #[cfg(not(debug_assertions))]
    fn enter(_: Rank) -> Self {
        Held {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        super::with_local(|local| local.held.set(self.outer));
    }
}
