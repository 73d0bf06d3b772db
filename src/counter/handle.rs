//! A counted handle on a group object, as a value.

use std::ops::Deref;
use std::{mem, ptr};

use crate::counter::claim;
use crate::counter::incarnation::Generation;
use crate::counter::object::{Counter, Object};
use crate::counter::slow_path::SlowPath;
use crate::sync::model_failed;

/// Keeps a counter and the group it belongs to. Its drop gives the count up; afterwards the group
/// may be gone.
pub(crate) struct Handle(&'static Object);

impl Handle {
    /// Takes a new handle of a counter that the caller keeps meanwhile.
    pub(crate) fn pin(counter: &Counter) -> Handle {
        // One word counts the handles of a group and all of its counters: they live and end
        // together, and a counter beside memory has no state of its own.
        counter.first().state().pin();
        Handle(counter.object())
    }

    /// A handle whose count the caller has taken.
    #[inline]
    pub(crate) fn adopt(object: &'static Object) -> Handle {
        Handle(object)
    }

    /// Gives the value up and keeps the count, which another value adopts.
    pub(crate) fn into_raw(self) -> &'static Object {
        // Not by `drop`, which would give the count up: a list, or a charge of no bytes, has it
        // from here on.
        let object = self.0;
        mem::forget(self);
        object
    }
}

/// A counter that may be gone: its object, which is never freed, and the incarnation that was
/// meant.
#[derive(Clone, Copy)]
pub(crate) struct WeakCounter {
    pub(crate) object: &'static Object,
    pub(crate) of: Generation,
}

impl WeakCounter {
    #[inline]
    pub(crate) fn new(counter: &Counter) -> WeakCounter {
        WeakCounter {
            object: counter.object(),
            of: counter.first().state().generation(),
        }
    }

    /// True if the incarnation goes on as the thread reads the state now. It may end right after
    /// that, so only [`try_pin`](Self::try_pin) lets the caller use the counter.
    pub(crate) fn is_there(self) -> bool {
        self.object.first().state().generation() == self.of
    }

    /// Takes a new handle, if the group is still in that incarnation. `None`: the group is gone,
    /// and its object may be another one.
    pub(crate) fn try_pin(self) -> Option<Handle> {
        self.object
            .first()
            .state()
            .try_pin(self.of)
            // The exchange has compared the generation, so an object that has been recycled in
            // between is never pinned for the wrong group.
            .then(|| Handle(self.object))
    }
}

impl PartialEq for WeakCounter {
    fn eq(&self, other: &WeakCounter) -> bool {
        ptr::eq(self.object, other.object) && self.of == other.of
    }
}

impl Deref for Handle {
    type Target = Counter;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &Counter {
        // SAFETY: this value is counted, and a group with a handle does not end. A bare counter
        // ends in `retire`, once its last owner has given its handle up.
        unsafe { self.0.kept() }
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed unwinds, and no code of this crate may run any more.
        if !model_failed() {
            let first = self.0.first();
            // Mostly there are other handles, or the group is online: then the exchange is all.
            if let Some(of) = first.state().unpin() {
                release_slow(first, of);
            }
        }
    }
}

/// Releases the group, if the handle was the last that kept it. In a slow path of its own: the
/// release follows at its end, where the thread holds no lock.
#[cold]
fn release_slow(first: &'static Object, of: Generation) {
    let _path = SlowPath::enter();
    claim::try_release_last(first, of);
}
