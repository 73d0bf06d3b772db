//! Nothing that was given back stays charged, and no neighbour is admitted into room that is taken.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Event, Group, Limits, OnFull, Runtime};

use super::{Object, assert_verified, covering};
use crate::support::trees::LeftEmpty;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn runtime() -> LeftEmpty {
    LeftEmpty::by(assert_verified, Runtime::builder().build().unwrap())
}

/// 60 of 64 KiB are reserved by amount and given back: all of it is there.
#[test]
fn what_was_given_back_is_there_at_once() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(64 * KIB).cover_allocations())
        .unwrap();
    for round in 0..3 {
        query.raw().charge_with(60 * KIB, OnFull::Now).unwrap();
        query.raw().uncharge(60 * KIB);
        assert_eq!(
            (query.usage(), query.live(), query.memory().stocked()),
            (0, 0, 0),
            "round {round}"
        );
        drop(query.charge(60 * KIB).unwrap());
        drop(query.charge_with(60 * KIB, OnFull::Now).unwrap());
        drop(
            query
                .charge_with(60 * KIB, OnFull::Wait(Duration::ZERO))
                .unwrap(),
        );
    }
    assert_eq!(query.events().get(Event::Oom), 0);
}

/// Waits for room that comes when bytes without a guard are given back.
#[test]
fn a_waiter_gets_what_is_given_back() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(64 * KIB).cover_allocations())
        .unwrap();
    query.raw().charge_with(50 * KIB, OnFull::Now).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            query
                .charge_with(60 * KIB, OnFull::Wait(Duration::from_secs(60)))
                .map(|charge| charge.bytes())
        });
        while query.waiting_count() == 0 {
            thread::yield_now();
        }
        query.raw().uncharge(50 * KIB);
        assert_eq!(waits.join().unwrap().unwrap(), 60 << 10);
    });
    assert_eq!((query.usage(), query.live()), (0, 0));
}

/// The same where what is given back was allocated, and unpaid.
#[test]
fn a_waiter_gets_what_is_freed() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(MIB)).unwrap();
    let query = covering(&tenant, "q");
    let objects: Vec<Object> = (0..1_024).map(|_| Object::of(&query, KIB)).collect();
    assert_eq!(query.ledger().unpaid(), 1 << 20);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            tenant
                .charge_with(1_000 * KIB, OnFull::Wait(Duration::from_secs(60)))
                .map(|held| held.bytes())
        });
        while tenant.waiting_count() == 0 {
            thread::yield_now();
        }
        drop(objects);
        memcg::allocator::catch_up();
        assert_eq!(waits.join().unwrap().unwrap(), 1_000 << 10);
    });
    assert_eq!((query.live(), tenant.live()), (0, 0));
}

/// A thousand idle queries have nothing of their tenant's.
#[test]
fn idle_groups_hold_nothing_of_their_tenant() {
    let runtime = runtime();
    let tenant = runtime
        .root()
        .create("t", Limits::new().max(64 * MIB))
        .unwrap();
    let queries: Vec<Group> = (0..1_000_u64)
        .map(|number| {
            let query = tenant
                .create(number, Limits::new().cover_allocations())
                .unwrap();
            query.raw().charge_with(63 * KIB, OnFull::Now).unwrap();
            let object = Object::of(&query, 3 * KIB);
            query.raw().uncharge(63 * KIB);
            drop(object);
            query
        })
        .collect();
    assert_eq!(
        (tenant.live(), queries.iter().map(Group::live).sum::<u64>()),
        (0, 0)
    );
    assert_eq!(tenant.charge(64 * MIB).unwrap().bytes(), 64 << 20);
}

/// Credit of a thread that sleeps, unpaid in its group, is no reason for a refusal beside it.
#[test]
fn credit_of_others_is_drained_before_a_refusal() {
    let runtime = Runtime::builder().adaptive(false).build().unwrap();
    let tenant = runtime
        .root()
        .create("t", Limits::new().max(16 * MIB))
        .unwrap();
    let query = covering(&tenant, "q");
    let beside = tenant.create("beside", Limits::new()).unwrap();
    let held = Barrier::new(2);
    let ends = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(Object::of(&query, KIB));
            held.wait();
            ends.wait();
        });
        held.wait();
        assert!(query.memory().stocked() > 0, "credit");
        assert_eq!(query.live(), 0);
        assert_eq!(beside.charge(16 * MIB).unwrap().bytes(), 16 << 20);
        // The credit is in no usage if more bytes are reserved.
        drop(Object::of(&query, KIB));
        let charge = query.charge(4 * MIB).unwrap();
        assert_eq!(
            (query.usage(), query.live(), query.memory().stocked()),
            (4 << 20, 4 << 20, 0)
        );
        drop(charge);
        ends.wait();
    });
    assert_verified(&runtime);
}

