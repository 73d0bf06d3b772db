//! Functions that users register with a group: how they are called, and how they end.

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::hierarchy::events;
use crate::state::callback::{Callback, CallbackFunction};
use crate::state::events::Event;
use crate::sync::{Arc, model_failed};
use crate::thread::context;
use crate::thread::foreign::{Foreign, ForeignCalls};

impl<A> Callback<A> {
    pub(crate) fn new(group: &Counter, function: CallbackFunction<A>) -> Arc<Self> {
        Arc::new(Callback {
            group: Handle::pin(group),
            calls: ForeignCalls::default(),
            function: Foreign::new(function),
        })
    }

    /// Calls the function, unless its guard is dropped by now. False: it panicked, which the caller
    /// counts.
    pub(crate) fn call(&self, with: &A) -> bool {
        let called = self
            .calls
            .begin()
            .map(|_call| self.function.call(|function| function(with)));
        called.is_none_or(|result| result.is_ok())
    }

    pub(crate) fn count_panic(&self) {
        events::count(&self.group, Event::Panic);
    }

    /// No call begins from here on, and none is under way when this returns. Inside foreign code it
    /// does not wait: two functions that drop each other's guard would wait for each other.
    pub(crate) fn end(&self) {
        self.calls.retire();
        // A call may be under way on another thread, and the caller may drop what the function uses
        // as soon as this returns.
        if !context::in_foreign() {
            // Mutation: e24-a-listener-is-dropped-in-a-call
            self.calls.wait();
        }
    }
}

impl<A> Drop for Callback<A> {
    fn drop(&mut self) {
        if !model_failed() && self.function.end().is_err() {
            self.count_panic();
        }
    }
}
