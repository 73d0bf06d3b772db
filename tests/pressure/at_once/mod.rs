//! Charges that never block.
//!
//! * `now`: nothing foreign, nothing that waits; what such a charge finds and what it leaves;
//! * `started`: what a thread of the runtime does for it; `starts`: what reclaimers begin
//!   themselves; `end`: how that thread ends, and what holds it up;
//! * `tries`: the forms with `try_`, which drain.

mod end;
mod now;
mod started;
mod starts;
mod tries;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Event, Group, OnFull, OverLimitError, Reclaim, Runtime};

use crate::support::trees;

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use crate::support::trees::{
    LeftEmpty, bare, build, charge, create, kinds, limited, stocked,
};
pub(crate) use crate::support::waiters::{WATCHDOG, until};
pub(crate) use crate::support::workers::Other;

/// Far less than what would block here, and more than a machine stands still.
pub(crate) const QUICK: Duration = Duration::from_secs(WATCHDOG.as_secs() / 2);

#[track_caller]
pub(crate) fn would_block(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(error) if error.is_would_block() => error.over_limit().expect("a refusal").clone(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn refused(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(error) if error.is_over_limit() => error.over_limit().expect("a refusal").clone(),
        other => panic!("{other:?}"),
    }
}

/// Refused, whether or not an open stock may have credit.
#[track_caller]
pub(crate) fn not_made(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(error) if error.is_over_limit() || error.is_would_block() => {
            error.over_limit().expect("a refusal").clone()
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn local(group: &Group, event: Event) -> u64 {
    group.events().local().get(event)
}

/// Asks until there is room, as a caller with other things to do.
#[track_caller]
pub(crate) fn charged_in_the_end(group: &Group, bytes: u64) -> Charge {
    let mut charge = None;
    until("there is room", || {
        match group.charge_with(Bytes(bytes), OnFull::Start) {
            Ok(made) => {
                charge = Some(made);
                true
            }
            Err(error) if error.is_would_block() => false,
            Err(other) => panic!("{other}"),
        }
    });
    charge.expect("made")
}

/// Another thread, which has given back all that it charged and keeps its credit in stock until it
/// is dropped.
pub(crate) fn credit_elsewhere(group: &Group) -> Other {
    let other = Other::spawn();
    other.with(group, |group| drop(charge(group, 1)));
    other
}

/// A reclaimer that blocks in each call until the sender is dropped, and frees nothing; and how
/// often it was called.
pub(crate) fn blocking() -> (mpsc::Sender<()>, Arc<AtomicU64>, Arc<dyn Reclaim>) {
    let (go_on, blocks) = mpsc::channel::<()>();
    let blocks = Mutex::new(blocks);
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let reclaimer = call(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = lock(&blocks).recv();
        0
    });
    (go_on, calls, reclaimer)
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    trees::left_empty(runtime)
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
