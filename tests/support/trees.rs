//! Small trees to test with: every kind of stock, groups with and without a max, and what must hold
//! at the end.

use std::ops::Deref;
use std::thread;

use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime, RuntimeBuilder};

use super::waiters::until;

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(0))
}

/// A stock of 4 KiB a batch.
pub(crate) fn stocked() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(4 << 10))
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    [bare(), stocked(), stocked().adaptive(false)]
}

#[track_caller]
pub(crate) fn build(builder: RuntimeBuilder) -> Runtime {
    builder.build().expect("a configuration that holds")
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

#[track_caller]
pub(crate) fn limited(parent: &Group, name: &str, max: u64) -> Group {
    parent
        .create(name, Limits::new().max(Limit::Bytes(max)))
        .expect("a name that is free")
}

#[track_caller]
pub(crate) fn charge(group: &Group, bytes: u64) -> Charge {
    group.charge(Bytes(bytes)).expect("no level refuses it")
}

/// The tree adds up, and no group is above a max that acts but by force.
#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
    for group in runtime
        .root()
        .inspect()
        .descendants()
        .chain([runtime.root()])
        .filter(|group| !group.is_observe_only())
    {
        let usage = group.usage();
        let forced = group.forced();
        let max = group.max();
        assert!(
            usage - forced <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            group.path()
        );
    }
}

/// All has been given back and no thread waits: nothing is left, and nothing of waiters and
/// listeners either.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    for group in root.inspect().descendants().chain([root.clone()]) {
        assert_eq!(group.waiting_count(), 0, "{}", group.path());
    }
    root.children().iter().for_each(Group::offline_tree);
    // A thread of the crate keeps a group until it is through with what a charge has left to it.
    until("no thread keeps a group", || {
        runtime.settle();
        runtime.dying_count() == 0
    });
    root.memory().drain();
    assert_eq!(
        (root.usage(), root.forced(), runtime.dying_count()),
        (0, 0, 0)
    );
    assert_sound(runtime);
}

// === impl LeftEmpty ===

/// A runtime that the test leaves empty, which is looked at when the test drops it.
pub(crate) struct LeftEmpty {
    runtime: Runtime,
    assert_empty: fn(&Runtime),
}

impl LeftEmpty {
    pub(crate) fn by(assert_empty: fn(&Runtime), runtime: Runtime) -> LeftEmpty {
        LeftEmpty {
            runtime,
            assert_empty,
        }
    }

    /// Drops the runtime with what is left in it.
    pub(crate) fn drop_as_it_is(mut self) {
        self.assert_empty = |_| ();
    }
}

impl Deref for LeftEmpty {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        &self.runtime
    }
}

impl Drop for LeftEmpty {
    fn drop(&mut self) {
        // A test that has failed leaves what it will.
        if !thread::panicking() {
            (self.assert_empty)(&self.runtime);
        }
    }
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    LeftEmpty::by(assert_empty, runtime)
}

/// One after the other, a runtime with each kind of stock.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
