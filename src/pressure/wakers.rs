//! Wakers that are due, which a thread collects under locks and wakes without; and the waker of a thread that sleeps.
//!
//! A waker may poll its future at once, and the future may give bytes back for which the thread wakes the next waiter. So
//! wakers nest, [`DEPTH_MAX`] deep at most. What is due further in goes to the loop outside of it, on the same thread. The
//! charge of such a waiter is made at once, as any other.

use std::cell::RefCell;
use std::task::{Wake, Waker};
use std::time::Instant;

use smallvec::SmallVec;

use crate::sync::{Arc, Thread, is_over, park, this_thread, thread_local};
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// Wakers inside wakers: deeper ones are woken by the loop outside.
const DEPTH_MAX: u32 = 4;

thread_local! {
    /// Wakers that were due inside the innermost waker that may be called. Empty while no waker is.
    static LEFT: RefCell<Wakers> = RefCell::default();
}

/// Wakers whose charge is decided, or whose event has happened.
#[derive(Default)]
pub(crate) struct Wakers(SmallVec<[Foreign<Waker>; 4]>);

impl Wakers {
    pub(crate) fn extend(&mut self, waker: Option<Foreign<Waker>>) {
        self.0.extend(waker);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes them all, or leaves them to the loop outside where wakers nest too deep. This thread holds no lock.
    pub(crate) fn wake(self) {
        let mut due = self;
        while !due.is_empty() {
            if context::waker_depth() >= DEPTH_MAX {
                // Past the destructor of the list no loop finds what is left: then this thread wakes in place.
                match LEFT.try_with(|left| left.borrow_mut().0.extend(due.0.drain(..))) {
                    Ok(()) => return,
                    Err(_) => return due.wake_here(),
                }
            }
            std::mem::take(&mut due).wake_here();
            due = LEFT.try_with(RefCell::take).unwrap_or_default();
        }
    }

    fn wake_here(self) {
        for waker in self.0 {
            // A waker that panics must not keep the others asleep. Inside it, as inside a listener, no thread waits for
            // calls to end.
            context::wake(|| drop(waker.spend(Waker::wake)));
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes this thread from [`park_until`].
pub(crate) fn parked_waker() -> Waker {
    Waker::from(Arc::new(Unpark(this_thread())))
}

/// Sleep until woken, or for no reason at all. False: time is over.
pub(crate) fn park_until(until: Option<Instant>) -> bool {
    if until.is_some_and(is_over) {
        return false;
    }
    park(until.map(|until| until.saturating_duration_since(Instant::now())));
    true
}
