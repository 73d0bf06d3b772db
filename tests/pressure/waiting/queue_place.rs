//! One place in line for a queue of waiters.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use memcg::expert::{Inspect as _, QueuePlace as _};
use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, Limits};

use super::{Cache, KIB, Log, assert_woken, charge, create, full, in_line, limited, nearly_full, runtimes};

fn poll(place: &mut ChargeFuture) -> Poll<Result<Charge, ChargeError>> {
    Pin::new(place).poll(&mut Context::from_waker(Waker::noop()))
}

/// A place of a queue, in line.
#[track_caller]
fn place(group: &Group, bytes: u64) -> ChargeFuture {
    let mut place = group.charge_async(Bytes(bytes));
    assert!(!place.waits_in_line());
    assert!(poll(&mut place).is_pending() && place.waits_in_line());
    place
}

/// Only a drop that would serve the place, and no other charge, says so.
#[test]
fn a_charge_serves_the_place_alone() {
    for runtime in runtimes() {
        let (top, group, held) = nearly_full(&runtime);
        let below = charge(&create(&group, "below"), KIB);
        let mut queue = place(&group, 8 * KIB);
        assert!(queue.is_served_by(&held));
        assert!(!queue.is_served_by(&below), "the group of another");
        assert!(queue.wait_for(Bytes(9 * KIB)));
        assert!(!queue.is_served_by(&held), "too few bytes");
        assert!(queue.wait_for(Bytes(8 * KIB)));
        let other = in_line(&top, 5 * KIB);
        assert!(!queue.is_served_by(&held), "another one waits above");
        drop(other);
        assert!(queue.is_served_by(&held));
        let more = top.force_charge(Bytes(2 * KIB));
        assert!(!queue.is_served_by(&held), "above a limit");
        drop(more);
        top.set_observe_only(true);
        assert!(!queue.is_served_by(&held), "a limit that counts alone");
        drop((queue, held, below));
    }
}

/// The place stays where it is in line, whatever it is for: fewer bytes that fit are charged at once.
#[test]
fn the_place_is_for_other_bytes() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut queue = place(&group, 10 * KIB);
        let behind = in_line(&group, KIB);
        assert!(queue.wait_for(Bytes(2 * KIB)));
        drop(held);
        assert_woken(&behind, true);
        assert!(!queue.wait_for(Bytes(KIB)), "it has its bytes");
        let Poll::Ready(Ok(charge)) = poll(&mut queue) else { panic!("2 KiB fit") };
        assert_eq!(charge.bytes(), 2 * KIB);
        assert!(!queue.wait_for(Bytes(KIB)), "it is over");
        drop((behind, charge));
    }
}

/// Once it is decided the place goes behind all that wait, for the next one. Each charge is returned once.
#[test]
fn the_place_goes_behind() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut queue = place(&group, 10 * KIB);
        let other = in_line(&group, 10 * KIB);
        let next = Some((Bytes(5 * KIB), Waker::noop()));
        assert!(queue.take_decided(next).is_none(), "it waits");
        drop(held);
        let first = queue.take_decided(next).expect("it is first").expect("10 KiB are free");
        assert!(queue.waits_in_line() && queue.take_decided(next).is_none());
        drop(first);
        assert_woken(&other, true);
        assert_eq!(group.waiting_count(), 1);
        drop(other);
        let second = queue.take_decided(None).expect("it is first").expect("10 KiB are free");
        assert_eq!((second.bytes(), group.live(), group.waiting_count()), (5 * KIB, 5 * KIB, 0));
        assert!(!queue.waits_in_line() && queue.take_decided(next).is_none() && poll(&mut queue).is_pending());
    }
}

/// What asks reclaimers before it waits has no place before it has asked them.
#[test]
fn reclaimers_are_asked_before_a_place_anew() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let _cache = Cache::of(&group, 0, &Log::default());
        let mut queue = place(&group, 10 * KIB);
        drop(held);
        let first = queue.take_decided(Some((Bytes(KIB), Waker::noop()))).expect("it is first");
        assert_eq!((first.expect("10 KiB are free").bytes(), queue.waits_in_line()), (10 * KIB, false));
    }
}

/// A refusal is taken as a charge is.
#[test]
fn a_refusal_is_taken() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut queue = place(&group, 10 * KIB);
        group.set_max(Bytes(5 * KIB)).expect("a max below what is held");
        let refused = queue.take_decided(None).expect("10 KiB never fit").expect_err("the same");
        assert!(matches!(refused, ChargeError::Limit(_)), "{refused}");
        drop(held);
    }
}

/// A waker whose clones panic.
#[allow(unsafe_code)]
fn uncloned() -> Waker {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(|_| panic!("a clone"), |_| (), |_| (), |_| ());
    // SAFETY: these functions do nothing with the pointer, on any thread.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) }
}

/// The waker of the next one panics when it is cloned: what the line has charged goes back.
#[test]
fn a_clone_that_panics_loses_no_byte() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut queue = place(&group, 10 * KIB);
        drop(held);
        let waker = uncloned();
        let taken = catch_unwind(AssertUnwindSafe(|| queue.take_decided(Some((Bytes(KIB), &waker)))));
        assert!(taken.is_err());
        assert_eq!((group.live(), group.waiting_count()), (0, 0));
        assert!(poll(&mut queue).is_pending(), "it is over");
        drop(queue);
        assert_eq!(group.live(), 0);
    }
}

/// A charge above a high is the poll's, with its delay.
#[test]
fn a_delay_is_left_to_the_poll() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        group.set_limits(Limits::new().high(Bytes(KIB))).expect("a high below the max");
        let held = group.force_charge(Bytes(10 * KIB));
        let mut queue = place(&group, 10 * KIB);
        drop(held);
        assert!(queue.take_decided(None).is_none() && queue.waits_in_line());
        drop(poll(&mut queue));
        assert!(!queue.waits_in_line());
    }
}
