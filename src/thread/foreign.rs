//! Foreign code: whether a thread may still call it. No thread runs it once it is gone, and its
//! panics end here.
//!
//! A drop of a foreign value is a call of foreign code. The crate keeps such a value as
//! [`Foreign`], whose drop contains a panic. So no thread loses what it has decided, and no handle
//! stays behind, because of a drop in between.
//!
//! One word counts calls under way beside the mark *gone*. A caller counts its call first and then
//! looks for the mark. A remover sets the mark first and then waits until no call is counted. So
//! the remover sees a call and waits for it, or the call sees the mark and does not begin.
//!
//! Edge: E24 (taken away/called).

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use smallvec::SmallVec;

use crate::sync::{AtomicU64, Ordering, Patience, pause};
use crate::thread::local::is_in_transit;

/// The parts of the word: calls under way in the low bits, then the mark, then the number of noted
/// calls that ever began, which wraps.
const UNDER_WAY: u64 = GONE - 1;
const GONE: u64 = 1 << 31;
const NOTED: u64 = 1 << 32;

/// The most payloads of one panic that a thread drops, each the panic of the drop before it.
const PAYLOADS_MAX: usize = 8;

/// The calls of one piece of foreign code: how many are under way, and whether it is gone.
#[derive(Default)]
pub(crate) struct ForeignCalls(AtomicU64);

/// A call that is under way, until the value is dropped: whoever takes the foreign code away waits
/// for that.
pub(crate) struct ForeignCall<'a>(&'a AtomicU64);

impl Drop for ForeignCall<'_> {
    fn drop(&mut self) {
        // Release (E24): what the call did is done before it is over; pairs with `wait`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl ForeignCalls {
    /// Begins a call. `None`: the foreign code is gone.
    pub(crate) fn begin(&self) -> Option<ForeignCall<'_>> {
        self.count(1)
    }

    /// Begins a call that [`begun`](Self::begun) counts, too.
    pub(crate) fn begin_noted(&self) -> Option<ForeignCall<'_>> {
        self.count(NOTED | 1)
    }

    fn count(&self, call: u64) -> Option<ForeignCall<'_>> {
        // AcqRel (E24): counted before the look for the mark; pairs with `retire`.
        // Mutation: e24-gone-is-looked-for-before-the-call-counts
        let gone = self.0.fetch_add(call, Ordering::AcqRel) & GONE != 0;
        // It is counted in any case. Where the code is gone, the drop of this takes it off again; a
        // remover may wait a moment longer for that.
        let call = ForeignCall(&self.0);
        (!gone).then_some(call)
    }

    /// Sets the mark: no call begins from here on.
    pub(crate) fn retire(&self) {
        // AcqRel (E24): marked before the look in `wait`; pairs with `begin`.
        self.0.fetch_or(GONE, Ordering::AcqRel);
    }

    /// Waits until no call is under way. The caller has called [`retire`](Self::retire).
    pub(crate) fn wait(&self) {
        let patience = Patience::new();
        // AcqRel (E24): the latest count; pairs with the end of a call.
        // Mutation: e24-no-drop-waits-for-a-call
        while self.0.fetch_add(0, Ordering::AcqRel) & UNDER_WAY > 0 {
            // A call may take any time. The remover waits for as long as it takes, without a limit:
            // when this returns nobody runs the code.
            if !patience.wait() {
                pause();
            }
        }
    }

    /// True if the mark is set. This is a hint: a caller that relies on it calls
    /// [`begin`](Self::begin).
    pub(crate) fn is_gone(&self) -> bool {
        // Acquire (E24): after what was done before the mark. Pairs with `retire`.
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    /// Returns the calls that are under way, and the noted calls that ever began, at one moment.
    pub(crate) fn begun(&self) -> (u64, u32) {
        // Acquire (E24): after what the calls did that are over; pairs with the drop of a
        // `ForeignCall`.
        let word = self.0.load(Ordering::Acquire);
        (word & UNDER_WAY, (word / NOTED) as u32)
    }
}

/// Foreign code has panicked. The panic has ended, and the panic hook has reported it.
#[derive(Debug)]
pub(crate) struct Panicked;

/// A value of the user's: a waker, a closure, or a value that holds one of these. Its panics end
/// here, and so do those of its drop.
pub(crate) struct Foreign<T>(Option<T>);

/// Wakers to wake, collected where no foreign code may run.
pub(crate) type DueWakers = SmallVec<[Foreign<Waker>; 4]>;

impl<T> Foreign<T> {
    pub(crate) fn new(value: T) -> Self {
        Foreign(Some(value))
    }

    /// Returns the value, for a caller that runs none of its code.
    pub(crate) fn get(&self) -> &T {
        self.0.as_ref().expect("it is there until it ends")
    }

    /// Calls foreign code of the value, whose panic ends here.
    pub(crate) fn call<R>(&self, work: impl FnOnce(&T) -> R) -> Result<R, Panicked> {
        contain(|| work(self.get()))
    }

    /// Gives the value to foreign code that consumes it, as a waker that is woken. A panic ends
    /// here.
    pub(crate) fn spend(mut self, work: impl FnOnce(T)) -> Result<(), Panicked> {
        self.0
            .take()
            .map_or(Ok(()), |value| contain(|| work(value)))
    }

    /// Drops the value, for a caller that counts panics. The drop of `self` then has nothing to do.
    pub(crate) fn end(&mut self) -> Result<(), Panicked> {
        self.0
            .take()
            .map_or(Ok(()), |value| contain(|| drop(value)))
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        // No caller is here to return a panic to; the panic hook has reported it.
        let _ = self.end();
    }
}

/// Runs foreign code. Whatever that code does, the caller goes on.
pub(crate) fn contain<R>(work: impl FnOnce() -> R) -> Result<R, Panicked> {
    // While a panic of the engine unwinds, a second one would end the process.
    debug_assert!(
        std::thread::panicking() || !is_in_transit(),
        "foreign code may wait for a thread that waits for this transit"
    );
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        discard(payload);
        Panicked
    })
}

/// Drops the payload of a panic. The payload is foreign, too: its drop may panic, with a payload
/// whose drop does the same. Such a chain is leaked after [`PAYLOADS_MAX`] drops.
fn discard(mut payload: Box<dyn Any + Send>) {
    for _ in 0..PAYLOADS_MAX {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    mem::forget(payload);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics when it is dropped, and so does what it panics with.
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic_any(Panics);
        }
    }

    #[test]
    fn a_drop_that_panics_ends_here() {
        drop(Foreign::new(Panics));
        let mut foreign = Foreign::new(Panics);
        assert!(foreign.end().is_err());
        assert!(foreign.end().is_ok(), "it is gone");
        assert!(Foreign::new(Panics).spend(drop).is_err());
    }

    /// The drop of a foreign value does not abort a thread that unwinds already.
    #[test]
    fn a_drop_that_panics_in_a_panic() {
        // The second panic of a thread prints a backtrace, which Miri takes a minute for.
        let words = cfg!(miri).then(std::panic::take_hook);
        if words.is_some() {
            std::panic::set_hook(Box::new(|_| ()));
        }
        let unwinds = catch_unwind(|| {
            let _foreign = Foreign::new(Panics);
            panic!("on purpose");
        });
        words.into_iter().for_each(std::panic::set_hook);
        assert_eq!(
            unwinds.expect_err("it panics").downcast_ref(),
            Some(&"on purpose")
        );
    }
}
