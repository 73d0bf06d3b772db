//! A slow path of a thread, and what the thread does at its end, when it holds no lock: it releases
//! the objects that it has claimed, and serves the counters that it has scheduled.

use std::cell::OnceCell;
use std::ops::Deref;
use std::{mem, ptr, thread};

use crate::counter::object::tree::Policies;
use crate::counter::object::{Counter, Object};
use crate::sync::{Ordering, model_failed};
use crate::thread::deferred::{LISTS, ListOfProcess, deferred};
use crate::thread::foreign::Foreign;
use crate::thread::reports;
use crate::thread::slow_path::{self, Entered, MayWait};

/// A slow path of this thread, until the value is dropped.
#[must_use]
pub(crate) struct SlowPath {
    entered: Entered,
    /// Dropped after the field above: the thread is out of the path then.
    _end: PathEnd,
}

/// Work of the thread at the end of its outermost slow path.
struct PathEnd {
    outermost: bool,
    /// The thread unwinds from a panic already, and the path is in a destructor.
    unwinding: bool,
}

impl SlowPath {
    #[inline]
    pub(crate) fn enter() -> SlowPath {
        let entered = Entered::enter();
        let end = PathEnd {
            outermost: entered.outermost().is_some(),
            unwinding: thread::panicking(),
        };
        SlowPath { entered, _end: end }
    }
}

impl MayWait for SlowPath {}

impl Deref for SlowPath {
    type Target = Entered;

    #[inline]
    fn deref(&self) -> &Entered {
        &self.entered
    }
}

/// A slow path that a thread enters when it first needs one. Until then its caller takes no lock,
/// waits for no thread, allocates nothing and calls no foreign code.
pub(crate) struct LazySlowPath {
    path: OnceCell<SlowPath>,
    outside: bool,
}

impl LazySlowPath {
    /// Makes a path for a thread that may be in no slow path.
    #[inline(always)]
    pub(crate) const fn outside() -> LazySlowPath {
        LazySlowPath {
            path: OnceCell::new(),
            outside: true,
        }
    }

    /// Makes a path for a thread that is in a slow path already, and so has nothing to enter.
    #[inline(always)]
    pub(crate) const fn inside() -> LazySlowPath {
        LazySlowPath {
            path: OnceCell::new(),
            outside: false,
        }
    }

    #[inline(always)]
    pub(crate) fn is_outside(&self) -> bool {
        self.outside && self.path.get().is_none()
    }

    /// Enters the slow path, if the thread is in none.
    #[cold]
    pub(crate) fn enter(&self) {
        if self.outside {
            self.entered();
        }
    }

    /// Returns the slow path, which it enters if need be. Only for a path made with
    /// [`outside`](Self::outside).
    pub(crate) fn entered(&self) -> &SlowPath {
        self.path.get_or_init(SlowPath::enter)
    }
}

impl Drop for PathEnd {
    #[inline]
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        let leaves = LeavesWork;
        if thread::panicking() == self.unwinding {
            release_all_claimed();
            if slow_path::has_to_serve() {
                serve_slow();
            }
            reports::report();
            // Work that allocators have left.
            if deferred().take_due(LISTS) {
                serve_deferred_slow();
            }
            mem::forget(leaves);
        }
    }
}

/// A panic of the engine leaves the path, or the work at its end, and this thread may end with it:
/// the next outermost slow path of any thread does the work.
struct LeavesWork;

impl Drop for LeavesWork {
    #[cold]
    fn drop(&mut self) {
        if !model_failed() {
            defer_releases();
            hand_to_policies(slow_path::exchange_served(ptr::null()), |policies| {
                policies.leaver()
            });
        }
    }
}

/// Objects that are linked by `next_to_release`. What is left of them when the value is dropped
/// goes to a list of the process, for the next outermost slow path of any thread.
pub(crate) struct LinkedObjects {
    next: *const Object,
    list: ListOfProcess,
}

