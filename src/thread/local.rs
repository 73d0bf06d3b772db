//! The words that a thread reaches without a call: where its block is, and how deep it is in slow
//! paths. They need no initialisation and no destructor, so a hit reads them at any moment of the
//! thread's life.

use std::cell::Cell;
use std::ptr;

use crate::sync::{TIME_PASSES, follow, model_failed, per_thread};
use crate::thread::block::{Block, no_block};
use crate::thread::slot::Slot;
use crate::thread::slot_cache::SlotCache;

pub(crate) struct Local {
    /// `no_block` before the first slow path and after the destructor.
    pub(super) block: Cell<*const Block>,
    /// Depth of slow paths on this thread's stack. A charge from an allocator or a callback inside
    /// one sees it above zero, takes no lock and waits for nothing.
    pub(super) slow: Cell<u32>,
    /// One of these slow paths is an allocator's: it leaves to others what takes a lock or calls a
    /// policy.
    pub(super) no_alloc: Cell<bool>,
    /// The slot that an allocator has found last.
    pub(crate) slot_cache: SlotCache,
}

per_thread! {
    pub(crate) with_local: Local = Local {
        block: Cell::new(no_block()),
        slow: Cell::new(0),
        no_alloc: Cell::new(false),
        slot_cache: SlotCache::nothing(),
    }
}

impl Local {
    /// This thread's block, for slow paths; `None` where it has none. A hit asks
    /// [`fast_block`](Self::fast_block), which saves the test.
    #[inline]
    pub(crate) fn block(&self) -> Option<&Block> {
        if ptr::eq(self.block.get(), no_block()) {
            None
        } else {
            // From here on the pointer is one of the registry's, which never frees a block.
            self.fast_block()
        }
    }

    /// True if a slow path of this thread is under way.
    #[inline(always)]
    pub(crate) fn is_in_slow_path(&self) -> bool {
        self.slow.get() > 0
    }

    /// This thread's block, or one without pages.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn fast_block(&self) -> Option<&Block> {
        // SAFETY: `no_block`, or the pointer of a block that the registry never frees;
        // `BlockHolder` takes it away before it releases the block to another thread.
        unsafe { follow(self.block.get()) }
    }
}

/// One more slow path on the thread's stack, until the value is dropped. It stays on its thread,
/// and such values drop in the reverse order of their making.
pub(super) struct SlowDepth {
    /// The depth outside of it, and whether one of the slow paths there is an allocator's.
    pub(super) outside: u32,
    no_alloc: bool,
}

impl SlowDepth {
    #[inline]
    pub(super) fn enter(no_alloc: bool) -> SlowDepth {
        with_local(|local| SlowDepth {
            outside: local.slow.replace(local.slow.get() + 1),
            // What runs inside an allocator's slow path is bound by the same rules, whatever it is:
            // it must not take a lock that the allocator's caller may hold.
            no_alloc: local.no_alloc.replace(no_alloc || local.no_alloc.get()),
        })
    }
}

impl Drop for SlowDepth {
    #[inline]
    fn drop(&mut self) {
        // The values as they were, and not one less: a panic may pass several of these in turn, and
        // each leaves what its own caller had.
        // A model that has failed is past its thread-locals.
        if !model_failed() {
            with_local(|local| {
                local.slow.set(self.outside);
                local.no_alloc.set(self.no_alloc);
            });
        }
    }
}

/// Calls `read` with this thread's block, if it has one.
pub(crate) fn with_block<R>(read: impl FnOnce(Option<&Block>) -> R) -> R {
    with_local(|local| read(local.block()))
}

/// True while this thread moves credit. For assertions: a model does not ask, because each load
/// would be one more point of its schedules.
pub(crate) fn is_in_transit() -> bool {
    TIME_PASSES && with_block(|block| block.is_some_and(|block| !block.transit.is_over()))
}

/// The number of this thread's block, given out again when the thread has ended; 0 where it has
/// none.
pub(crate) fn number() -> u32 {
    with_block(|block| block.map_or(0, Block::number))
}

/// Activates a slot of this thread. The slot cache may have kept the slot while the object was
/// another counter. This one may show no place for its slots, so that each hit takes the slow path,
/// and a kept slot would pass by that: the cache is emptied.
pub(crate) fn activate(slot: &Slot) {
    // Mutation: e12-allocator-keeps-the-place-of-another-counter
    with_local(|local| local.slot_cache.forget());
    slot.activate();
}
