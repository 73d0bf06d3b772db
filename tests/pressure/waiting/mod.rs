//! Charges that wait for room, as a program that embeds the library meets them: blocking with a
//! time limit, as futures.
//!
//! * `order`: first come, first served; `passing`: which charges may barge past the first in line;
//! * `timeouts`, `deadlines`, `cancel`, `offline`, `limits`: the ends of waiting other than room;
//! * `wakes`: which waiter is woken, how often, through which waker;
//! * `stock`: what other threads have in stock is room; `levels`: more than one level that is full;
//! * `model`: any sequence of verbs against a model of the line;
//! * `inside`: a reclaimer does not wait; `reclaim`: a waiter asks for more; `panics`: wakers that
//!   panic;
//! * `on_full`: what is to happen; `extremes`: nothing, everything, for ever.

mod cancel;
mod deadlines;
mod extremes;
mod inside;
mod levels;
mod limits;
mod model;
mod offline;
mod on_full;
mod order;
mod panics;
mod passing;
mod reclaim;
mod stock;
mod timeouts;
mod wakes;

use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::{Charge, ChargeError, Group, OverLimitError, Runtime, RuntimeBuilder};

use crate::support::trees;

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, call, lock};
pub(crate) use crate::support::trees::{
    LeftEmpty, assert_empty, assert_sound, bare, build, charge, create, left_empty, limited,
};
pub(crate) use crate::support::waiters::{
    Polled, WATCHDOG, Waiter, Wakes, admitted, assert_woken, block_on, blocked, in_line, join,
    turned_away, until,
};

/// Every kind of stock, and of barrier.
pub(crate) fn kinds() -> [RuntimeBuilder; 4] {
    let [bare, stocked, open] = trees::kinds();
    [
        bare,
        stocked.clone(),
        open,
        stocked.barrier(BarrierMode::Fence),
    ]
}

/// The time that a charge waits in vain.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

#[track_caller]
pub(crate) fn timed_out(ended: Result<Charge, ChargeError>) -> (OverLimitError, Duration) {
    let error = ended.expect_err("there is no room");
    let waited = error.waited().unwrap_or_else(|| panic!("{error}"));
    (error.over_limit().expect("a refusal").clone(), waited)
}

/// A group of 10 KiB, and all of them.
#[track_caller]
pub(crate) fn full(runtime: &Runtime) -> (Group, Charge) {
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held = charge(&group, 10 * KIB);
    (group, held)
}

/// A group with 2 of 10 KiB left, one below it, and the charge that the latter holds.
#[track_caller]
pub(crate) fn nearly_full(runtime: &Runtime) -> (Group, Group, Charge) {
    let top = limited(&runtime.root(), "top", 10 * KIB);
    let group = create(&top, "q");
    let held = charge(&group, 8 * KIB);
    (top, group, held)
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
