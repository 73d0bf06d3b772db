use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::Duration;

use memcg::{Bytes, Limits, Runtime};

use super::{Object, assert_figures, assert_verified, covering, group, runtime};
use crate::support::poll::poll_for;
use crate::support::trees::LeftEmpty;

/// Beside a group that covers there are some that do not: a parent that has not asked has the sum.
#[test]
fn a_parent_that_has_not_asked_has_the_sum() {
    let runtime = runtime();
    let tenant = group(&runtime, "t");
    let [one, two] = ["one", "two"].map(|name| covering(&tenant, name));
    let plain = tenant.create("plain", Limits::new()).unwrap();
    let held = [
        one.charge(100).unwrap(),
        plain.charge(7).unwrap(),
        tenant.charge(1).unwrap(),
    ];
    let objects = [
        Object::of(&one, 30),
        Object::of(&two, 200),
        Object::of(&plain, 11),
        Object::of(&tenant, 3),
    ];
    assert_figures(&tenant, [322, 108, 244, 200]);
    assert_figures(&runtime.root(), [322, 108, 244, 200]);
    let own = tenant.inspect().ledger_local();
    assert_eq!(
        (
            own.reserved(),
            own.allocated(),
            own.unpaid(),
            tenant.inspect().live_local()
        ),
        (1, 3, 0, 4)
    );
    assert_verified(&runtime);
    drop((held, objects));
    assert_figures(&tenant, [0; 4]);
}

#[test]
fn a_charge_leaves_and_enters_groups_that_cover() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let query = covering(&tenant, "q");
    let [sorts, scans] = ["sorts", "scans"].map(|name| query.create(name, Limits::new()).unwrap());
    let plain = tenant.create("plain", Limits::new()).unwrap();
    let object = Object::of(&query, 50);
    let mut charge = sorts.charge(80).unwrap();
    charge.transfer(&scans).unwrap();
    assert_eq!(
        (sorts.live(), scans.live(), query.live(), tenant.live()),
        (0, 80, 80, 80),
        "the query has it already"
    );
    charge.transfer(&query).unwrap();
    assert_eq!((scans.live(), query.live(), tenant.live()), (0, 80, 80));
    assert!(charge.transfer(&plain).is_err(), "130 of 100");
    charge.shrink(30);
    charge.transfer(&plain).unwrap();
    assert_eq!((plain.live(), query.live(), tenant.live()), (50, 50, 100));
    charge.transfer(&sorts).unwrap();
    assert_eq!(
        (plain.live(), sorts.live(), query.live(), tenant.live()),
        (0, 50, 50, 50)
    );
    charge.transfer(&tenant).unwrap();
    assert_eq!((sorts.live(), query.live(), tenant.live()), (0, 50, 100));
    charge.transfer(&sorts).unwrap();
    assert_eq!((sorts.live(), tenant.live()), (50, 50));
    assert_verified(&runtime);
    drop((charge, object));
    assert_figures(&tenant, [0; 4]);
}

/// Reserved bytes may pay for credit alone. A drain makes them spare, and they leave with their charge: the
/// levels above need no more room than for what stays.
#[test]
fn a_charge_that_leaves_takes_what_has_paid_for_credit() {
    let runtime = LeftEmpty::by(
        assert_verified,
        Runtime::builder()
            .batch(1 << 10)
            .adaptive(false)
            .build()
            .unwrap(),
    );
    for (max, fits) in [(90_300_u64, true), (90_299, false)] {
        let limits = Limits::new().max(Bytes(max));
        let tenant = runtime.root().create(max, limits).unwrap();
        let query = covering(&tenant, "q");
        let plain = tenant.create("plain", Limits::new()).unwrap();
        let object = Object::of(&query, 300);
        for _ in 0..4 {
            drop(Object::of(&query, 300));
            memcg::allocator::catch_up();
        }
        assert!(query.memory().stocked() > 0, "credit");
        let mut charge = query.charge(90_000).unwrap();
        assert_eq!(charge.transfer(&plain).is_ok(), fits, "90,300 of {max}");
        let live = if fits { (300, 90_000) } else { (90_000, 0) };
        assert_eq!((query.live(), plain.live()), live);
        drop((charge, object));
    }
}

/// Each level of the subtree has a max of its own.
#[test]
fn each_level_refuses_for_itself() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(100).cover_allocations())
        .unwrap();
    let operators = ["a", "b"].map(|name| query.create(name, Limits::new().max(60)).unwrap());
    let _objects = operators
        .each_ref()
        .map(|operator| Object::of(operator, 50));
    assert_eq!(query.live(), 100);
    let _charges = operators
        .each_ref()
        .map(|operator| operator.charge(50).unwrap());
    assert_eq!(query.live(), 100, "paid");
    let refused = operators[0].charge(11).unwrap_err();
    assert!(
        refused.to_string().starts_with("/q/a refused 11 B"),
        "{refused}"
    );
    let refused = operators[0].charge(10).unwrap_err();
    assert!(
        refused.to_string().starts_with("/q refused 10 B"),
        "{refused}"
    );
    assert_eq!(operators[0].live(), 50);
}

/// Bytes that come back are too few: the thread that gives them back looks at the line and goes on.
#[test]
fn a_charge_in_line_waits_for_enough() {
    for depth in 0..3 {
        let runtime = runtime();
        let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
        let query = (0..depth).fold(covering(&tenant, "q"), |above, _| {
            above.create("below", Limits::new()).unwrap()
        });
        let mut held = tenant.charge(80).unwrap();
        let mut waits = pin!(query.charge_async(30));
        assert!(poll_for(&mut waits, Duration::ZERO).is_pending());
        let (give, back) = channel();
        std::thread::spawn(move || {
            held.shrink(1);
            give.send(held).unwrap();
        });
        let mut held = back
            .recv_timeout(Duration::from_secs(20))
            .expect("the thread goes on");
        assert_eq!((tenant.waiting_count(), tenant.usage()), (1, 79));
        held.shrink(9);
        assert!(
            matches!(poll_for(&mut waits, Duration::ZERO), Poll::Ready(Ok(charge)) if charge.bytes() == 30)
        );
    }
}

/// What is short is short of the sums: the credit that allocated bytes were counted with is drained
/// by the time the refusal is written.
#[test]
fn what_is_short_leaves_out_what_reserved_bytes_will_pay_for() {
    let builder = Runtime::builder().batch(Bytes(256)).adaptive(false);
    let runtime = LeftEmpty::by(assert_verified, builder.build().unwrap());
    let limits = Limits::new().max(600).cover_allocations();
    let tenant = runtime.root().create("t", limits).unwrap();
    let query = covering(&tenant, "q");
    let reserved = tenant.charge(300).unwrap();
    // The second object finds credit of the first.
    let objects = [Object::of(&query, 200), Object::of(&query, 150)];
    for more in [301, 320, 600] {
        let refused = query.try_charge(more).unwrap_err();
        let full = refused.over_limit().expect("above a max");
        let short = 300 + more as u64 - 600;
        assert_eq!((full.group(), full.want()), (&tenant, short), "{refused}");
    }
    drop((reserved, objects));
}
