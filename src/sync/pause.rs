//! Pause points: where a test stops a thread of its own choice, to force one schedule.
//!
//! A test sets what its thread does at a point, with `at`; the engine passes the point and the
//! thread does it, once. Under shuttle a point is also a hint: the scheduler goes on with another
//! thread more often than elsewhere. Outside of unit tests a point is nothing.

/// The thread is between two steps of a protocol: `counter::incarnation` names them.
#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn pause_point(_: &'static str) {}

#[cfg(all(test, not(loom)))]
pub(crate) use forced::pause_point;

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use forced::at;

#[cfg(all(test, not(any(loom, shuttle))))]
mod forced {
    use std::cell::RefCell;

    type Stop = (&'static str, Box<dyn FnOnce()>);

    std::thread_local! {
        static STOPS: RefCell<Vec<Stop>> = const { RefCell::new(Vec::new()) };
    }

    /// The first time that this thread passes the point it runs `stop`.
    pub(crate) fn at(point: &'static str, stop: impl FnOnce() + 'static) {
        STOPS.with_borrow_mut(|stops| stops.push((point, Box::new(stop))));
    }

    pub(crate) fn pause_point(point: &'static str) {
        // The thread's thread-locals may be gone.
        let stop = STOPS.try_with(|stops| {
            let mut stops = stops.borrow_mut();
            let at = stops.iter().position(|(name, _)| *name == point)?;
            Some(stops.swap_remove(at).1)
        });
        if let Ok(Some(stop)) = stop {
            stop();
        }
    }
}

#[cfg(all(test, shuttle))]
mod forced {
    pub(crate) fn pause_point(_: &'static str) {
        crate::sync::rest();
    }
}
