//! Loom: every schedule of two or three threads, and the memory orders of the language.

mod loom_integers;

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Condvar;

pub(crate) use loom::sync::atomic::{AtomicPtr, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub(crate) use loom::{lazy_static, thread_local};
#[cfg(test)]
pub(crate) use loom_integers::loads_are_exchanges;
pub(crate) use loom_integers::{AtomicI64, AtomicU32, AtomicU64};

/// A rest between two holds of a lock, which a model does not need: loom tries the schedules with a
/// rest anyway.
pub(crate) fn rest() {}

// === Parking, by loom's lock and condition ===
//
// Loom 0.7.2 forgets an unpark when its thread waits for a lock afterwards, and ends that wait when
// the unpark comes during it (`Thread::set_unparked` in `rt/thread.rs`). The standard library keeps
// the unpark for the next park.

/// A thread of the model, to end its park.
#[derive(Clone, Debug)]
pub(crate) struct Thread(Arc<Place>);

#[derive(Debug)]
struct Place {
    unparked: Mutex<bool>,
    changed: Condvar,
}

loom::thread_local! {
    static PLACE: Thread = Thread(Arc::new(Place { unparked: Mutex::new(false), changed: Condvar::new() }));
}

pub(crate) fn current() -> Thread {
    PLACE.with(Thread::clone)
}

impl Thread {
    pub(crate) fn unpark(&self) {
        *self
            .0
            .unparked
            .lock()
            .expect("a model never unlocks by panic") = true;
        self.0.changed.notify_one();
    }
}

/// Time stands still: until another thread unparks this one.
pub(crate) fn park(_: Option<Duration>) {
    let Thread(place) = current();
    let mut unparked = place
        .unparked
        .lock()
        .expect("a model never unlocks by panic");
    while !*unparked {
        unparked = place
            .changed
            .wait(unparked)
            .expect("a model never unlocks by panic");
    }
    *unparked = false;
}
