#![cfg(not(loom))]
//! Charges that wait for room, as those who embed the library meet them: blocking with a time limit, and as futures.
//!
//! * `order`: first come, first served; `passing`: who may pass the first in line, and how many bytes at most;
//!   `large`: one that is large among many that are small;
//! * `timeouts`, `cancel`, `offline`, `limits`: the ends of waiting other than room;
//! * `holding`: who waits holds nothing; `wakes`: who is woken, how often, through which waker;
//! * `stock`: what other threads have in stock is room; `levels`: more than one level that is full;
//! * `model`: any sequence of verbs against a model of the line;
//! * `inside`: a reclaimer does not wait; `reclaim`: who waits asks for more;
//! * `exhausted`: what is to happen, as text; `extremes`: nothing, everything, for ever.

#[path = "../reclaimers/mod.rs"]
mod reclaimers;
#[path = "../waiters/mod.rs"]
mod waiters;

mod cancel;
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
mod passing;
mod reclaim;
mod stock;
mod timeouts;
mod wakes;

use memcg::{BarrierMode, Bytes, Charge, Group, Limit, Limits, Runtime, RuntimeBuilder};

pub(crate) use reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use waiters::{
    Polled, WATCHDOG, Waiter, Wakes, admitted, assert_woken, block_on, blocked, in_line, join, turned_away, until,
};

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(0))
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 4] {
    let stock = Runtime::builder().audit(true).batch(Bytes(4 * KIB));
    [bare(), stock.clone(), stock.clone().adaptive(false), stock.barrier(BarrierMode::Fence)]
}

#[track_caller]
pub(crate) fn build(builder: RuntimeBuilder) -> Runtime {
    builder.build().expect("a configuration that holds")
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).expect("a name that is free")
}

#[track_caller]
pub(crate) fn limited(parent: &Group, name: &str, max: u64) -> Group {
    parent.create(name, Limits::new().max(Limit::Bytes(max))).expect("a name that is free")
}

#[track_caller]
pub(crate) fn charge(group: &Group, bytes: u64) -> Charge {
    group.try_charge(bytes).expect("room")
}

/// The tree adds up, nobody is above a max but by force.
#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
    for group in runtime.root().descendants().chain([runtime.root()]) {
        let (usage, forced, max) = (group.usage(), group.forced(), group.max());
        assert!(usage - forced <= max, "{}: usage {usage}, forced {forced}, max {max}", group.path());
    }
}

/// All has been given back and nobody waits: nothing is left, not of those who waited either.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    for group in root.descendants().chain([root.clone()]) {
        assert_eq!(group.waiting(), 0, "{}", group.path());
    }
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
    root.drain();
    assert_eq!((root.usage(), root.forced(), runtime.dying()), (0, 0, 0));
    assert_sound(runtime);
}
