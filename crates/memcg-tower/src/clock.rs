//! Wakes when a time is over, without the timer of an async runtime: the layer runs on any.
//!
//! One thread of the crate wakes for all. It starts with the first alarm, and sleeps until the next
//! one is due.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// When it is due, and a number that no other alarm has.
type Key = (Instant, u64);

struct Clock {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    alarms: BTreeMap<Key, Waker>,
    next: u64,
    has_thread: bool,
}

static CLOCK: Clock = Clock {
    state: Mutex::new(State {
        alarms: BTreeMap::new(),
        next: 0,
        has_thread: false,
    }),
    changed: Condvar::new(),
};

/// A wake that is to come. The drop takes it back.
pub(crate) struct Alarm {
    key: Key,
    waker: Waker,
}

impl Alarm {
    /// Has `waker` woken at `at`, or before: an alarm that comes earlier and has not rung stays.
    /// Its task asks again then. `false`: the system gives no thread, and no wake follows.
    pub(crate) fn renew(slot: &mut Option<Alarm>, at: Instant, waker: &Waker) -> bool {
        let is_set = |alarm: &Alarm| {
            alarm.key.0 <= at && alarm.waker.will_wake(waker) && alarm.key.0 > Instant::now()
        };
        if slot.as_ref().is_some_and(is_set) {
            return true;
        }
        *slot = None;
        *slot = Alarm::set(at, waker);
        slot.is_some()
    }

    fn set(at: Instant, waker: &Waker) -> Option<Alarm> {
        // Cloned without the lock: a waker is foreign code.
        let kept = waker.clone();
        let (key, is_first) = {
            let mut state = CLOCK.state();
            if !state.has_thread {
                let thread = std::thread::Builder::new().name("memcg-tower".to_owned());
                thread.spawn(|| CLOCK.run()).ok()?;
                state.has_thread = true;
            }
            let key = (at, state.next);
            state.next += 1;
            let is_first = state
                .alarms
                .first_key_value()
                .is_none_or(|(first, _)| key < *first);
            state.alarms.insert(key, kept);
            (key, is_first)
        };
        if is_first {
            CLOCK.changed.notify_one();
        }
        Some(Alarm {
            key,
            waker: waker.clone(),
        })
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // The waker, which is foreign code, is dropped without the lock.
        let taken = CLOCK.state().alarms.remove(&self.key);
        drop(taken);
    }
}

impl Clock {
    /// No change is left half done: a panic elsewhere spoils nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            let Some(first) = state.alarms.first_entry() else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = first.key().0.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                continue;
            }
            let waker = first.remove();
            drop(state);
            // A waker that panics ends no other one's wake.
            drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
            state = self.state();
        }
    }
}
