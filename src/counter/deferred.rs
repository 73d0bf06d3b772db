//! Counters that an allocator's charge notes for the next slow path: see `allocator.md`.
//!
//! Edge: E45 (usage changes/the counter is looked at).

use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::watch::{DEFERRED, DEFERRED_ABOVE};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::deferred::{LISTS, deferred};

/// Has the next outer slow path of any thread look at a counter and the levels above, after a change of usage. The
/// caller keeps the counter; from here on a handle of the list does.
#[cold]
#[inline(never)]
pub(crate) fn defer(counter: &Counter, what: u64) {
    fence_after_exchange();
    if counter.tree().policies().is_none() {
        return;
    }
    let watched = &counter.limits.watched;
    // SeqCst (E45), in both: after the exchange on usage; pairs with `take`. Where the look is deferred already, the
    // thread that takes the mark reads that usage.
    if watched.bits() & what == what {
        return;
    }
    if watched.set(what) & DEFERRED == 0 {
        let counter = Handle::pin(counter.header.counter()).into_raw();
        let all = deferred();
        all.looks.push(ptr::from_ref(counter).cast(), |next| {
            counter.usage.next_to_release.store(next.cast_mut().cast(), Ordering::Relaxed);
        });
        all.announce(LISTS);
    }
}

/// Takes the marks of a counter that a thread has taken off the list: whether a level was left above its max. The
/// thread reads usage afterwards.
pub(crate) fn take(counter: &Counter) -> bool {
    // SeqCst (E45): before the read of usage; pairs with `defer`.
    let bits = counter.limits.watched.clear(DEFERRED | DEFERRED_ABOVE);
    fence_after_exchange();
    bits & DEFERRED_ABOVE != 0
}
