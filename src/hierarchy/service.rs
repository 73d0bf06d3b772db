//! The list of levels that a thread serves at the end of its slow path: each with a handle, and in one list at a time.
//!
//! Edges: E25 (a waiter), E26 (a thread that waits for an event).

use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::hierarchy::group_object;
use crate::state::service::{LISTED, NextServed};
use crate::thread::deferred;

fn next(of: &Counter) -> &'static NextServed {
    &group_object::state(of).next_served
}

/// Have this thread serve the level at the end of its slow path, unless another thread has scheduled that. The caller
/// keeps the counter; from here on a handle of the list does.
pub(crate) fn schedule(level: &Counter) {
    // SeqCst (E25, E26): pairs with `unschedule`. Where the level is listed already, the thread that serves it sees all
    // before this.
    if level.limits.watched.set(LISTED) & LISTED == 0 {
        let level = Handle::pin(level.header.counter()).into_raw();
        let after = deferred::exchange_served(ptr::from_ref(level).cast());
        next(level).set(after);
    }
}

/// Take the level off the list, before the thread serves it.
pub(crate) fn unschedule(level: &Counter) {
    // SeqCst (E25, E26): before the read of usage and counts; pairs with `schedule`.
    level.limits.watched.clear(LISTED);
}

/// A list of levels that a thread has scheduled.
pub(crate) struct Scheduled(*const Counter);

impl Scheduled {
    /// The list that the thread has handed to [`Policies::server`](crate::counter::object::tree::Policies::server).
    pub(crate) fn new(first: *const ()) -> Scheduled {
        Scheduled(first.cast())
    }
}

impl Iterator for Scheduled {
    type Item = Handle;

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<Handle> {
        // SAFETY: `schedule` has listed it with a handle; objects are never freed.
        let level = unsafe { self.0.as_ref::<'static>() }?;
        self.0 = next(level).get().cast();
        Some(Handle::adopt(level))
    }
}
