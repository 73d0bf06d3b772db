//! Debug builds watch the calls of reclaimers, and say which one has not returned for a second.
//!
//! A charge calls reclaimers on its own thread. Where the caller holds the lock of its cache, and
//! the reclaimer takes it, the thread waits for itself: the program stands still, with nothing
//! said. So a thread of the crate looks at the calls that are under way. It starts with the first
//! of them, and ends a second after the last. In other builds, and in models, nothing is watched.
//!
//! The list names groups without a handle, so a call that hangs keeps no group but those that its
//! charge keeps.

use std::io::{Write, stderr};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::counter::by_number::{ByNumber, take_out};
use crate::counter::handle::WeakCounter;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, names};
use crate::state::events::Event;
use crate::sync::clock;
use crate::sync::lock::{Lock, Rank};
use crate::sync::{TIME_PASSES, park, process_wide};
use crate::thread::helper::Helper;

/// Miri takes longer for a call than the watch waits.
const WATCHES: bool = TIME_PASSES && cfg!(all(debug_assertions, not(miri)));

/// How long a call may take before it is reported: less than a second, so that it is said within
/// one.
const PATIENCE: Duration = Duration::from_millis(900);

process_wide!(calls: Lock<WatchedCalls> = || Lock::new(Rank::Bookkeeping, WatchedCalls::default()));

#[derive(Default)]
pub(crate) struct WatchedCalls {
    /// How many calls there have been: the number of the last one.
    numbers: u64,
    under_way: ByNumber<WatchedCall>,
    helper: Helper,
}

/// A call of foreign code for a group.
#[derive(Clone)]
struct WatchedCall {
    group: WeakCounter,
    begun: Instant,
    thread: Thread,
    is_reported: bool,
}

/// A call is in the list until this is dropped.
struct ListedCall(u64);

impl Drop for ListedCall {
    fn drop(&mut self) {
        let ended = with(|calls| take_out(&mut calls.under_way, self.0));
        // Without the lock: it may free memory, and the allocator may charge.
        drop(ended);
    }
}

fn with<R>(work: impl FnOnce(&mut WatchedCalls) -> R) -> R {
    // In a slow path: an allocator that charges under the lock calls no policy and takes no lock.
    let _path = SlowPath::enter();
    work(&mut calls().lock())
}

/// Calls reclaimers of a group, as a call that is watched where the build watches them. The caller
/// is in no slow path, and keeps the group.
#[inline]
pub(crate) fn during<R>(group: &Counter, call: impl FnOnce() -> R) -> R {
    if !WATCHES {
        return call();
    }
    let begins = WatchedCall {
        group: WeakCounter::new(group),
        begun: clock::now(),
        thread: thread::current(),
        is_reported: false,
    };
    // From here on the watch sees the call. It leaves the list when it returns, and also when it
    // panics.
    let _listed = with(|calls| {
        calls.numbers += 1;
        calls.under_way.insert(calls.numbers, begins);
        // Where the system has no thread nothing is said.
        let _ = calls.helper.start("memcg-watch", run);
        ListedCall(calls.numbers)
    });
    call()
}

impl WatchedCalls {
    /// Returns the calls to report, and how long to sleep. `None`: the thread ends.
    fn look(&mut self, now: Instant) -> (Vec<WatchedCall>, Option<Duration>) {
        let mut stuck = Vec::new();
        let mut next: Option<Duration> = None;
        for call in self.under_way.values_mut().filter(|call| !call.is_reported) {
            let left = PATIENCE.saturating_sub(now.saturating_duration_since(call.begun));
            // A call that hangs is reported once. The thread sleeps until the next one would be
            // late.
            if left.is_zero() {
                call.is_reported = true;
                stuck.push(call.clone());
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        (stuck, next.or_else(|| self.helper.rest(now, false)))
    }
}

fn run() {
    loop {
        let (stuck, sleep) = with(|calls| calls.look(clock::now()));
        stuck.into_iter().for_each(report);
        match sleep {
            Some(sleep) => park(Some(sleep)),
            None => return,
        }
    }
}

/// Listeners and subscribers are foreign code: no lock is held.
fn report(call: WatchedCall) {
    // The list keeps no group. Where this one has gone there is nobody to tell.
    let Some(group) = call.group.try_pin() else {
        return;
    };
    let path = names::path(&group);
    let thread = call.thread.name().map_or_else(
        || format!("{:?}", call.thread.id()),
        |name| format!("{name:?}"),
    );
    events::count(&group, Event::ReclaimStuck);
    if !trace(&path, &thread) {
        let _ = writeln!(
            stderr(),
            "memcg: a reclaimer of {path} has not returned for a second, on the thread {thread}. Does the thread \
             hold a lock that the reclaimer takes? Charge before you lock."
        );
    }
}

/// Returns true if a subscriber gets such lines.
#[cfg(feature = "tracing")]
fn trace(group: &str, thread: &str) -> bool {
    use crate::thread::context;
    use crate::thread::foreign::contain;

    let is_read = tracing::level_filters::LevelFilter::current() >= tracing::Level::WARN;
    if is_read {
        context::in_listener(|| {
            drop(contain(|| {
                tracing::event!(
                    target: "memcg::reclaim",
                    tracing::Level::WARN,
                    group,
                    thread,
                    "a reclaimer has not returned for a second: does the thread hold a lock that it takes? charge \
                     before you lock"
                );
            }));
        });
    }
    is_read
}

#[cfg(not(feature = "tracing"))]
fn trace(_: &str, _: &str) -> bool {
    false
}
