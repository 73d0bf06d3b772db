//! Work that allocators, and threads that unwind, defer to slow paths: lists that threads push to
//! without a lock.
//!
//! A list is linked through its members. A thread pushes one member at a time or a chain, another
//! thread takes the whole list: so no member comes back between a thread's look at the first one
//! and its exchange.
//!
//! Edge: E46 (left/taken).

use std::ptr;

use crate::sync::stat_atomic::{AtomicBool, AtomicU8};
use crate::sync::{AtomicPtr, Ordering, process_const};

/// Of the process: what threads have left, and no thread has taken yet.
pub(crate) struct Deferred {
    /// Counters to look at, each with a handle.
    pub(crate) looks: DeferredList,
    /// Groups that a thread has claimed and must release.
    pub(crate) releases: DeferredList,
    /// Levels to serve, each with a handle and marked as listed: those of a thread that unwinds.
    pub(crate) services: DeferredList,
    /// Work since the last look: a hint, whose bits are those below.
    due: AtomicU8,
    /// An allocator of the process charges groups.
    charges: AtomicBool,
}

process_const! {
    pub(crate) deferred: Deferred = Deferred {
        looks: DeferredList(AtomicPtr::new(ptr::null_mut())),
        releases: DeferredList(AtomicPtr::new(ptr::null_mut())),
        services: DeferredList(AtomicPtr::new(ptr::null_mut())),
        due: AtomicU8::new(0),
        charges: AtomicBool::new(false)
    }
}

/// Something is in the lists.
pub(crate) const LISTS: u8 = 1;
/// A thread has counted many bytes that no group owns.
pub(crate) const UNOWNED: u8 = 1 << 1;

pub(crate) struct DeferredList(AtomicPtr<()>);

/// Which of the lists.
pub(crate) type ListOfProcess = fn(&Deferred) -> &DeferredList;

impl Deferred {
    pub(crate) fn list(&self, which: ListOfProcess) -> &DeferredList {
        which(self)
    }

    /// Has the next outer slow path, or the next switch of groups, do it: after the push.
    pub(crate) fn announce(&self, what: u8) {
        // Relaxed, here and below: a hint. An exchange also where the bit seems to be set: another
        // thread may be about to clear it.
        self.due.fetch_or(what, Ordering::Relaxed);
    }

    /// An allocator has missed: see [`charges`](Self::charges).
    pub(crate) fn note_charge(&self) {
        // A load first: each miss of an allocator comes here, and threads would send each other the
        // line for a word that is set once.
        if !self.charges() {
            self.charges.store(true, Ordering::Relaxed);
        }
    }

    /// True if an allocator of the process charges groups: then the stock of a group opens before
    /// its first walk.
    #[inline]
    pub(crate) fn charges(&self) -> bool {
        self.charges.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// True if this has become due since the last call. A hint: a thread that comes too early
    /// leaves it to the next one.
    #[inline]
    pub(crate) fn take_due(&self, what: u8) -> bool {
        self.due.load(Ordering::Relaxed) & what != 0
            && self.due.fetch_and(!what, Ordering::Relaxed) & what != 0
    }
}

impl DeferredList {
    /// Pushes a chain that begins with `first`. `set_next` links the last of it to what it is
    /// given.
    pub(crate) fn push(&self, first: *const (), set_next: impl Fn(*const ())) {
        let mut next = self.0.load(Ordering::Relaxed);
        loop {
            // Before the exchange that shows the member: a thread that takes the list follows the
            // link at once.
            set_next(next);
            // Release (E46): the thread that takes the list comes after all that this one did
            // before; pairs with `take`.
            // Mutation: e46-left-list-pushed-without-exchange
            match self.0.compare_exchange_weak(
                next,
                first.cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => next = now,
            }
        }
    }

    /// Takes the list: its first member, or null.
    pub(crate) fn take(&self) -> *const () {
        // Acquire (E46): pairs with `push`.
        self.0.swap(ptr::null_mut(), Ordering::Acquire)
    }
}
