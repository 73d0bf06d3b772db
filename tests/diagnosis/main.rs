#![cfg(not(loom))]
//! What a group at its limit says: who holds its memory, who waits, what happened.
//!
//! * `holders`: in the refusal; `top`: on request; `dump`: all of a subtree, and not too often.

#[path = "../reclaimers/mod.rs"]
mod reclaimers;
#[path = "../waiters/mod.rs"]
mod waiters;

mod dump;
mod holders;
mod top;

use memcg::{Bytes, Charge, ChargeError, Group, Limit, Limits, Refusal, Runtime, RuntimeBuilder};

pub(crate) use reclaimers::{KIB, MIB};
pub(crate) use waiters::in_line;

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
    group.try_charge(bytes).expect("room")
}

/// The refusal of a charge that does not fit.
#[track_caller]
pub(crate) fn refused(group: &Group, bytes: u64) -> Refusal {
    match group.try_charge(bytes) {
        Err(ChargeError::Limit(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
    root.drain();
    assert_eq!((root.usage(), root.forced(), runtime.dying()), (0, 0, 0));
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}
