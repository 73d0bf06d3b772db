#![cfg(all(debug_assertions, not(any(loom, shuttle))))]
//! Seeded lives of groups, charges and all that goes with them, beside a naive twin.
//!
//! A seed makes a script of random operations over the calls of the crate. The script runs on
//! threads that take turns, so what must come out of each operation is known: the twin, a model
//! without threads and without credit, says it. A script that fails is reduced to the fewest
//! operations, and printed as a test to copy.
//!
//! * `script`: the operations, and how a seed makes them; `twin`: the model;
//! * `life`: both side by side; `threads`: threads that take turns; `denied`: allocations that fail;
//! * `free`: the same script on threads that run at once;
//! * `script::adapters`, `life::adapters`: operations on what adapters hold, with the feature
//!   `adapters`;
//! * `shrink`: the fewest operations that fail.

mod denied;
mod free;
mod life;
pub mod script;
mod shrink;
mod threads;
mod twin;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use script::{Op, Setup};

pub use shrink::{Failure, as_test, shrink};

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
    tell(setup, ops, &mut |_, _, _| {})
}

/// Runs a script, and tells `hear` of each operation that is done, with a line of what is there.
///
/// # Errors
/// As [`run`].
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
