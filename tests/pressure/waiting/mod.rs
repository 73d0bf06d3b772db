//! Charges that wait for room, as a program that embeds the library meets them: blocking with a time limit, as futures.
//!
//! * `order`: first come, first served; `passing`: which charges may barge past the first in line;
//!   `large`: one that is large among many that are small;
//! * `timeouts`, `deadlines`, `cancel`, `offline`, `limits`: the ends of waiting other than room;
//! * `holding`: a charge that waits holds nothing; `wakes`: which waiter is woken, how often, through which waker;
//! * `stock`: what other threads have in stock is room; `levels`: more than one level that is full;
//! * `model`: any sequence of verbs against a model of the line;
//! * `inside`: a reclaimer does not wait; `reclaim`: a waiter asks for more; `panics`: wakers that panic;
//! * `exhausted`: what is to happen, as text; `extremes`: nothing, everything, for ever.

mod cancel;
mod deadlines;
mod exhausted;
mod extremes;
mod holding;
mod inside;
mod large;
mod levels;
mod limits;
mod model;
mod offline;
mod order;
mod panics;
mod passing;
mod reclaim;
mod stock;
mod timeouts;
mod wakes;

use memcg::RuntimeBuilder;
use memcg::expert::BarrierMode;

use crate::support::trees;

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use crate::support::trees::{assert_empty, assert_sound, bare, build, charge, create, limited};
pub(crate) use crate::support::waiters::{
    Polled, WATCHDOG, Waiter, Wakes, admitted, assert_woken, block_on, blocked, in_line, join, turned_away, until,
};

/// Every kind of stock, and of barrier.
pub(crate) fn kinds() -> [RuntimeBuilder; 4] {
    let [bare, stocked, open] = trees::kinds();
    [bare, stocked.clone(), open, stocked.barrier(BarrierMode::Fence)]
}