/// 4 of 10 MiB are allocated at all times. A neighbour's charge of 8 MiB never fits, whoever takes
/// the unpaid bytes over and gives them back meanwhile.
#[test]
fn no_neighbour_is_admitted_while_unpaid_bytes_are_taken_over() {
    for by_operator in [false, true] {
        let runtime = runtime();
        let tenant = runtime
            .root()
            .create("t", Limits::new().max(10 * MIB))
            .unwrap();
        let query = covering(&tenant, "q");
        let operator = query.create("op", Limits::new()).unwrap();
        let neighbour = tenant.create("n", Limits::new()).unwrap();
        let object = Object::of(&query, 4 << 20);
        let charged = if by_operator { &operator } else { &query };
        let ends = AtomicBool::new(false);
        let taken = AtomicU64::new(0);
        let low = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        if charged.raw().charge_with(4 * MIB, OnFull::Now).is_ok() {
                            charged.raw().uncharge(4 * MIB);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    low.fetch_add(u64::from(tenant.usage() < 4 << 20), Ordering::Relaxed);
                    memcg::allocator::catch_up();
                }
            });
            for _ in 0..3_000 {
                assert!(
                    neighbour.charge_with(8 * MIB, OnFull::Now).is_err(),
                    "of an operator: {by_operator}"
                );
            }
            while taken.load(Ordering::Relaxed) < 100 {
                thread::yield_now();
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(
            low.into_inner(),
            0,
            "looks that found less than what is allocated"
        );
        assert_eq!(
            (
                query.live(),
                tenant.live(),
                tenant.events().get(Event::Overcharge)
            ),
            (4 << 20, 4 << 20, 0)
        );
        assert_verified(&runtime);
        drop(object);
        assert_eq!(tenant.live(), 0);
    }
}

/// A charge in line needs less room once more is unpaid in its group, though usage has not fallen.
#[test]
fn a_waiter_needs_no_room_for_what_is_unpaid() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let query = covering(&tenant, "q");
    let beside = tenant.charge(20).unwrap();
    let waits = |bytes: usize, then: &dyn Fn()| {
        thread::scope(|scope| {
            let query = &query;
            let waits = scope.spawn(move || query_charge(query, bytes));
            while query.waiting_count() + tenant.waiting_count() == 0 {
                thread::yield_now();
            }
            then();
            memcg::allocator::catch_up();
            waits.join().unwrap()
        })
    };
    let object = Object::of(&query, 60);
    let more = std::cell::RefCell::new(None);
    // 90 less 60 do not fit beside 20. 30 more are allocated by force.
    let charge = waits(90, &|| _ = more.replace(Some(Object::of(&query, 30))));
    assert_eq!((query.live(), tenant.live()), (90, 110));
    drop((charge, beside));
    // 40 beside 90; what pays for 50 of these is given back.
    query.raw().charge(50).unwrap();
    let beside = tenant.charge(10).unwrap();
    let charge = waits(60, &|| query.raw().uncharge(50));
    assert_eq!(
        (query.live(), tenant.live(), query.ledger().unpaid()),
        (90, 100, 30)
    );
    drop((charge, object, more, beside));
    assert_eq!(tenant.live(), 0);
    assert_verified(&runtime);
}

fn query_charge(query: &Group, bytes: usize) -> memcg::Charge {
    query
        .charge_with(bytes, OnFull::Wait(Duration::from_secs(60)))
        .unwrap()
}

/// A refusal says what is missing, less what the group is charged for already.
#[test]
fn a_refusal_is_short_by_what_it_adds() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let query = covering(&tenant, "q");
    let _beside = tenant.charge(20).unwrap();
    let _object = Object::of(&query, 60);
    let refused = query.charge(90).unwrap_err();
    let line = "/t refused 90 B for /t/q: short by 10 B, usage 80 B of max 100 B";
    assert!(refused.to_string().starts_with(line), "{refused}");
    assert_eq!(query.charge(80).unwrap().bytes(), 80);
}

/// Credit of a group that covers is in its usage as far as it is unpaid alone: a level above takes
/// no more off.
#[test]
fn credit_that_is_paid_for_is_live_above() {
    let builder = Runtime::builder()
        .audit(true)
        .batch(64 * KIB)
        .adaptive(false);
    let runtime = LeftEmpty::by(assert_verified, builder.build().unwrap());
    let root = runtime.root();
    let query = covering(&root, "q");
    let reserved = query.charge(100 * KIB).unwrap();
    let objects: Vec<Object> = (0..4).map(|_| Object::of(&query, KIB)).collect();
    assert_eq!(
        (root.usage(), root.live(), query.live()),
        (100 << 10, 100 << 10, 100 << 10)
    );
    drop((objects, reserved));
}
