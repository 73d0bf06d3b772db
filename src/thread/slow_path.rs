//! The slow paths of a thread: what takes locks, waits or allocates. They nest where an allocator
//! charges inside one.

use std::cell::Cell;
use std::ptr;

use crate::sync::per_thread;
use crate::thread::block::Block;
use crate::thread::local::{Local, SlowDepth, with_local};
use crate::thread::registry::register;

/// A slow path on the thread's stack, until the value is dropped.
#[must_use]
pub(crate) struct Entered {
    depth: SlowDepth,
    no_alloc: bool,
    thread: Outermost,
}

/// Proof that no other slow path of this thread is under way: its holder may take locks and wait. A
/// function that needs this asks for it as a parameter.
pub(crate) struct Outermost {
    /// Null where the thread has no block.
    block: *const Block,
}

/// Proof that the thread has entered a slow path that is not declared an allocator's, so that it
/// may take locks and wait. It does not show that the thread is in no transit: the tree's lock
/// asserts that.
pub(crate) trait MayWait {}

impl MayWait for Outermost {}

impl Entered {
    /// Enters a slow path, and registers the thread if it has no block yet.
    #[inline]
    pub(crate) fn enter() -> Entered {
        Entered::new(false)
    }

    /// Enters the slow path of an allocator's charge: it takes no lock, allocates nothing and calls
    /// no policy, wherever it runs.
    #[inline]
    pub(crate) fn no_alloc() -> Entered {
        Entered::new(true)
    }

    #[inline]
    fn new(no_alloc: bool) -> Entered {
        // Before the registration, so that an allocator which charges inside it finds itself
        // nested.
        let depth = SlowDepth::enter(no_alloc);
        let mut block = with_local(block_of);
        // Registration is for the outermost slow path alone: it may allocate, and an allocator that
        // charges then comes here out of the registration itself.
        if block.is_null() && depth.outside == 0 && register() {
            block = with_local(block_of);
        }
        Entered {
            depth,
            no_alloc,
            thread: Outermost { block },
        }
    }

    #[inline]
    pub(crate) fn block(&self) -> Option<&Block> {
        self.thread.block()
    }

    /// True if no other slow path of the thread is under way.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.depth.outside == 0
    }

    /// Returns the thread's block if this slow path may move credit: a nested one puts nothing into
    /// slots and counts elsewhere.
    #[inline]
    pub(crate) fn own_block(&self) -> Option<&Block> {
        self.block().filter(|_| self.is_alone())
    }

    /// Returns proof that this slow path may take locks and wait for threads. `None`: it may not,
    /// because it is an allocator's, or runs inside another one of the thread.
    #[inline]
    pub(crate) fn outermost(&self) -> Option<&Outermost> {
        (self.is_alone() && !self.no_alloc).then_some(&self.thread)
    }
}

impl Outermost {
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn block(&self) -> Option<&Block> {
        // SAFETY: null, or a block of the registry, which is never freed. It stays this thread's
        // until a destructor at the thread's exit gives it up; by then no value on the thread's
        // stack is left, and a pointer keeps this one there.
        unsafe { self.block.as_ref() }
    }
}

/// True if this thread is in an allocator's slow path.
pub(crate) fn is_no_alloc() -> bool {
    with_local(|local| local.no_alloc.get())
}

/// A thread with a block, outside of any slow path. What its holder does takes no lock, waits for
/// no thread, allocates nothing and calls no foreign code: it needs no slow path.
pub(crate) struct OutsideSlowPath {
    block: *const Block,
}

impl OutsideSlowPath {
    #[inline(always)]
    pub(crate) fn this_thread() -> Option<OutsideSlowPath> {
        let (block, inside) = with_local(|local| (block_of(local), local.is_in_slow_path()));
        (!inside && !block.is_null()).then_some(OutsideSlowPath { block })
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: not null; as in `Outermost::block`.
        unsafe { &*self.block }
    }
}

#[inline]
fn block_of(local: &Local) -> *const Block {
    local.block().map_or(ptr::null(), ptr::from_ref)
}

/// True if this thread is in a slow path: it is an allocator that charges inside one.
pub(crate) fn is_running() -> bool {
    with_local(|local| local.slow.get() > 0)
}

/// True if this thread is in a slow path inside another one: an allocator that charges, and whose
/// own slow path must not be entered again.
pub(crate) fn is_nested() -> bool {
    with_local(|local| local.slow.get() > 1)
}

// === What the thread does at the end: two lists, each linked through its own members ===

per_thread! {
    /// The first of the groups that this thread must release.
    with_release_queue: Cell<*const ()> = Cell::new(ptr::null())
}

per_thread! {
    /// The first of the levels that this thread must serve.
    with_served: Cell<*const ()> = Cell::new(ptr::null())
}

/// Puts `first` in front of what this thread must release. Returns what was there.
pub(crate) fn exchange_release_queue(first: *const ()) -> *const () {
    with_release_queue(|queue| queue.replace(first))
}

/// Puts `first` in front of what this thread must serve. Returns what was there.
#[inline]
pub(crate) fn exchange_served(first: *const ()) -> *const () {
    with_served(|served| served.replace(first))
}

#[inline]
pub(crate) fn has_to_serve() -> bool {
    with_served(|served| !served.get().is_null())
}
