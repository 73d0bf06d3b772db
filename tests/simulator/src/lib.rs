#![cfg(all(debug_assertions, not(loom)))]
//! Seeded lives of groups, charges and all that goes with them, beside a naive twin.
//!
//! A seed makes a script of random operations over the calls of the crate. The script runs on
//! threads that take turns, so what must come out of each operation is known: the twin, a model
//! without threads and without credit, says it. A script that fails is reduced to the fewest
//! operations, and printed as a test to copy.
//!
//! * `script`: the operations, and how a seed makes them; `twin`: the model;
//! * `life`: both side by side; `threads`: threads that take turns; `denied`: allocations that fail;
//! * `free`: the same script on threads that run at once, of the system or, with `--cfg shuttle`, of
//!   shuttle, and then there is nothing else;
//! * `script::adapters`, `life::adapters`: operations on what adapters hold, with the feature
//!   `adapters`;
//! * `shrink`: the fewest operations that fail.

mod configuration;
#[cfg(not(shuttle))]
mod denied;
mod free;
mod holds;
#[cfg(not(shuttle))]
mod life;
#[cfg(feature = "kmem")]
mod machine;
#[cfg(shuttle)]
#[path = "../../../src/tests/schedules/shuttle.rs"]
#[allow(
    dead_code,
    reason = "scenarios are one script each, and others are many schedules"
)]
mod schedules;
pub mod script;
mod shrink;
#[cfg(not(shuttle))]
mod threads;
#[cfg(not(shuttle))]
mod twin;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use script::{Op, Setup};

pub use shrink::{as_test, shrink};

/// Why a run has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The number of the operation; as many as there are for what came after the last.
    pub operation: usize,
    /// What did not agree.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at operation {}: {}", self.operation, self.message)
    }
}

/// The pools are the process's: what is left in them is known where one life runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a script.
///
/// # Panics
/// When the runtime and its twin disagree.
pub fn replay(setup: &Setup, ops: &[Op]) {
    if let Err(failure) = run(setup, ops) {
        panic!("{failure}");
    }
}

/// Runs a script; `Err` says what did not agree.
///
/// # Errors
/// The operation, and what was wrong with it.
pub fn run(setup: &Setup, ops: &[Op]) -> Result<(), Failure> {
    #[cfg(not(shuttle))]
    return tell(setup, ops, &mut |_, _, _| {});
    #[cfg(shuttle)]
    run_at_once(setup, ops)
}

/// Runs a script, and tells `hear` of each operation that is done, with a line of what is there.
///
/// # Errors
/// As [`run`].
#[cfg(not(shuttle))]
pub fn tell(
    setup: &Setup,
    ops: &[Op],
    hear: &mut dyn FnMut(usize, &Op, &str),
) -> Result<(), Failure> {
    let mut done = 0;
    let result = alone(|| {
        life::Life::new(setup).live(ops, &mut |number, op, line| {
            done = number + 1;
            hear(number, op, line);
        });
    });
    result.map_err(|message| Failure {
        operation: done,
        message,
    })
}

/// Runs a script on threads that run at once; `Err` says what did not hold.
///
/// # Errors
/// What was wrong, in this schedule.
pub fn run_at_once(setup: &Setup, ops: &[Op]) -> Result<(), Failure> {
    alone(|| free::live(setup, ops)).map_err(|message| Failure {
        operation: ops.len(),
        message,
    })
}

fn alone(life: impl FnOnce()) -> Result<(), String> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    pass_over_panics();
    IS_LIVED.store(true, Ordering::SeqCst);
    let lived = catch_unwind(AssertUnwindSafe(life));
    IS_LIVED.store(false, Ordering::SeqCst);
    lived.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        text.unwrap_or_else(|| String::from("a panic without a text"))
    })
}

/// A run is under way.
static IS_LIVED: AtomicBool = AtomicBool::new(false);

/// Panics are what a run is looked at for: those of callbacks are made on purpose, and that of the
/// run is in its result. Other ones, as that of a test that says which seed has failed, are told.
fn pass_over_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("MEMCG_SIMULATOR_PANICS").is_none() {
            let tell = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !IS_LIVED.load(Ordering::SeqCst) {
                    tell(panic);
                }
            }));
        }
    });
}
