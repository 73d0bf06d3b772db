//! What a walk leaves for the end of its slow path, and whose code runs on this thread: words of the thread's own.

use std::cell::Cell;
use std::ptr;

/// One waker more on a thread's stack; listeners are counted below it.
const WAKES: u32 = 1 << 16;

/// Who has no ticket has come after all who have.
const NEWCOMER: u64 = u64::MAX;

/// Part of what a thread reaches without a call.
pub(crate) struct Notes {
    /// Levels that this thread has to serve once it holds nothing: a list through them.
    served: Cell<*const ()>,
    /// The ticket of who waits and this thread charges for; [`NEWCOMER`] where for itself.
    ticket: Cell<u64>,
    /// Units of a walk that has left a level above its high; 0: none has.
    over_high: Cell<u64>,
    /// Depth of listeners and of wakers on this thread's stack.
    telling: Cell<u32>,
}

impl Notes {
    pub(crate) const fn new() -> Self {
        Notes {
            served: Cell::new(ptr::null()),
            ticket: Cell::new(NEWCOMER),
            over_high: Cell::new(0),
            telling: Cell::new(0),
        }
    }
}

/// Puts `first` in front of what this thread has to serve; returns what stood there.
#[inline]
pub(crate) fn exchange_served(first: *const ()) -> *const () {
    crate::sync::with_local(|local| local.notes.served.replace(first))
}

/// Charge for somebody else, who waits with this ticket, and is not in reclaim if this thread is.
pub(crate) fn for_another<R>(ticket: u64, charge: impl FnOnce() -> R) -> R {
    let before = crate::sync::with_local(|local| (local.notes.ticket.replace(ticket), local.hook.replace(false)));
    let charged = charge();
    crate::sync::with_local(|local| {
        local.notes.ticket.set(before.0);
        local.hook.set(before.1);
    });
    charged
}

/// Charges for who waits, and came no later than who has that ticket.
pub(crate) fn is_no_later_than(ticket: u64) -> bool {
    crate::sync::with_local(|local| local.notes.ticket.get() <= ticket)
}

/// A walk of `units` has left a level above its high.
pub(crate) fn note_over_high(units: u64) {
    crate::sync::with_local(|local| local.notes.over_high.set(units));
}

/// What was noted, once.
#[inline]
pub(crate) fn take_over_high() -> u64 {
    crate::sync::with_local(|local| match local.notes.over_high.get() {
        0 => 0,
        _ => local.notes.over_high.replace(0),
    })
}

/// Whether this thread has levels to serve.
#[inline]
pub(crate) fn has_to_serve() -> bool {
    crate::sync::with_local(|local| !local.notes.served.get().is_null())
}

/// Listeners on this thread's stack.
pub(crate) fn telling() -> u32 {
    crate::sync::with_local(|local| local.notes.telling.get()) & (WAKES - 1)
}

/// Inside a listener, a waker, a reclaimer or a hook: nobody waits here for calls to end.
pub(crate) fn in_foreign() -> bool {
    crate::thread::registry::in_reclaim() || crate::sync::with_local(|local| local.notes.telling.get()) > 0
}

/// Runs a waker. Where it panics, the thread is outside of it all the same.
pub(crate) fn wake(waker: impl FnOnce()) {
    as_telling(WAKES, waker);
}

/// Runs foreign code as a listener, likewise.
pub(crate) fn tell(listener: impl FnOnce()) {
    as_telling(1, listener);
}

fn as_telling(depth: u32, foreign: impl FnOnce()) {
    struct Leave<'a>(&'a Cell<u32>, u32);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - self.1);
        }
    }
    crate::sync::with_local(|local| {
        let telling = &local.notes.telling;
        telling.set(telling.get() + depth);
        let _leave = Leave(telling, depth);
        foreign();
    });
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_ends_inside_of_foreign_code() {
        let foreign = || {
            assert!(in_foreign());
            panic!("on purpose");
        };
        let runs: [fn(&dyn Fn()); 2] = [|foreign| wake(foreign), |foreign| tell(foreign)];
        for run in runs {
            catch_unwind(AssertUnwindSafe(|| run(&foreign))).expect_err("it panics");
            assert!(!in_foreign());
        }
    }
}
