//! Shuttle: random schedules of many threads, sequentially consistent.

use std::time::Duration;

pub(crate) use shuttle::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, fence};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
pub(crate) use shuttle::thread::{Thread, current, yield_now};
#[cfg(all(feature = "_simulated-time", debug_assertions))]
pub(crate) use shuttle::thread::{ThreadId, spawn};
pub(crate) use shuttle::{lazy_static, thread_local};

/// A thread that parks for so long at most looks again on its own: no other thread need unpark it.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);

/// Time stands still: until another thread unparks this one. A park that only spaces out looks ends
/// at any moment.
pub(crate) fn park(most: Option<Duration>) {
    match most {
        Some(most) if most <= LOOKS_AGAIN => yield_now(),
        _ => shuttle::thread::park(),
    }
}

/// Another thread goes on.
pub(crate) fn sleep(_: Duration) {
    yield_now();
}

/// A rest between two holds of a lock: another thread goes on.
pub(crate) fn rest() {
    yield_now();
}
