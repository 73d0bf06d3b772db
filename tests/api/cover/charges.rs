use memcg::{Bytes, Charge, Group, Limits, OnFull};

use super::{Object, assert_figures, assert_verified, covering, group, runtime};

#[test]
fn a_group_that_has_not_asked_has_the_sum() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    assert!(!query.limits().cover_allocations);
    let _charge = query.charge(100).unwrap();
    let _object = Object::of(&query, 60);
    assert_figures(&query, [160, 100, 60, 0]);
}

#[test]
fn what_is_not_reserved_is_forced_and_goes_back() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(200).cover_allocations())
        .unwrap();
    let charge = query.charge(100).unwrap();
    let mut object = Object::of(&query, 250);
    assert_eq!(
        (query.live(), query.forced(), query.ledger().unpaid()),
        (250, 50, 150)
    );
    assert!(query.run(memcg::Group::checkpoint).is_err(), "above max");
    object.shrink(100);
    assert!(query.run(memcg::Group::checkpoint).is_ok());
    // 50 of these are unpaid, and 50 fit.
    let more = query.charge(100).unwrap();
    assert_figures(&query, [200, 200, 150, 0]);
    assert!(query.charge(1).is_err());
    drop((charge, more));
    assert_figures(&query, [150, 0, 150, 150]);
    drop(object);
    assert_figures(&query, [0; 4]);
}

#[test]
fn a_charge_that_goes_first_leaves_what_is_allocated() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(100).cover_allocations())
        .unwrap();
    let charge = query.charge(100).unwrap();
    let object = Object::of(&query, 40);
    drop(charge);
    assert_eq!(
        (query.live(), query.forced(), query.peak()),
        (40, 0, 100),
        "never forced, never missing"
    );
    assert_eq!(
        query.charge(101).unwrap_err().to_string().split(':').next(),
        Some("/q refused 101 B for /q")
    );
    let all = query.charge(100).unwrap();
    assert_figures(&query, [100, 100, 40, 0]);
    drop((object, all));
    assert_figures(&query, [0; 4]);
}

#[test]
fn parts_of_a_charge() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let object = Object::of(&query, 80);
    let mut charge = query.charge(100).unwrap();
    let part = charge.split(30).unwrap();
    assert_figures(&query, [100, 100, 80, 0]);
    drop(part);
    assert_figures(&query, [80, 70, 80, 10]);
    let whole = charge.take();
    assert_eq!((charge.bytes(), whole.bytes()), (0, 70));
    let mut other = query.charge(50).unwrap();
    other.merge(whole).unwrap();
    assert_figures(&query, [120, 120, 80, 0]);
    other.resize(0).unwrap();
    assert_figures(&query, [80, 0, 80, 80]);
    drop((charge, other, object));
    assert_figures(&query, [0; 4]);
}

/// Each way to charge and to give back.
#[test]
fn each_verb_reserves() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(1_000).cover_allocations())
        .unwrap();
    let object = Object::of(&query, 10);
    let charge: [fn(&Group) -> Charge; 7] = [
        |group| group.charge(7).unwrap(),
        |group| group.force_charge(7),
        |group| group.charge_with(7, OnFull::Now).unwrap(),
        |group| group.charge_with(7, OnFull::Start).unwrap(),
        |group| group.charge_with(7, OnFull::IfRoom).ok().unwrap(),
        |group| group.charge_with(7, OnFull::Reclaim).unwrap(),
        |group| {
            group
                .charge_with(7, OnFull::Wait(std::time::Duration::ZERO))
                .unwrap()
        },
    ];
    let held: Vec<Charge> = charge.iter().map(|charge| charge(&query)).collect();
    assert_figures(&query, [49, 49, 10, 0]);
    query.raw().charge(7).unwrap();
    query.raw().charge_with(7, OnFull::Now).unwrap();
    query.raw().charge_with(7, OnFull::Start).unwrap();
    assert!(
        query.raw().charge_with(7, OnFull::IfRoom).is_ok()
            && query.raw().charge_with(1_000, OnFull::IfRoom).is_err()
    );
    assert_eq!(query.raw().force_charge(7), 7);
    assert_figures(&query, [84, 84, 10, 0]);
    assert_verified(&runtime);
    query.raw().uncharge(35);
    drop(held);
    assert_figures(&query, [10, 0, 10, 10]);
    let empty = query.charge(0).unwrap();
    assert!(query.raw().charge_with(0, OnFull::IfRoom).is_ok());
    drop((object, empty));
    assert_figures(&query, [0; 4]);
}

