//! The words that a thread reaches without a call: where its block is, and how deep it is in slow paths.

use std::cell::Cell;
use std::ptr;

use crate::sync::{follow, per_thread};
use crate::thread::block::{Block, no_block};

/// The words of one thread.
pub(crate) struct Local {
    /// `no_block` before the first slow path and after the destructor.
    pub(super) block: Cell<*const Block>,
    /// Depth of slow paths on this thread's stack. A charge from an allocator or a callback inside one sees it above
    /// zero, takes no lock and waits for nothing.
    pub(super) slow: Cell<u32>,
}

per_thread!(pub(crate) with_local: Local = Local::new());

impl Local {
    const fn new() -> Self {
        Local { block: Cell::new(no_block()), slow: Cell::new(0) }
    }

    /// This thread's block, once it has one.
    pub(crate) fn block(&self) -> Option<&Block> {
        if ptr::eq(self.block.get(), no_block()) { None } else { self.fast_block() }
    }

    /// This thread's block, or one without pages.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn fast_block(&self) -> Option<&Block> {
        // SAFETY: `no_block`, or the pointer of a block that the registry never frees; `Owner` takes it away before it
        // releases the block to another thread.
        unsafe { follow(self.block.get()) }
    }

    /// Counts one more slow path on the thread's stack, until the value is dropped.
    #[inline]
    pub(super) fn deeper(&self) -> Deeper<'_> {
        self.slow.set(self.slow.get() + 1);
        Deeper(self)
    }
}

/// A slow path on the thread's stack.
pub(super) struct Deeper<'a>(&'a Local);

impl Drop for Deeper<'_> {
    fn drop(&mut self) {
        self.0.slow.set(self.0.slow.get() - 1);
    }
}

/// This thread's block, once it has one.
pub(crate) fn with_block<R>(read: impl FnOnce(Option<&Block>) -> R) -> R {
    with_local(|local| read(local.block()))
}

/// The number of this thread's block, given out again when the thread has ended; 0 where it has none.
pub(crate) fn number() -> u32 {
    with_block(|block| block.map_or(0, |block| block.id()))
}
