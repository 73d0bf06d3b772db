//! The list of levels that a thread serves at the end of its slow path: each with a handle, and in
//! one list at a time.
//!
//! Edges: E25 (a waiter), E26 (a thread that waits for an event).

use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::object::{Counter, Object};
use crate::counter::watch::of_policies;
use crate::hierarchy::group_object;
use crate::sync::{Ordering, model_failed};
use crate::thread::deferred::{LISTS, deferred};
use crate::thread::slow_path::exchange_served;

/// A thread waits for an event, or a listener is registered.
pub(crate) const LISTENS: u64 = of_policies(0);
/// Charges of this group wait, here or further up.
pub(crate) const WAITS: u64 = of_policies(1);
/// The level is in the list of a thread that serves it.
pub(crate) const LISTED: u64 = of_policies(2);

const _: () = assert!(
    LISTENS | WAITS | LISTED == LISTENS + WAITS + LISTED,
    "a bit has two meanings"
);

/// Has this thread serve the level at the end of its slow path, unless another thread has
/// scheduled that. The caller keeps the counter; from here on a handle of the list does.
pub(crate) fn schedule(level: &Counter) {
    // SeqCst (E25, E26): pairs with `unschedule`. Where the level is listed already, the thread
    // that serves it sees all before this.
    if level.limits.watched.set(LISTED) & LISTED == 0 {
        // In front of the thread's list. The order does not matter: each level is looked at anew
        // when its turn comes.
        let after = exchange_served(ptr::from_ref(Handle::pin(level).into_raw()).cast());
        group_object::state(level)
            .next_served
            .store(after.cast_mut(), Ordering::Relaxed);
    }
}

/// Takes the level off the list, before the thread serves it.
pub(crate) fn unschedule(level: &Counter) {
    // SeqCst (E25, E26): before the read of usage and counts; pairs with `schedule`.
    level.limits.watched.clear(LISTED);
}

/// A list of levels that a thread has scheduled. What is left of it when the value is dropped goes
/// to the next outermost slow path of any thread: a level that is marked as listed is in a list.
pub(crate) struct ScheduledLevels(*const Object);

// SAFETY: the value owns the list, and a handle of each level in it.
#[allow(unsafe_code)]
unsafe impl Send for ScheduledLevels {}

impl ScheduledLevels {
    /// The list that the thread has handed to
    /// [`Policies::server`](crate::counter::object::tree::Policies::server).
    pub(crate) fn new(first: *const ()) -> ScheduledLevels {
        ScheduledLevels(first.cast())
    }

    /// What this thread has scheduled.
    pub(crate) fn take() -> ScheduledLevels {
        ScheduledLevels::new(exchange_served(ptr::null()))
    }

    #[allow(unsafe_code)]
    fn object(&self) -> Option<&'static Object> {
        // SAFETY: `schedule` has listed it with a handle; objects are never freed.
        unsafe { self.0.as_ref() }
    }

    #[allow(unsafe_code)]
    pub(crate) fn first(&self) -> Option<&Counter> {
        // SAFETY: the list has a handle.
        self.object().map(|level| unsafe { level.kept() })
    }
}

impl Iterator for ScheduledLevels {
    type Item = Handle;

    fn next(&mut self) -> Option<Handle> {
        let level = Handle::adopt(self.object()?);
        self.0 = next(&level).cast();
        Some(level)
    }
}

impl Drop for ScheduledLevels {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let Some(mut last) = self.first().filter(|_| !model_failed()) else {
            return;
        };
        // SAFETY: as in `first`, for each of the list.
        while let Some(after) = unsafe { next(last).cast::<Object>().as_ref() } {
            // SAFETY: as above.
            last = unsafe { after.kept() };
        }
        // With its end known, the whole list goes over in one exchange, whatever its length.
        let all = deferred();
        all.services.push(self.0.cast(), |after| {
            group_object::state(last)
                .next_served
                .store(after.cast_mut(), Ordering::Relaxed);
        });
        all.announce(LISTS);
    }
}

/// The level after this one in its list.
fn next(level: &Counter) -> *const () {
    group_object::state(level)
        .next_served
        .load(Ordering::Relaxed)
}
