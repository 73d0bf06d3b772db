#![cfg(not(loom))]
//! `high`, as those who embed the library meet it: charges above it succeed, reclaim first, and take their time.
//!
//! * `writing`: setting it; `delay`: how long charges take, and which do not; `figures`: what is told of that;
//! * `reclaim`: who is asked first; `futures`: charges that yield instead of sleeping; `events`: who counts what.

#[path = "../reclaimers/mod.rs"]
mod reclaimers;
#[path = "../waiters/mod.rs"]
mod waiters;

mod delay;
mod events;
mod figures;
mod futures;
mod reclaim;
mod writing;

use std::time::Duration;

use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime, RuntimeBuilder};

pub(crate) use reclaimers::{Cache, KIB, Log, MIB, call, call_of};
pub(crate) use waiters::{Polled, WATCHDOG, until};

/// The 64 pages for which a delay is told.
pub(crate) const BATCH: u64 = 256 * KIB;

/// Long enough for a machine that stands still now and then.
const UNTIMED: Duration = Duration::from_secs(600);

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(0)).reclaim_time(UNTIMED)
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    let stock = Runtime::builder().audit(true).batch(Bytes(4 * KIB)).reclaim_time(UNTIMED);
    [bare(), stock.clone(), stock.adaptive(false)]
}

/// Nobody sleeps.
pub(crate) fn undelayed() -> impl Iterator<Item = RuntimeBuilder> {
    kinds().into_iter().map(|builder| builder.delay_max(Duration::ZERO))
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
pub(crate) fn with_high(parent: &Group, name: &str, high: u64) -> Group {
    parent.create(name, Limits::new().high(Limit::Bytes(high))).expect("a name that is free")
}

#[track_caller]
pub(crate) fn charge(group: &Group, bytes: u64) -> Charge {
    group.try_charge(bytes).expect("high refuses nobody")
}

#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}

/// All has been given back: nothing is left.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
    root.drain();
    assert_eq!((root.usage(), root.forced(), runtime.dying()), (0, 0, 0));
    assert_sound(runtime);
}
