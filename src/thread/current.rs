//! The current group of this thread: the one that is charged for what the thread allocates.
//!
//! The thread keeps two words: the group, and the innermost of its scopes. A scope remembers what
//! both words were when it began. So scopes form a chain, from the innermost to the outermost. The
//! scope of a call lies on its stack. That of a guard lies in one of a few places of the thread, or
//! on the heap where all are taken. A guard may be dropped in any order, and may be forgotten.
//!
//! No count changes in a switch: the caller that begins a scope keeps the group until the scope is
//! out of the chain.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::sync::{model_failed, per_thread};
use crate::thread::directory::Header;
use crate::thread::local::SlowDepth;

/// Most guards of a thread whose scopes take no memory of the heap: one for each bit of
/// [`Current::taken`]. Few threads have a second guard.
const PLACES: usize = u8::BITS as usize;

#[repr(C)]
struct Current {
    group: Cell<*const Header>,
    /// How many guards have left the chain from within. Each may have changed what the scope of a
    /// call has on its stack. In between the two pointers, so that the compiler moves each by a
    /// register: as one vector, a switch back would wait for the store of the last switch twice.
    unlinked: Cell<usize>,
    innermost: Cell<*const CurrentScope>,
    places: [CurrentScope; PLACES],
    /// A bit for each place that a guard has.
    taken: Cell<u8>,
}

per_thread! {
    with_current: Current = Current {
        group: Cell::new(ptr::null()),
        unlinked: Cell::new(0),
        innermost: Cell::new(ptr::null()),
        places: [const { CurrentScope { group: Cell::new(ptr::null()), outer: Cell::new(ptr::null()) } }; PLACES],
        taken: Cell::new(0),
    }
}

/// The thread's words as they were outside of this scope. A guard that leaves the chain may change
/// it.
struct CurrentScope {
    group: Cell<*const Header>,
    outer: Cell<*const CurrentScope>,
}

/// A call's copy of its scope, which stays in registers. It holds while no guard has left the chain
/// from within.
#[derive(Clone, Copy)]
struct OuterScope {
    group: *const Header,
    outer: *const CurrentScope,
    unlinked: usize,
}

/// Owner of the allocations of this thread: null, or a header.
#[inline(always)]
pub(crate) fn word() -> *const Header {
    with_current(|current| current.group.get())
}

/// Calls `owned` or `unowned`, by the owner of this thread's allocations. Each is code of its own:
/// made a value first, the answer costs more instructions than the test.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn allocate_for<R>(
    owned: impl FnOnce(&'static Header) -> R,
    unowned: impl FnOnce() -> R,
) -> R {
    // SAFETY: null, or a header that `begin` was given; headers are never freed.
    match unsafe { word().as_ref() } {
        Some(header) => owned(header),
        None => unowned(),
    }
}

/// The header of the current group's first counter; `None` where the thread is in no group. The
/// scope keeps the group in its incarnation. The group may be offline.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn header() -> Option<&'static Header> {
    // SAFETY: null, or a header that `begin` was given; headers are never freed.
    with_current(|current| unsafe { current.group.get().as_ref() })
}

/// Runs `work` with `header` as the current group, or with none. Afterwards the thread's words are
/// as they were, also where `work` panics; what `work` has entered and not left ends here. The
/// caller keeps the group meanwhile.
#[inline]
pub(crate) fn within<R>(header: Option<&'static Header>, work: impl FnOnce() -> R) -> R {
    struct End<'a>(&'a CurrentScope, OuterScope);
    impl Drop for End<'_> {
        #[inline]
        fn drop(&mut self) {
            self.0.end_call(self.1);
        }
    }
    let scope = CurrentScope::new();
    let _end = End(
        &scope,
        scope.begin(header.map_or(ptr::null(), ptr::from_ref)),
    );
    work()
}

/// Scope of a guard. Dropped, it leaves the chain, wherever it is there.
pub(crate) struct EnteredScope {
    scope: NonNull<CurrentScope>,
    /// The bit of its place; 0 on the heap.
    place: u8,
}

