//! Wakers that panic: a charge that is behind is woken all the same, and no charge loses what it
//! was given.

use memcg::Bytes;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::task::{Poll, RawWaker, RawWakerVTable, Wake, Waker};

use super::{KIB, Polled, admitted, assert_woken, full, in_line, runtimes};
use crate::support::payloads::{DEPTHS, panic_with};

/// Panics when it is called, with a payload of such a depth.
struct Calls(u64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        panic_with(self.0);
    }
}

/// A waker's panic ends in the thread that wakes: the charge of that thread stands, and so do those
/// that it has made for others.
#[test]
fn a_call_that_panics() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let (group, held) = full(&runtime);
            let mut first = Polled::new(group.charge_async(Bytes(4 * KIB)));
            assert!(
                first
                    .poll_with(&Waker::from(Arc::new(Calls(depth))))
                    .is_pending()
            );
            let mut behind = in_line(&group, 4 * KIB);
            drop(held);
            assert_woken(&behind, true);
            drop((admitted(&mut first), admitted(&mut behind)));
        }
    }
}

/// A waker whose clones panic when they are dropped, with a payload of such a depth; it does not do
/// so itself.
#[allow(unsafe_code)]
fn fragile(depth: &'static u64) -> ManuallyDrop<Waker> {
    fn clone(depth: *const ()) -> RawWaker {
        RawWaker::new(depth, &VTABLE)
    }
    fn drops(depth: *const ()) {
        // SAFETY: the address of a static, see below.
        panic_with(unsafe { *depth.cast::<u64>() });
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), drops);
    // SAFETY: any thread may call these functions, for a static that no charge changes; none needs
    // what another one did.
    ManuallyDrop::new(unsafe {
        Waker::from_raw(RawWaker::new(ptr::from_ref(depth).cast(), &VTABLE))
    })
}

/// The thread drops a clone in the poll that brings the charge: it has the charge all the same.
#[test]
fn a_drop_that_panics_in_the_last_poll() {
    for depth in &DEPTHS {
        for runtime in runtimes() {
            let (group, held) = full(&runtime);
            let mut waiter = in_line(&group, 4 * KIB);
            drop(held);
            match waiter.poll_with(&fragile(depth)) {
                Poll::Ready(Ok(charge)) => {
                    assert_eq!((charge.bytes(), group.live()), (4 * KIB, 4 * KIB))
                }
                other => panic!("not admitted: {other:?}"),
            }
            assert_eq!(group.live(), 0, "it was dropped");
        }
    }
}

/// Another waker takes its place.
#[test]
fn a_drop_that_panics_in_an_exchange() {
    for depth in &DEPTHS {
        for runtime in runtimes() {
            let (group, held) = full(&runtime);
            let mut waiter = Polled::new(group.charge_async(Bytes(4 * KIB)));
            assert!(waiter.poll_with(&fragile(depth)).is_pending());
            assert!(waiter.poll().is_pending());
            drop(held);
            assert_woken(&waiter, true);
            drop(admitted(&mut waiter));
        }
    }
}

/// A future that leaves the line has a waker there: nothing of the future remains.
#[test]
fn a_drop_that_panics_out_of_the_line() {
    for depth in &DEPTHS {
        for runtime in runtimes() {
            let (group, held) = full(&runtime);
            let mut first = Polled::new(group.charge_async(Bytes(8 * KIB)));
            assert!(first.poll_with(&fragile(depth)).is_pending());
            let mut behind = in_line(&group, 4 * KIB);
            drop(first);
            assert_eq!(group.waiting_count(), 1);
            drop(held);
            assert_woken(&behind, true);
            drop(admitted(&mut behind));
        }
    }
}
