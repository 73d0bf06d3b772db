//! Charges that never block.
//!
//! * `now`: nothing foreign, nothing that waits; what such a charge finds and what it leaves;
//! * `started`: what a thread of the runtime does for it; `end`: how that thread ends, and what holds it up.

mod end;
mod now;
mod started;

use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Event, Group, OverLimitError, Runtime};

use crate::support::trees;

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use crate::support::trees::{assert_sound, bare, build, charge, create, kinds, limited, stocked};
pub(crate) use crate::support::waiters::{WATCHDOG, until};

/// Far less than what would block here, and more than a machine stands still.
pub(crate) const QUICK: Duration = Duration::from_secs(WATCHDOG.as_secs() / 2);

/// As [`trees::assert_empty`], once the thread that works for charges has given its job's group up.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    root.children().iter().for_each(Group::offline_tree);
    until("no job keeps a group", || {
        runtime.settle();
        runtime.dying_count() == 0
    });
    trees::assert_empty(runtime);
}

#[track_caller]
pub(crate) fn would_block(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(ChargeError::WouldBlock(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn refused(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(ChargeError::Limit(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Refused, whether or not an open stock may have credit.
#[track_caller]
pub(crate) fn not_made(ended: Result<Charge, ChargeError>) -> OverLimitError {
    match ended {
        Err(ChargeError::Limit(refusal) | ChargeError::WouldBlock(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn local(group: &Group, event: Event) -> u64 {
    group.events_local().get(event)
}

/// Asks until there is room, as a caller with other things to do.
#[track_caller]
pub(crate) fn charged_in_the_end(group: &Group, bytes: u64) -> Charge {
    let mut charge = None;
    until("there is room", || match group.try_charge_or_start(Bytes(bytes)) {
        Ok(made) => {
            charge = Some(made);
            true
        }
        Err(ChargeError::WouldBlock(_)) => false,
        Err(other) => panic!("{other}"),
    });
    charge.expect("made")
}
