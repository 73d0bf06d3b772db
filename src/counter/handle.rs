//! A counted handle on a group's object, as a value.

use std::ops::Deref;

use crate::counter::object::Counter;
use crate::sync::model_failed;

/// Keeps a counter and the group it belongs to. Dropped, it gives its count up; afterwards the group may be gone.
pub(crate) struct Handle(&'static Counter);

impl Handle {
    /// The caller has taken the count, by [`try_pin`](crate::counter::incarnation::State::try_pin).
    pub(crate) fn adopt(counter: &'static Counter) -> Handle {
        Handle(counter)
    }

    /// The caller keeps the group meanwhile.
    pub(crate) fn pin(counter: &'static Counter) -> Handle {
        counter.first().state().pin();
        Handle(counter)
    }

    /// The counter, which is there as long as the handle is.
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
        // A model that has failed unwinds, and nothing of ours runs any more.
        if !model_failed() {
            self.0.first().release();
        }
    }
}
