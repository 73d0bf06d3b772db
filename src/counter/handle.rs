//! A counted handle on a group object, as a value.

use std::ops::Deref;

use crate::counter::object::Counter;
use crate::sync::model_failed;

/// Keeps a counter and the group it belongs to. Its drop gives the count up; afterwards the group may be gone.
pub(crate) struct Handle(&'static Counter);

impl Handle {
    /// A handle whose count the caller has taken, by [`try_pin`](crate::counter::incarnation::State::try_pin).
    pub(crate) fn adopt(counter: &'static Counter) -> Handle {
        Handle(counter)
    }

    /// A new handle. The caller keeps the group meanwhile.
    pub(crate) fn pin(counter: &'static Counter) -> Handle {
        counter.first().state().pin();
        Handle(counter)
    }

    /// The counter, which lives as long as the handle.
    pub(crate) fn counter(&self) -> &'static Counter {
        self.0
    }
}

impl Deref for Handle {
    type Target = Counter;

    fn deref(&self) -> &Counter {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A model that has failed unwinds, and no code of this crate may run any more.
        if !model_failed() {
            self.0.first().release();
        }
    }
}