pub(crate) const LOOKS: ListOfProcess = |all| &all.looks;
const RELEASES: ListOfProcess = |all| &all.releases;

impl LinkedObjects {
    pub(crate) fn new(first: *const (), list: ListOfProcess) -> LinkedObjects {
        let next = first.cast();
        LinkedObjects { next, list }
    }
}

impl Iterator for LinkedObjects {
    type Item = &'static Object;

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<&'static Object> {
        // SAFETY: null, or an object that `claim` or `look::defer` has listed; objects are never
        // freed.
        let object = unsafe { self.next.as_ref::<'static>() }?;
        self.next = object.usage.next_to_release.load(Ordering::Relaxed);
        Some(object)
    }
}

impl Drop for LinkedObjects {
    fn drop(&mut self) {
        let first = self.next;
        if first.is_null() || model_failed() {
            return;
        }
        if let Some(last) = self.by_ref().last() {
            let all = deferred();
            all.list(self.list).push(first.cast(), |after| {
                last.usage
                    .next_to_release
                    .store(after.cast_mut().cast(), Ordering::Relaxed);
            });
            all.announce(LISTS);
        }
    }
}

/// Releases what this thread has claimed. The thread holds no lock and runs no slow path.
#[inline]
pub(crate) fn release_all_claimed() {
    loop {
        let first = slow_path::exchange_release_queue(ptr::null());
        if first.is_null() {
            return;
        }
        release_claimed_slow(first);
    }
}

#[cold]
#[allow(unsafe_code)]
fn release_claimed_slow(first: *const ()) {
    for object in LinkedObjects::new(first, RELEASES) {
        // SAFETY: `claim` queued it, and its exchange gave the object to this thread, which ends
        // the incarnation.
        let group = unsafe { object.kept() };
        // The parent may follow, and with the root the tree: the queue starts anew with it.
        let entered = Entered::enter();
        let gone = group
            .tree()
            .policies()
            .and_then(|policies| policies.release_object(group));
        drop(entered);
        // With the last group goes its tree, and foreign values of the tree: outside of any slow
        // path.
        drop(Foreign::new(gone));
    }
}

/// Does what allocators, and threads that have unwound, have left. Work that allocators defer
/// meanwhile waits for the next slow path: the turns end.
#[cold]
#[inline(never)]
#[allow(unsafe_code)]
fn serve_deferred_slow() {
    // Each leaves the list before its mark is taken: from then on another thread may list the
    // counter again.
    for object in LinkedObjects::new(deferred().looks.take(), LOOKS) {
        // SAFETY: `look::defer` has listed it with a handle, which `look_again` gives up.
        let counter: &Counter = unsafe { object.kept() };
        if let Some(policies) = counter.tree().policies() {
            policies.look_again(object);
        }
    }
    release_claimed_slow(deferred().releases.take());
    release_all_claimed();
    serve_slow();
    hand_to_policies(deferred().services.take(), |policies| policies.server());
}

/// Leaves the groups that this thread has claimed to the next outer slow path of any thread.
pub(crate) fn defer_releases() {
    let claimed = slow_path::exchange_release_queue(ptr::null());
    drop(LinkedObjects::new(claimed, RELEASES));
}

#[cold]
#[inline(never)]
fn serve_slow() {
    hand_to_policies(slow_path::exchange_served(ptr::null()), |policies| {
        policies.server()
    });
}

/// Hands a list of scheduled levels to a function of the policies of its first level.
#[allow(unsafe_code)]
fn hand_to_policies(scheduled: *const (), function: impl FnOnce(&dyn Policies) -> fn(*const ())) {
    // SAFETY: `hierarchy::service::schedule` took a handle, which the policies give up.
    let first = unsafe {
        scheduled
            .cast::<Object>()
            .as_ref()
            .map(|object| object.kept())
    };
    if let Some(function) = first
        .and_then(|first| first.tree().policies())
        .map(function)
    {
        function(scheduled);
    }
}
