//! The one door to concurrency: atomics, locks, thread-locals and barriers enter the crate here and
//! nowhere else.
//!
//! `real` and `model` have the same surface; which one stands behind it is the only place where
//! `cfg(loom)` and `cfg(shuttle)` matter to the engine. `model` serves two checkers: loom tries
//! every schedule of two or three threads, shuttle random schedules of many. Shuttle is
//! sequentially consistent, so it says nothing of a memory order. Miri runs `real`, with the mutex
//! of `unpoisoned`, which the checkers share.
//!
//! `barrier` holds the light/heavy pair, `lock` the locks and their order, `sizes` what models make
//! small, `pause` the points where a test stops a thread. The folder imports nothing of the crate.
//! What a thread owns stands in `thread`, which declares its thread-locals with [`per_thread`], and
//! those with a destructor with `thread_local`.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

pub(crate) mod barrier;
pub(crate) mod clock;
pub(crate) mod lock;
mod pause;
mod sizes;
mod steps;

#[cfg(any(loom, shuttle))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(any(loom, shuttle, miri))]
mod unpoisoned;

#[cfg(any(loom, shuttle))]
use model as side;
#[cfg(not(any(loom, shuttle)))]
use real as side;

#[cfg(any(loom, shuttle))]
pub(crate) use model::checker;
#[cfg(all(test, loom))]
pub(crate) use model::{set_of_figures, set_paired};
pub(crate) use side::{
    AtomicI64, AtomicPtr, AtomicU32, AtomicU64, NameHasher, Patience, Shared, Thread, displace,
    fence, follow, is_over, loads_for_figures, model_failed, park, pause, per_thread, place,
    place_zeroed, pool_stashes, prefetch, process_const, process_wide, processor, rest, share,
    sleep, spawn, stand_in, start_thread, this_thread, thread_local,
};
#[cfg(not(any(loom, shuttle, miri)))]
use side::{Mutex, MutexGuard};
#[cfg(any(loom, shuttle, miri))]
use unpoisoned::{Mutex, MutexGuard};

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use pause::at;
pub(crate) use pause::pause_point;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use side::many;
pub(crate) use sizes::{
    IDLE_VISITS, PAGE_SLOTS, PAGES_MAX, PENDING_CLOSE_MAX, POOL_OBJECTS, POOL_PAGE, POOL_PAGES,
    POOL_STASH, PUTS_WHILE_CLOSED, SHARDS, SHELF_WORDS, SHELVES, SLICE, TIME_PASSES,
};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use steps::step;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use steps::takes_n_log_n;

/// Atomics for figures that no protocol depends on (peaks, event counts, published bounds). They
/// are the standard library's even in a model: a statistic must not multiply the schedules that a
/// model explores.
pub(crate) mod stat_atomic {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    };
}

/// A place that is no atomic: one thread writes it while no other one reads it. Loom watches that
/// it is so.
pub(crate) struct PlainCell<T>(UnsafeCell<T>);

#[allow(unsafe_code)]
impl<T> PlainCell<T> {
    pub(crate) fn new(value: T) -> Self {
        PlainCell(UnsafeCell::new(value))
    }

    /// # Safety
    ///
    /// No thread writes the place as long as the result is used.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> &T {
        #[cfg(loom)]
        let value = self.0.with(|value| value);
        #[cfg(not(loom))]
        let value = self.0.get();
        // SAFETY: says the caller.
        unsafe { &*value }
    }

    /// # Safety
    ///
    /// No other thread uses the place.
    pub(crate) unsafe fn replace(&self, next: T) -> T {
        #[cfg(loom)]
        let value = self.0.with_mut(|value| value);
        #[cfg(not(loom))]
        let value = self.0.get();
        // SAFETY: says the caller.
        unsafe { value.replace(next) }
    }
}

/// Keeps a value on cache lines of its own (128 bytes where the prefetcher takes lines in pairs).
pub(crate) use crossbeam::utils::CachePadded;

/// What a thread loads of relaxed figures after this is not older than what it has loaded before.
/// In models such figures are never old.
#[inline(always)]
pub(crate) fn figures_were_loaded() {
    if cfg!(not(any(loom, shuttle))) {
        // No edge: no protocol depends on figures.
        fence(Ordering::Acquire);
    }
}

/// A thread that loads a figure that is stored after this, and then calls
/// [`figures_were_loaded`], finds what was stored before.
#[inline(always)]
pub(crate) fn figures_were_stored() {
    if cfg!(not(any(loom, shuttle))) {
        // No edge: as above.
        fence(Ordering::Release);
    }
}

/// Whether memory that is mapped comes from the system, and not from the allocator. A model sets up
/// its pools thousands of times, and would spend a third of its time in system calls for them.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const fn maps_pages() -> bool {
    cfg!(not(any(loom, shuttle)))
}

/// Stands between a sequentially consistent exchange, or load, and a sequentially consistent load
/// of another word.
///
/// The pair is ordered as it stands, at no cost: on x86-64 the locked exchange is a full barrier
/// and loads keep their order, on aarch64 `casal`/`ldaddal` or `ldar` before `ldar`. Loom treats
/// `SeqCst` accesses as acquire/release, so a model needs the fence.
#[inline(always)]
pub(crate) fn fence_after_exchange() {
    // No edge: the pair that it stands in names its own.
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
