//! Marks of this thread: it runs foreign code, charges for a waiter, or leaves foreign code to
//! another thread, or wakers to a loop further out on its own stack.

use std::cell::{Cell, RefCell};

use crate::sync::per_thread;
use crate::thread::foreign::DueWakers;
use crate::thread::local::with_local;

/// One more waker on a thread's stack. The bits below count listeners.
const WAKES: u32 = 1 << 16;

/// The place of a charge that has none in line: it comes after all that have one.
const NEWCOMER: u64 = u64::MAX;

struct ContextWords {
    /// This thread runs a pressure hook or reclaims.
    hook: Cell<bool>,
    /// The place in line of the charge that this thread makes; [`NEWCOMER`] where it charges for
    /// itself.
    place: Cell<u64>,
    /// Depth of listeners and of wakers on this thread's stack.
    foreign_depth: Cell<u32>,
    /// This thread leaves calls of foreign code to another one.
    leaves_foreign: Cell<bool>,
    /// This thread leaves calls of listeners to another one.
    leaves_listeners: Cell<bool>,
}

per_thread! {
    with_notes: ContextWords = ContextWords {
        hook: Cell::new(false),
        place: Cell::new(NEWCOMER),
        foreign_depth: Cell::new(0),
        leaves_foreign: Cell::new(false),
        leaves_listeners: Cell::new(false),
    }
}

crate::sync::thread_local! {
    /// Wakers that were due too deep inside other wakers. Empty while the thread is in no waker. It
    /// owns values of the program, so it has a destructor, unlike the words above.
    static LEFT_WAKERS: RefCell<DueWakers> = RefCell::new(DueWakers::new());
}

/// A word of this thread that has another value until this is dropped, also by a panic.
pub(crate) struct RestoredWord<'a, T: Copy> {
    word: &'a Cell<T>,
    before: T,
}

impl<'a, T: Copy> RestoredWord<'a, T> {
    pub(crate) fn set(word: &'a Cell<T>, value: T) -> Self {
        RestoredWord {
            word,
            before: word.replace(value),
        }
    }
}

impl<T: Copy> Drop for RestoredWord<'_, T> {
    fn drop(&mut self) {
        self.word.set(self.before);
    }
}

/// Runs foreign code as a pressure hook or as a reclaimer, outside of any slow path. `None` inside
/// another: pressure does not nest.
pub(crate) fn in_hook<R>(hook: impl FnOnce() -> R) -> Option<R> {
    if in_reclaim() {
        return None;
    }
    with_notes(|notes| {
        with_local(|local| {
            // Foreign code charges as any other code does. Inside a slow path its charges could
            // take no lock, and would be refused beside credit that a drain could have had.
            let _slow = RestoredWord::set(&local.slow, 0);
            let _hook = RestoredWord::set(&notes.hook, true);
            Some(hook())
        })
    })
}

#[inline]
pub(crate) fn in_reclaim() -> bool {
    with_notes(|notes| notes.hook.get())
}

/// Charges on behalf of a waiter: its place and its reclaim state apply, not this thread's. A
/// waiter is never in reclaim.
pub(crate) fn for_another<R>(place: u64, charge: impl FnOnce() -> R) -> R {
    with_notes(|notes| {
        let _place = RestoredWord::set(&notes.place, place);
        // A waiter's bytes may go into a line, or past one, as its place says. That this thread is
        // in reclaim would let them pass every line.
        let _hook = RestoredWord::set(&notes.hook, false);
        charge()
    })
}

/// True if this thread makes a charge that has that place in line or one before it.
pub(crate) fn is_no_later_than(place: u64) -> bool {
    with_notes(|notes| notes.place.get() <= place)
}

pub(crate) fn listener_depth() -> u32 {
    with_notes(|notes| notes.foreign_depth.get()) & (WAKES - 1)
}

pub(crate) fn waker_depth() -> u32 {
    with_notes(|notes| notes.foreign_depth.get()) / WAKES
}

/// Leaves wakers to the loop that has called the innermost waker. `Err`: the thread is past its
/// destructors and has no list any more.
pub(crate) fn leave_wakers(wakers: DueWakers) -> Result<(), DueWakers> {
    let mut wakers = Some(wakers);
    // The wakers are moved: no foreign code runs while the list is borrowed.
    let left = LEFT_WAKERS.try_with(|left| {
        left.borrow_mut()
            .extend(wakers.take().into_iter().flatten());
    });
    left.map_err(|_| wakers.unwrap_or_default())
}

/// Takes the wakers that were left to this loop.
pub(crate) fn take_left_wakers() -> DueWakers {
    LEFT_WAKERS.try_with(RefCell::take).unwrap_or_default()
}

/// True if this thread is inside a listener, a waker, a reclaimer or a hook. There it does not wait
/// for calls to end.
pub(crate) fn in_foreign() -> bool {
    in_reclaim() || with_notes(|notes| notes.foreign_depth.get()) > 0
}

/// Runs `work` of this crate with all foreign code at the end of its slow paths left to another
/// thread.
pub(crate) fn without_foreign<R>(work: impl FnOnce() -> R) -> R {
    with_notes(|notes| {
        let _leaves = RestoredWord::set(&notes.leaves_foreign, true);
        work()
    })
}

pub(crate) fn leaves_foreign() -> bool {
    with_notes(|notes| notes.leaves_foreign.get())
}

/// Runs `work` with listeners deferred to another thread.
pub(crate) fn leaving_listeners<R>(work: impl FnOnce() -> R) -> R {
    with_notes(|notes| {
        let _leaves = RestoredWord::set(&notes.leaves_listeners, true);
        work()
    })
}

pub(crate) fn leaves_listeners() -> bool {
    with_notes(|notes| notes.leaves_listeners.get())
}

/// Runs a waker. A panic leaves the waker, too.
pub(crate) fn wake(waker: impl FnOnce()) {
    at_depth(WAKES, waker);
}

/// Runs foreign code as a listener. A panic leaves the listener, too.
pub(crate) fn in_listener(listener: impl FnOnce()) {
    at_depth(1, listener);
}

fn at_depth(depth: u32, foreign: impl FnOnce()) {
    with_notes(|notes| {
        // A depth and not a flag, so that callbacks inside callbacks end at some point, and so that
        // the end of the inner one does not end the outer one.
        let _depth = RestoredWord::set(&notes.foreign_depth, notes.foreign_depth.get() + depth);
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
        let runs: [fn(&dyn Fn()); 2] = [|foreign| wake(foreign), |foreign| in_listener(foreign)];
        for run in runs {
            catch_unwind(AssertUnwindSafe(|| run(&foreign))).expect_err("it panics");
            assert!(!in_foreign());
        }
    }

    /// A word that a call changes comes back, also where something inside of it unwinds.
    #[test]
    fn words_come_back_after_a_panic() {
        let runs: [fn(); 5] = [
            || without_foreign(|| panic!("on purpose")),
            || leaving_listeners(|| panic!("on purpose")),
            || for_another(7, || panic!("on purpose")),
            || _ = in_hook(|| panic!("on purpose")),
            || _ = in_hook(|| for_another(7, || panic!("on purpose"))),
        ];
        for run in runs {
            catch_unwind(run).expect_err("it panics");
            assert!(
                !leaves_foreign()
                    && !leaves_listeners()
                    && !in_reclaim()
                    && !is_no_later_than(NEWCOMER - 1)
            );
        }
        in_hook(|| {
            catch_unwind(runs[2]).expect_err("it panics");
            assert!(in_reclaim());
        });
    }
}
