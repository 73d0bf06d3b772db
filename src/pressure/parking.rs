//! A thread that sleeps until a waker wakes it.

use std::task::{Wake, Waker};
use std::time::Instant;

use crate::sync::{Arc, Thread, is_over, park, this_thread};

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
    match until {
        Some(until) if is_over(until) => false,
        Some(until) => {
            park(Some(until.saturating_duration_since(Instant::now())));
            true
        }
        None => {
            park(None);
            true
        }
    }
}
