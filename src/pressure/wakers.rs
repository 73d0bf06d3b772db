//! Wakers that are due, which a thread collects under locks and wakes without; and the waker of a
//! thread that sleeps.
//!
//! A waker may poll its future at once, and the future may give bytes back for which the thread
//! wakes the next waiter. So wakers nest, [`DEPTH_MAX`] deep at most. What is due further in goes
//! to the loop outside of it, on the same thread. The charge of such a waiter is made at once, as
//! any other.

use std::task::{Wake, Waker};
use std::time::Instant;

use crate::sync::clock;
use crate::sync::{Arc, Thread, is_over, park, this_thread};
use crate::thread::context;
use crate::thread::foreign::{DueWakers, Foreign};
use crate::thread::slow_path::Entered;

/// Wakers inside wakers: deeper ones are woken by the loop outside.
const DEPTH_MAX: u32 = 4;

/// Wakers whose charge is decided, or whose event has happened.
#[derive(Default)]
pub(crate) struct Wakers(DueWakers);

impl Wakers {
    pub(crate) fn extend(&mut self, waker: Option<Foreign<Waker>>) {
        self.0.extend(waker);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes them all, or leaves them to the loop outside where wakers nest too deep. This thread
    /// holds no lock.
    pub(crate) fn wake(self) {
        let mut due = self;
        while !due.is_empty() {
            // Each level of nesting is a poll of a program's future on this thread's stack. Further
            // in the wakers are left to the loop outside; where there is none, for a waker that the
            // program itself calls, they are woken here after all.
            if context::waker_depth() >= DEPTH_MAX {
                return context::leave_wakers(due.0).unwrap_or_else(|due| Wakers(due).wake_here());
            }
            due.wake_here();
            // What these wakers have left further in.
            due = Wakers(context::take_left_wakers());
        }
    }

    fn wake_here(self) {
        for waker in self.0 {
            // A waker that panics must not keep the others asleep. Inside it, as inside a listener,
            // no thread waits for calls to end.
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
    // Memory of the crate, and of no group.
    let _path = Entered::enter();
    Waker::from(Arc::new(Unpark(this_thread())))
}

/// Sleep until woken, or for no reason at all. False: time is over.
pub(crate) fn park_until(until: Option<Instant>) -> bool {
    if until.is_some_and(is_over) {
        return false;
    }
    park(until.map(|until| until.saturating_duration_since(clock::now())));
    true
}
