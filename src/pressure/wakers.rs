//! Wakers that are due, which a thread collects under locks and wakes without; and the waker of a thread that sleeps.

use std::task::{Wake, Waker};
use std::time::Instant;

use smallvec::SmallVec;

use crate::sync::{Arc, Thread, is_over, park, this_thread};
use crate::thread::context;
use crate::thread::foreign::Foreign;

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

    /// Wake them all. This thread holds no lock.
    pub(crate) fn wake(self) {
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
