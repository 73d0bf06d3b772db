//! Groups that cover: usage is the larger of what is reserved and what is allocated.

use std::task::Waker;

use super::common::{block_on, end, waiting};
use super::loom_lifecycle::{assert_released_once, bare};
use super::schedules::EVER;
use super::{beside, build, model_without_pair, race};
use crate::allocator::{Owner, catch_up};
use crate::{Bytes, Group, Limits, OnFull, Runtime};

fn allocate(group: &Group, bytes: usize) -> Owner {
    group.run(|| Owner::charge(bytes))
}

#[allow(unsafe_code)]
fn free(owner: Owner, bytes: usize) {
    // SAFETY: the model frees what it has allocated, once.
    unsafe { owner.uncharge(bytes) };
}

/// A group below a root of that max.
fn covering(max: u64) -> (Runtime, Group) {
    let (runtime, root) = build(bare().max(Bytes(max)));
    let group = root.create("g", Limits::new().cover_allocations()).unwrap();
    (runtime, group)
}

/// E49. A thread takes over what is unpaid while another one gives back what it has reserved: usage
/// shows what is allocated at each moment, so a neighbour finds no room there.
#[test]
fn loom_taken_over_vs_given_back() {
    model_without_pair(|| {
        let (runtime, group) = covering(8);
        let object = allocate(&group, 2);
        group.raw().charge_with(Bytes(2), OnFull::Now).unwrap();
        let gives_back = |(runtime, group): (Runtime, Group)| {
            group.raw().uncharge(Bytes(2));
            assert!(
                group.usage() >= 2 && runtime.root().usage() >= 2,
                "2 are allocated"
            );
        };
        let other = beside((runtime.clone(), group.clone()), gives_back);
        group.raw().charge_with(Bytes(2), OnFull::Now).unwrap();
        other.join().unwrap();
        assert_eq!((group.usage(), runtime.root().usage()), (2, 2), "paid once");
        group.raw().uncharge(Bytes(2));
        free(object, 2);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// E49. A thread reserves while another one frees what is unpaid.
#[test]
fn loom_reserved_vs_freed() {
    model_without_pair(|| {
        let (runtime, group) = covering(8);
        let object = allocate(&group, 2);
        let ((), charge) = race(
            object,
            |object| free(object, 2),
            || group.charge_with(Bytes(2), OnFull::Now).unwrap(),
        );
        assert_eq!((group.usage(), runtime.root().usage()), (2, 2));
        drop(charge);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// E49. A thread gives back what is reserved while another one allocates: it is paid by the one or
/// by the other.
#[test]
fn loom_given_back_vs_allocated() {
    model_without_pair(|| {
        let (runtime, group) = covering(8);
        let charge = group.charge_with(Bytes(2), OnFull::Now).unwrap();
        let (object, ()) = race(group.clone(), |group| allocate(&group, 2), || drop(charge));
        assert_eq!(
            (group.usage(), runtime.root().usage()),
            (2, 2),
            "2 are allocated"
        );
        free(object, 2);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// A thread reserves while another one allocates: what the charge pays for is charged once.
#[test]
fn loom_reserved_vs_allocated() {
    model_without_pair(|| {
        let (runtime, group) = covering(8);
        let (object, charge) = race(
            group.clone(),
            |group| allocate(&group, 1),
            || group.charge_with(Bytes(2), OnFull::Now).unwrap(),
        );
        assert_eq!((group.usage(), runtime.root().usage()), (2, 2));
        drop(charge);
        free(object, 1);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// A charge is refused above a group that it has passed, while another thread allocates there: each
/// level has what is allocated.
#[test]
fn loom_refused_above_vs_allocated() {
    model_without_pair(|| {
        let (runtime, group) = covering(3);
        let below = super::group(&group, "below");
        let (object, refused) = race(
            below.clone(),
            |below| allocate(&below, 1),
            || below.charge_with(Bytes(4), OnFull::Now).is_err(),
        );
        assert!(refused, "4 of 3");
        assert_eq!(
            (below.usage(), group.usage(), runtime.root().usage()),
            (1, 1, 1)
        );
        free(object, 1);
        assert_eq!((below.usage(), runtime.root().usage()), (0, 0));
        end(below);
    });
}

/// E25. A thread gives back what pays for objects while another one waits for room: usage does not
/// fall, and the charge in line needs less of it.
#[test]
fn loom_waiter_vs_given_back() {
    model_without_pair(|| {
        let (runtime, group) = covering(3);
        let object = allocate(&group, 2);
        let charge = group.charge_with(Bytes(2), OnFull::Now).unwrap();
        let held = runtime.root().charge_with(Bytes(1), OnFull::Now).unwrap();
        let ((), next) = race(charge, drop, || {
            group.charge_with(Bytes(1), OnFull::Wait(EVER)).unwrap()
        });
        assert_eq!((group.usage(), runtime.root().usage()), (2, 3));
        drop((next, held));
        free(object, 2);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// E25. A thread gives bytes back and looks at the line while another one allocates: its usage
/// shows before its spare.
#[test]
fn loom_waiter_vs_allocated() {
    model_without_pair(|| {
        let (runtime, group) = covering(3);
        let mut held = [1, 1]
            .map(|n| runtime.root().charge_with(Bytes(n), OnFull::Now).unwrap())
            .into_iter();
        let future = waiting(&group, 2, Waker::noop());
        let ((), object) = race(held.next().unwrap(), drop, || allocate(&group, 1));
        catch_up();
        drop((block_on(future).unwrap(), held));
        free(object, 1);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// E15. The last object and the last charge of a group go at once: one of them ends the group.
#[test]
fn loom_last_free_vs_last_reserved() {
    model_without_pair(|| {
        let (runtime, group) = covering(8);
        let charge = group.charge_with(Bytes(1), OnFull::Now).unwrap();
        let object = allocate(&group, 1);
        end(group);
        race(object, |object| free(object, 1), || drop(charge));
        catch_up();
        assert_released_once(&runtime);
    });
}
