//! Locks in a written order.
//!
//! ```text
//! Visit               what the visitor of idle credit remembers: held over a visit, and so over many turns of the next
//! Stocks              the tree's lock, its drains and limits: held over everything that changes a counter's stock
//!   Hierarchy         a shard of a tree's names and children, or all of them in their order: held over a few links
//!     Statistics      the lists of a tree's coordinator: held over at most a slice of a flush
//!       Waiting       the charges that wait for room: held over the walks of those that are served
//!         Bookkeeping the registry, peak windows, delays of futures: held over what may allocate, and so over a charge by
//!                     an allocator
//!           Rings     the groups in excess, those to be reclaimed: held over a few links and calls to the system,
//!                     never over what allocates
//!             Stash           a few free objects of a pool: held over what its depot does
//!               Depot         the chunks of a pool: held over calls to the system, never over what allocates
//!                 Chunks      the numbers of all chunks: the same
//! ```
//!
//! A thread takes a lock only below those that it holds; debug builds assert it. No thread waits
//! for `Stocks` while in transit, see `transit`.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::{Mutex, MutexGuard, SHARDS};

/// Place in the order, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Visit = 1,
    Stocks = 2,
    Hierarchy = 3,
    Statistics = 4,
    Waiting = 5,
    Bookkeeping = 6,
    Rings = 7,
    Stash = 8,
    Depot = 9,
    Chunks = 10,
}

/// A mutex that knows its place.
pub(crate) struct Lock<T> {
    rank: Rank,
    inner: Mutex<T>,
}

pub(crate) struct LockGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: HeldRank,
}

impl<T> Lock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Lock {
            rank,
            inner: Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        let held = HeldRank::enter(self.rank);
        LockGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Trying cannot deadlock, but what is locked below it can.
        let inner = self.inner.try_lock()?;
        Some(LockGuard {
            inner,
            _held: HeldRank::enter(self.rank),
        })
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

/// Holds several [`Lock`]s of one rank, which every thread takes in the same order.
pub(crate) struct LockGuards<'a, T> {
    inner: SmallVec<[MutexGuard<'a, T>; SHARDS]>,
    _held: HeldRank,
}

impl<'a, T> LockGuards<'a, T> {
    /// There is one at least, and they are of one rank.
    pub(crate) fn lock(locks: impl Iterator<Item = &'a Lock<T>> + Clone) -> Self {
        let held = HeldRank::enter_all(locks.clone());
        LockGuards {
            inner: locks.map(|lock| lock.inner.lock()).collect(),
            _held: held,
        }
    }

    pub(crate) fn try_lock(locks: impl Iterator<Item = &'a Lock<T>> + Clone) -> Option<Self> {
        let inner = locks
            .clone()
            .map(|lock| lock.inner.try_lock())
            .collect::<Option<_>>()?;
        Some(LockGuards {
            inner,
            _held: HeldRank::enter_all(locks),
        })
    }
}

impl<'a, T> Deref for LockGuards<'a, T> {
    type Target = [MutexGuard<'a, T>];

    fn deref(&self) -> &[MutexGuard<'a, T>] {
        &self.inner
    }
}

impl<T> DerefMut for LockGuards<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

super::per_thread!(with_innermost: Cell<u8> = Cell::new(0));

/// The innermost rank that this thread held before, restored on drop. Debug builds alone keep
/// ranks.
struct HeldRank {
    outer: u8,
}

impl HeldRank {
    fn enter(rank: Rank) -> Self {
        let mut outer = 0;
        if cfg!(debug_assertions) {
            outer = with_innermost(|innermost| innermost.replace(rank as u8));
        }
        debug_assert!(
            outer < rank as u8,
            "lock order: {rank:?} inside rank {outer}"
        );
        HeldRank { outer }
    }

    fn enter_all<'a, T: 'a>(mut locks: impl Iterator<Item = &'a Lock<T>>) -> Self {
        HeldRank::enter(locks.next().map_or(Rank::Rings, |first| first.rank))
    }
}

impl Drop for HeldRank {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            with_innermost(|innermost| innermost.set(self.outer));
        }
    }
}
