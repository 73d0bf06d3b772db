//! Threads, locks and time of the system.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

use crate::script::{Op, Setup};
use crate::threads::of_the_crate;

pub(super) use std::sync::{Mutex, MutexGuard};
pub(super) use std::thread;

/// Lives once. Time goes by for all threads, that of the run too: a drop may wait for a call.
pub(super) fn live(setup: &Setup, ops: &[Op], life: fn(&Setup, &[Op])) {
    clock::stop();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                clock::advance(Duration::from_millis(5));
                thread::sleep(Duration::from_micros(50));
            }
        });
        let lived = catch_unwind(AssertUnwindSafe(|| life(setup, ops)));
        is_over.store(true, Ordering::SeqCst);
        lived.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Ends with what takes so long only when it hangs: by the run's clock, not the system's.
///
/// A thread of its own moves that clock on, whatever the others do. So it goes on for one that waits
/// for ever as it does for one that spins; and it stands still where the machine lets none of them run.
pub(super) struct Patience(Instant);

impl Patience {
    /// Of all operations of a script: few of them wait, each for some seconds of that clock at most.
    pub(super) fn new() -> Self {
        Patience(clock::now() + Duration::from_secs(900))
    }

    /// Of a look at everything, beside what threads of the crate do last.
    pub(super) fn at_rest() -> Self {
        Patience(clock::now() + Duration::from_secs(300))
    }

    pub(super) fn lasts(&self) -> bool {
        clock::now() < self.0
    }
}

/// Other threads go on meanwhile.
pub(super) fn pass() {
    thread::sleep(Duration::from_micros(50));
}

/// The system is fair to the others.
pub(super) fn give_way() {}

pub(super) fn panic_on_purpose() {
    panic!("on purpose");
}

/// None of those that the crate has started is left.
pub(super) fn threads_have_ended() -> Result<(), String> {
    match of_the_crate() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    }
}
