//! A counted handle on a group object, as a value.

use std::mem;
use std::ops::Deref;

use crate::counter::claim;
use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::sync::model_failed;

/// Keeps a counter and the group it belongs to. Its drop gives the count up; afterwards the group may be gone.
pub(crate) struct Handle(&'static Counter);

impl Handle {
    /// A new handle. The caller keeps the group meanwhile.
    pub(crate) fn pin(counter: &'static Counter) -> Handle {
        counter.first().state().pin();
        Handle(counter)
    }

    /// A new handle, if the group is still in that incarnation.
    pub(crate) fn try_pin(counter: &'static Counter, of: Generation) -> Option<Handle> {
        counter.first().state().try_pin(of).then(|| Handle(counter))
    }

    /// A handle whose count the caller has taken.
    #[inline]
    pub(crate) fn adopt(counter: &'static Counter) -> Handle {
        Handle(counter)
    }

    /// Give the value up, and keep the count: another value adopts it.
    pub(crate) fn into_raw(self) -> &'static Counter {
        let counter = self.0;
        mem::forget(self);
        counter
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
    #[inline]
    fn drop(&mut self) {
        // A model that has failed unwinds, and no code of this crate may run any more.
        if !model_failed() {
            let first = self.0.first();
            if let Some(of) = first.state().unpin() {
                release_slow(first, of);
            }
        }
    }
}

/// The groups below `top` that are online, as the snapshot's `subtree` has them, each with a handle: what the
/// caller does to them may need their shards.
pub(crate) fn pin_below(top: &'static Counter) -> Vec<Handle> {
    let _path = SlowPath::enter();
    top.tree().hierarchy.snapshot().subtree(top).map(Handle::pin).collect()
}

/// The handle may have been the last.
#[cold]
fn release_slow(first: &Counter, of: Generation) {
    let _path = SlowPath::enter();
    claim::try_release_last(first, of);
}
