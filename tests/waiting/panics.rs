//! Wakers that panic: whoever is behind is woken all the same, and nobody loses what he was given.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::payloads::{DEPTHS, panic_with};
use crate::{KIB, Polled, admitted, assert_empty, assert_woken, build, charge, in_line, kinds, limited};

/// Panics when it is called, with a payload of such a depth.
struct Calls(u64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        panic_with(self.0);
    }
}

/// A waker's panic ends in the thread that wakes: the charge of that thread stands, and so do those that it has made for
/// others.
#[test]
fn a_call_that_panics() {
    for depth in DEPTHS {
        for builder in kinds() {
            let runtime = build(builder);
            let group = limited(&runtime.root(), "q", 10 * KIB);
            let held = charge(&group, 10 * KIB);
            let mut first = Polled::new(group.charge_async(4 * KIB));
            assert!(first.poll_with(&Waker::from(Arc::new(Calls(depth)))).is_pending());
            let mut behind = in_line(&group, 4 * KIB);
            drop(held);
            assert_woken(&behind, true);
            drop((admitted(&mut first), admitted(&mut behind)));
            drop((first, behind, group));
            assert_empty(&runtime);
        }
    }
}
