//! What a thread must do at the end of its outermost slow path: two lists, each linked through its own members.

use std::cell::Cell;
use std::ptr;

use crate::sync::per_thread;

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
