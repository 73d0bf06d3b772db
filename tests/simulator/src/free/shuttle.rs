//! Threads, locks and time of shuttle: the script and the schedule are those of one seed.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use memcg::simulated_time as clock;
use shuttle::rand::{Rng as _, thread_rng};

use crate::schedules;
use crate::script::{Op, Setup};

pub(super) use shuttle::sync::{Mutex, MutexGuard};
pub(super) use shuttle::thread;

/// One look in so many finds the clock moved.
const LOOKS: u32 = 12;

/// Lives once, in the schedule of the script's seed.
pub(super) fn live(setup: &Setup, ops: &[Op], life: fn(&Setup, &[Op])) {
    let setup = Setup {
        // A thread that is delayed looks each ten milliseconds, and each look takes the run some steps.
        delay: setup.delay.min(50),
        ..setup.clone()
    };
    let ops = Arc::new(ops.to_vec());
    schedules::one(setup.schedule, move || {
        clock::stop();
        life(&setup, &ops);
    });
}

/// Ends with what takes so many looks only when it hangs. A run that spins for ever ends by its number
/// of steps.
pub(super) struct Patience(Cell<u32>);

impl Patience {
    pub(super) fn new() -> Self {
        Patience(Cell::new(10_000_000))
    }

    /// Of a look at everything, beside what threads of the crate do last.
    pub(super) fn at_rest() -> Self {
        Patience(Cell::new(5_000))
    }

    pub(super) fn lasts(&self) -> bool {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}

/// Other threads go on meanwhile; or time does, to the end of the next wait.
pub(super) fn pass() {
    if thread_rng().gen_ratio(1, LOOKS) {
        let now = clock::now();
        let end = clock::next_end().map_or(Duration::from_millis(5), |end| {
            end.saturating_duration_since(now)
        });
        clock::advance(end);
    }
    thread::yield_now();
}

/// A callback whose event comes of its own charge is called again and again, until it ends: in a schedule
/// with priorities no other thread would run beside it.
pub(super) fn give_way() {
    thread::yield_now();
}

/// A thread that unwinds may not stop while another one goes on: shuttle's threads are one thread of
/// the system, which says of all that they panic. So nothing does.
pub(super) fn panic_on_purpose() {}

/// None of those that the crate has started is left.
pub(super) fn threads_have_ended() -> Result<(), String> {
    match clock::threads() {
        0 => Ok(()),
        left => Err(format!("{left}")),
    }
}
