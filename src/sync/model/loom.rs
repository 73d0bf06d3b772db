//! Loom: every schedule of two or three threads, and the memory orders of the language.

mod loom_integers;
mod loom_park;

pub(crate) use loom::sync::atomic::{AtomicPtr, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub(crate) use loom::{lazy_static, thread_local};
#[cfg(test)]
pub(crate) use loom_integers::loads_are_exchanges;
pub(crate) use loom_integers::{AtomicI64, AtomicU32, AtomicU64};
pub(crate) use loom_park::{Thread, current, park};

/// Small, so that models reach them.
pub(crate) const POOL_OBJECTS: usize = 2;
pub(crate) const POOL_STASH: usize = 1;
pub(crate) const POOL_PAGES: usize = 4;
pub(crate) const POOL_PAGE: usize = 2;
pub(crate) const PENDING_CLOSE_MAX: usize = 2;
pub(crate) const SHARDS: usize = 2;
pub(crate) const SLICE: usize = 1;
pub(crate) const IDLE_VISITS: u32 = 1;
pub(crate) const PAGE_SLOTS: usize = 4;
pub(crate) const PAGES_MAX: usize = 2;

/// A rest between two holds of a lock, which a model does not need: loom tries the schedules with a rest anyway.
pub(crate) fn rest() {}
