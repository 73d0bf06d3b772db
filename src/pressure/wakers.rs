//! Wakers that are due: collected under locks, woken without.

use std::task::Waker;

use smallvec::SmallVec;

use crate::thread::context;
use crate::thread::foreign::Foreign;

/// Wakers whose charge is decided, or whose event has happened.
#[derive(Default)]
pub(crate) struct Wakers(SmallVec<[Foreign<Waker>; 4]>);

impl Wakers {
    pub(crate) fn extend(&mut self, waker: Option<Foreign<Waker>>) {
        self.0.extend(waker);
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
