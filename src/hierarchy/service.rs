//! The list of levels that a thread serves at the end of its slow path: each with a handle, and in
//! one list at a time.
//!
//! Edges: E25 (a waiter), E26 (a thread that waits for an event).

use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::object::{Counter, Object};
use crate::counter::watch::FIRST_OF_POLICIES;
use crate::hierarchy::group_object;
use crate::sync::Ordering;
use crate::thread::slow_path::exchange_served;

/// A thread waits for an event, or a listener is registered.
pub(crate) const LISTENS: u64 = 1 << FIRST_OF_POLICIES;
/// Charges of this group wait, here or further up.
pub(crate) const WAITS: u64 = 1 << (FIRST_OF_POLICIES + 1);
/// The level is in the list of a thread that serves it.
const LISTED: u64 = 1 << (FIRST_OF_POLICIES + 2);

/// Have this thread serve the level at the end of its slow path, unless another thread has
/// scheduled that. The caller keeps the counter; from here on a handle of the list does.
pub(crate) fn schedule(level: &Counter) {
    // SeqCst (E25, E26): pairs with `unschedule`. Where the level is listed already, the thread
    // that serves it sees all before this.
    if level.limits.watched.set(LISTED) & LISTED == 0 {
        let after = exchange_served(ptr::from_ref(Handle::pin(level).into_raw()).cast());
        group_object::state(level)
            .next_served
            .store(after.cast_mut(), Ordering::Relaxed);
    }
}

/// Take the level off the list, before the thread serves it.
pub(crate) fn unschedule(level: &Counter) {
    // SeqCst (E25, E26): before the read of usage and counts; pairs with `schedule`.
    level.limits.watched.clear(LISTED);
}

pub(crate) struct Scheduled(*const Object);

impl Scheduled {
    /// The list that the thread has handed to
    /// [`Policies::server`](crate::counter::object::tree::Policies::server).
    pub(crate) fn new(first: *const ()) -> Scheduled {
        Scheduled(first.cast())
    }
}

impl Iterator for Scheduled {
    type Item = Handle;

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<Handle> {
        // SAFETY: `schedule` has listed it with a handle; objects are never freed.
        let level = Handle::adopt(unsafe { self.0.as_ref::<'static>() }?);
        self.0 = group_object::state(&level)
            .next_served
            .load(Ordering::Relaxed)
            .cast();
        Some(level)
    }
}