/// Nothing that others hold goes with it, and no later charge is free.
#[test]
fn more_is_given_back_than_was_reserved() {
    let runtime = memcg::Runtime::builder().audit(true).build().unwrap();
    let query = covering(&runtime.root(), "q");
    let object = Object::of(&query, 60);
    query.raw().force_charge(20);
    query.raw().uncharge(50); // a bug
    assert_figures(&query, [60, 0, 60, 60]);
    assert_eq!(runtime.counts().underflows, 1);
    assert!(
        runtime
            .verify()
            .to_string()
            .ends_with("/q: 30 uncharged that were never charged")
    );
    let charge = query.charge(70).unwrap();
    assert_figures(&query, [70, 70, 60, 0]);
    drop((charge, object));
    assert_figures(&query, [0; 4]);
}

#[test]
fn a_charge_becomes_raw_and_a_guard_again() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let object = Object::of(&query, 60);
    let (word, bytes) = query.charge(100).unwrap().into_raw();
    assert_figures(&query, [100, 100, 60, 0]);
    // SAFETY: from `into_raw`, once.
    #[allow(unsafe_code)]
    let charge = unsafe { Charge::from_raw(word, bytes) };
    drop((charge, object));
    assert_figures(&query, [0; 4]);
}

/// A charge that is refused, cancelled, or lost in a panic leaves nothing.
#[test]
fn what_is_not_charged_leaves_nothing() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let query = covering(&tenant, "q");
    let operator = query.create("op", Limits::new().max(80)).unwrap();
    let object = Object::of(&query, 30);
    assert!(matches!(operator.charge(81), Err(error) if error.is_over_limit()));
    assert!(matches!(query.charge(101), Err(error) if error.is_over_limit()));
    assert_figures(&query, [30, 0, 30, 30]);
    assert_figures(&operator, [0; 4]);
    let beside = tenant.charge(60).unwrap();
    assert!(
        matches!(operator.charge(50), Err(error) if error.is_over_limit()),
        "refused at the tenant"
    );
    assert_figures(&operator, [0; 4]);
    // A future that waits, and is dropped.
    let mut waits = Box::pin(operator.charge_async(50));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(waits);
    assert_figures(&operator, [0; 4]);
    // One that is granted, and is dropped before its next poll.
    let mut waits = Box::pin(operator.charge_async(50));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(beside);
    assert_eq!((operator.live(), query.live(), tenant.live()), (50, 50, 50));
    drop(waits);
    assert_figures(&query, [30, 0, 30, 30]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _charge = operator.charge(50).unwrap();
        operator.run(|| {
            let _object = Object::new(70);
            panic!("the work fails");
        })
    }));
    assert!(panicked.is_err());
    assert_figures(&tenant, [30, 0, 30, 30]);
    drop(object);
    assert_figures(&tenant, [0; 4]);
}

#[test]
fn a_max_that_is_set_below_usage() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let charge = query.charge(100).unwrap();
    let _object = Object::of(&query, 60);
    query.set_max(80).unwrap();
    assert_eq!(query.forced(), 20, "100 are reserved");
    drop(charge);
    assert_eq!((query.live(), query.forced()), (60, 0));
    assert!(query.charge(81).is_err());
    assert_eq!(query.charge(Bytes(80)).unwrap().bytes(), 80);
}
