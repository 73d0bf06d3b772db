//! The levels that a thread serves at the end of its slow path: their waiters for room, and for events.

use crate::counter::watch::FIRST_OF_POLICIES;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicPtr;

/// A thread waits for an event, or a listener is registered.
pub(crate) const LISTENS: u64 = 1 << FIRST_OF_POLICIES;
/// Charges of this group wait, here or further up.
pub(crate) const WAITS: u64 = 1 << (FIRST_OF_POLICIES + 1);
/// The level is in the list of a thread that serves it.
pub(crate) const LISTED: u64 = 1 << (FIRST_OF_POLICIES + 2);

/// The next level in the list of the thread that serves this one; what it was, where the level is in no list.
#[derive(Default)]
pub(crate) struct NextServed(AtomicPtr<()>);

impl NextServed {
    pub(crate) fn get(&self) -> *const () {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, next: *const ()) {
        self.0.store(next.cast_mut(), Ordering::Relaxed);
    }
}
