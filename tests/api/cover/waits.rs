//! Charges in line, where reserved bytes go that have paid for objects: these are unpaid from then
//! on and usage stays, but a charge that comes raises it by less.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use memcg::{Charge, Group, Limits};

use super::{Object, assert_verified, covering, group, runtime};
use crate::support::poll::poll_for;

/// A charge of 500 waits at a group of 600 that has 400 allocated and 300 reserved. 200 of these go;
/// then it adds 200.
#[track_caller]
fn assert_served(go: impl FnOnce(&mut Charge, &Group)) {
    let runtime = runtime();
    let tenant = group(&runtime, "t");
    let query = covering(&tenant, "q");
    let operator = query.create("op", Limits::new().max(600)).unwrap();
    let object = Object::of(&operator, 400);
    // More is reserved than allocated further up: usage falls there.
    let above = query.charge(300).unwrap();
    let below = operator.charge(100).unwrap();
    let mut goes = operator.charge(200).unwrap();
    let mut waits = pin!(operator.charge_async(500));
    assert!(poll_for(&mut waits, Duration::ZERO).is_pending());
    go(&mut goes, &query);
    assert_eq!((operator.waiting_count(), operator.live()), (0, 600));
    let served = poll_for(&mut waits, Duration::ZERO);
    assert!(matches!(&served, Poll::Ready(Ok(charge)) if charge.bytes() == 500));
    assert_verified(&runtime);
    drop((served, goes, below, above, object));
}

#[test]
fn usage_falls_further_up_alone() {
    assert_served(|goes, _| _ = goes.shrink(200));
}

#[test]
fn a_charge_leaves_for_a_group_that_covers() {
    assert_served(|goes, query| {
        let beside = query.create("beside", Limits::new()).unwrap();
        goes.transfer(&beside).unwrap();
    });
    assert_served(|goes, query| goes.transfer(query).unwrap());
}

#[test]
fn a_charge_leaves_for_a_group_that_does_not_cover() {
    assert_served(|goes, query| goes.transfer(&query.parent().unwrap()).unwrap());
}

/// The charge was the last of its group, which has gone offline.
#[test]
fn a_group_ends_with_what_paid_further_up() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(600)).unwrap();
    let query = covering(&tenant, "q");
    let operator = query.create("op", Limits::new()).unwrap();
    let object = Object::of(&query, 400);
    let beside = tenant.charge(100).unwrap();
    let last = operator.charge(300).unwrap();
    operator.offline().unwrap();
    drop(operator);
    let mut waits = pin!(query.charge_async(250));
    assert!(poll_for(&mut waits, Duration::ZERO).is_pending());
    drop(last);
    assert_eq!((tenant.waiting_count(), tenant.live()), (0, 500));
    let served = poll_for(&mut waits, Duration::ZERO);
    assert!(matches!(&served, Poll::Ready(Ok(charge)) if charge.bytes() == 250));
    assert_verified(&runtime);
    drop((served, beside, object));
}