impl EnteredScope {
    /// From here on `header` is the current group. The caller keeps the group until the entry is
    /// dropped; for ever, if it is forgotten.
    pub(crate) fn enter(header: &'static Header) -> EnteredScope {
        let outside = CurrentScope::new();
        let in_place = with_current(|current| {
            // The lowest place that is free. With all of them taken there is none of that number.
            let taken = current.taken.get();
            let own = current.places.get(taken.trailing_ones() as usize)?;
            own.group.swap(&outside.group);
            own.outer.swap(&outside.outer);
            let place = taken.wrapping_add(1) & !taken;
            current.taken.set(taken | place);
            Some(EnteredScope {
                scope: NonNull::from(own),
                place,
            })
        });
        let entered = in_place.unwrap_or_else(|| {
            // Memory of the crate, and of no group: allocated as in a slow path.
            let _slow = SlowDepth::enter(false);
            // A raw pointer, and no box: the chain points to the scope while the entry moves.
            EnteredScope {
                scope: NonNull::from(Box::leak(Box::new(outside))),
                place: 0,
            }
        });
        entered.scope().begin(header);
        entered
    }

    #[allow(unsafe_code)]
    fn scope(&self) -> &CurrentScope {
        // SAFETY: a place of this thread, to which the value is bound; or `enter` has made it, and
        // the drop frees it.
        unsafe { self.scope.as_ref() }
    }
}

impl Drop for EnteredScope {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        self.scope().end_guard();
        if self.place == 0 {
            // SAFETY: `enter` leaked it; the chain does not point to it any more.
            // Mutation: a-guard-without-a-place-keeps-its-memory
            drop(unsafe { Box::from_raw(self.scope.as_ptr()) });
        } else if !model_failed() {
            with_current(|current| current.taken.set(current.taken.get() & !self.place));
        }
    }
}

impl CurrentScope {
    /// A scope that begins at once, from where it lies.
    #[inline]
    fn new() -> CurrentScope {
        with_current(|current| CurrentScope {
            group: current.group.clone(),
            outer: current.innermost.clone(),
        })
    }

    /// The scope does not move until it ends, or until a scope further out has ended.
    #[inline]
    fn begin(&self, group: *const Header) -> OuterScope {
        with_current(|current| {
            current.group.set(group);
            current.innermost.set(self);
            OuterScope {
                group: self.group.get(),
                outer: self.outer.get(),
                unlinked: current.unlinked.get(),
            }
        })
    }

    /// The call is over: the scope leaves the chain, with all that are further in.
    #[inline]
    fn end_call(&self, before: OuterScope) {
        // A model that has failed is past its thread-locals.
        if model_failed() {
            return;
        }
        with_current(|current| {
            // The common case: this scope is the innermost again, and no guard has left the chain
            // from within since it began. Then nobody has changed what the scope has on the stack,
            // and the call's copy in registers holds: no load waits for a store of the last switch.
            if ptr::eq(current.innermost.get(), self) && current.unlinked.get() == before.unlinked {
                current.group.set(before.group);
                current.innermost.set(before.outer);
            } else {
                self.end_call_slow(current);
            }
        });
    }

    /// The end of a call that is not the simple one: guards have left the chain, or are still
    /// further in, or were forgotten there. Where the scope is in the chain no more, one further
    /// out has ended and has restored the words.
    #[cold]
    #[inline(never)]
    fn end_call_slow(&self, current: &Current) {
        if ptr::eq(current.innermost.get(), self) || self.further_in(current).is_some() {
            self.restore(current);
        }
    }

    /// The guard is dropped: the scope leaves the chain alone. Where it is not there, a scope
    /// further out has ended.
    fn end_guard(&self) {
        if model_failed() {
            return;
        }
        with_current(|current| {
            if ptr::eq(current.innermost.get(), self) {
                self.restore(current);
            } else if let Some(scope) = self.further_in(current) {
                // The next scope further in takes over what this one would have restored, so the
                // chain closes around it. The thread's own words stay as they are.
                // Mutation: a-guard-that-ends-first-stays-current
                scope.group.set(self.group.get());
                scope.outer.set(self.outer.get());
                current.unlinked.set(current.unlinked.get().wrapping_add(1));
            }
        });
    }

    fn restore(&self, current: &Current) {
        current.group.set(self.group.get());
        current.innermost.set(self.outer.get());
    }

    /// The next scope further in than this one, where this one is in the chain.
    #[allow(unsafe_code)]
    fn further_in<'a>(&self, current: &'a Current) -> Option<&'a CurrentScope> {
        let mut inner = current.innermost.get();
        // SAFETY: a scope in the chain is alive. One on the stack leaves the chain at the end of
        // its call, with all that are further in. One of a guard leaves it before its place or its
        // memory is free, or the guard is forgotten.
        while let Some(scope) = unsafe { inner.as_ref() } {
            if ptr::eq(scope.outer.get(), self) {
                return Some(scope);
            }
            inner = scope.outer.get();
        }
        None
    }
}
