#![cfg(not(loom))]
//! Observe-only: limits of a subtree that are counted, and refuse and delay nobody.
//!
//! * `through`: what is let through, and what is said of it; `switching`: on and off, at whatever usage;
//! * `subtree`: for whom it holds; `waiting`: those who wait when it comes; `pressure`: nobody is asked for anything.

#[path = "../reclaimers/mod.rs"]
mod reclaimers;
#[path = "../waiters/mod.rs"]
mod waiters;

mod pressure;
mod subtree;
mod switching;
mod through;
mod waiting;

use memcg::{Bytes, Charge, Event, Group, Limit, Limits, Runtime, RuntimeBuilder};

pub(crate) use reclaimers::{Cache, KIB, Log};
pub(crate) use waiters::{WATCHDOG, admitted, block_on, blocked, in_line, join};

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    let stock = Runtime::builder().audit(true).batch(Bytes(4 * KIB));
    [Runtime::builder().audit(true).batch(Bytes(0)), stock.clone(), stock.adaptive(false)]
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
    group.try_charge(bytes).expect("nobody refuses it")
}

/// *max*, *observed*, *oom* of the group alone.
pub(crate) fn locals(group: &Group) -> [u64; 3] {
    [Event::Max, Event::Observed, Event::Oom].map(|event| group.events_local().get(event))
}

#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}

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
