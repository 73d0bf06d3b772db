//! Groups as a program that embeds them meets them: where a group is, when it goes, whose a charge
//! may become.
//!
//! * `tree`: which group is found where, while others come and go;
//! * `offline`: admission stops, names are free, barriers are few;
//! * `dying`: what may still be done to a group that went offline;
//! * `outlive`: charges and handles that outlive their group and their runtime;
//! * `at_once`: what two do to one place of the tree, `settings`: to a group and to what is being
//!   made below it;
//! * `first_use`: what a group has from its first use on;
//! * `most`: many threads and the configured most groups;
//! * `races`: a group that goes offline under a group's hands;
//! * `raw`: charges without a guard; `transfer`: whose a charge may become;
//! * `room`: the least max and the least room above a group;
//! * `scope`: groups that go offline with a value, and what a runtime's handles keep;
//! * `limits`, `counters`: what a group may hold, of memory and of the rest.

mod at_once;
mod counters;
mod declared_later;
mod dying;
mod first_use;
mod limits;
mod most;
mod offline;
mod outlive;
mod races;
mod raw;
mod room;
mod scope;
mod settings;
mod transfer;
mod tree;

use memcg::barrier::BarrierMode;
use memcg::{Bytes, Runtime, RuntimeBuilder};

pub(crate) use crate::support::trees::{LeftEmpty, build, charge, create};
pub(crate) use crate::support::workers::Other;

/// No stock: usage is what is live.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(0))
}

/// A batch of 64 bytes that stays open.
pub(crate) fn fixed() -> RuntimeBuilder {
    Runtime::builder()
        .audit(true)
        .batch(Bytes(64))
        .adaptive(false)
}

/// Every kind of stock, on the hit path and beside it.
pub(crate) fn kinds() -> [RuntimeBuilder; 6] {
    let hits = Runtime::builder().batch(Bytes(64));
    [
        bare(),
        fixed(),
        fixed().barrier(BarrierMode::Fence),
        Runtime::builder().audit(true).batch(Bytes(64)),
        hits.clone(),
        hits.adaptive(false),
    ]
}

/// The whole tree adds up, with the second count where there is one.
#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

/// Nothing is charged and no group is dying any more: nothing is left.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    runtime.settle();
    assert_sound(runtime);
    let root = runtime.root();
    root.memory().drain();
    assert_eq!(
        (root.usage(), root.forced(), runtime.dying_count()),
        (0, 0, 0)
    );
    assert_sound(runtime);
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    LeftEmpty::by(assert_empty, runtime)
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
