//! Charges that pay for allocations, and the ledger.
//!
//! * `charges`: what becomes of a covering charge; `raw`: of charges without a guard; `scopes`: closures, guards, futures, panics;
//! * `ends`: groups and runtimes that go under a cover; `shown`: tables, `verify`, checkpoints.

mod charges;
mod ends;
mod raw;
mod scopes;
mod shown;

use memcg::allocator::Owner;
use memcg::{Charge, Group, Limits, Runtime};

/// What an allocator keeps of an object, which is freed with the value.
pub(crate) struct Object {
    pub(crate) owner: Owner,
    bytes: usize,
}

impl Object {
    /// Allocates for the thread's current group, or under its cover.
    pub(crate) fn new(bytes: usize) -> Object {
        Object { owner: Owner::charge(bytes), bytes }
    }

    #[allow(unsafe_code)]
    pub(crate) fn grow(&mut self, bytes: usize) {
        // SAFETY: the object's bytes are charged.
        unsafe { self.owner.grow(bytes) };
        self.bytes += bytes;
    }

    #[allow(unsafe_code)]
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
        // SAFETY: as above; each byte is given back once.
        unsafe { self.owner.uncharge(bytes) };
    }
}

impl Drop for Object {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { self.owner.uncharge(self.bytes) };
    }
}

pub(crate) fn runtime() -> Runtime {
    Runtime::builder().audit(true).build().unwrap()
}

pub(crate) fn group(runtime: &Runtime, name: &str) -> Group {
    runtime.root().create(name, Limits::new()).unwrap()
}

/// A group, and a charge of 100 bytes of it.
pub(crate) fn charged() -> (Runtime, Group, Charge) {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let charge = query.try_charge(100).unwrap();
    (runtime, query, charge)
}

/// Live, reserved, covered, uncovered, unpaid.
#[track_caller]
pub(crate) fn assert_figures(group: &Group, figures: [u64; 5]) {
    let ledger = group.ledger();
    let now = [group.live(), ledger.reserved(), ledger.covered(), ledger.uncovered(), ledger.unpaid()];
    assert_eq!(now, figures, "live, reserved, covered, uncovered, unpaid of {}", group.path());
    assert_eq!(ledger.max_error(), 0);
}

#[track_caller]
pub(crate) fn assert_verified(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}
