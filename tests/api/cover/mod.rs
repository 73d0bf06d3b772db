//! Groups whose usage is the larger of what is reserved and what is allocated, and the ledger.
//!
//! * `charges`: what becomes of a charge; `levels`: groups below each other; `exact`: nothing stays
//!   charged, and no neighbour is let in; `ends`: groups and runtimes that go; `random`: against a
//!   count by hand;
//! * `waits`: charges in line;
//! * `shown`: tables, statistics, `verify`, checkpoints.

mod charges;
mod ends;
mod exact;
mod levels;
mod random;
mod shown;
mod waits;

use memcg::allocator::Owner;
use memcg::{Group, Limits, Runtime};

use crate::support::trees::LeftEmpty;

/// An allocator's record of an object, which is freed with the value.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) owner: Owner,
    bytes: usize,
}

impl Object {
    /// Allocates for the thread's current group.
    pub(crate) fn new(bytes: usize) -> Object {
        Object {
            owner: Owner::charge(bytes),
            bytes,
        }
    }

    /// Allocates for a group.
    pub(crate) fn of(group: &Group, bytes: usize) -> Object {
        group.run(|| Object::new(bytes))
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

/// In the end it adds up.
pub(crate) fn runtime() -> LeftEmpty {
    LeftEmpty::by(
        assert_verified,
        Runtime::builder().audit(true).build().unwrap(),
    )
}

/// A group that does not cover.
pub(crate) fn group(runtime: &Runtime, name: &str) -> Group {
    runtime.root().create(name, Limits::new()).unwrap()
}

/// A group below that covers.
pub(crate) fn covering(above: &Group, name: &str) -> Group {
    above
        .create(name, Limits::new().cover_allocations())
        .unwrap()
}

/// Live, reserved, allocated, unpaid.
#[track_caller]
pub(crate) fn assert_figures(group: &Group, figures: [u64; 4]) {
    let ledger = group.ledger();
    let now = [
        group.live(),
        ledger.reserved(),
        ledger.allocated(),
        ledger.unpaid(),
    ];
    assert_eq!(
        now,
        figures,
        "live, reserved, allocated, unpaid of {}",
        group.path()
    );
    assert_eq!(ledger.max_error(), 0);
}

#[track_caller]
pub(crate) fn assert_verified(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}
