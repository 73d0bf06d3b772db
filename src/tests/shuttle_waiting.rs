//! Many waiters: each is served, whichever charge is given back, leaves or moves to another line,
//! and whichever group goes offline meanwhile. A thread that is not woken is a deadlock, which
//! shuttle reports.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::rand::{Rng as _, thread_rng};

use super::common::{block_on, waiting};
use super::shuttle_reclaim::ChargeCache;
use super::{Threads, assert_adds_up, assert_released_once, below, check, runtime};
use crate::{Bytes, Event, Group, Limit, Limits, OnFull, ReclaimPriority};

/// Time stands still in a run.
const EVER: Duration = Duration::from_secs(60);

/// Six threads, two tenants, less room than they ask for together: blocking waits, futures, futures
/// that are given up.
fn crowd(batch: u64) {
    let runtime = runtime(6, batch);
    let tenants = ["acme", "blue"].map(|name| below(&runtime.root(), name, 4));
    let mut threads = Threads::new();
    for thread in 0..6_u64 {
        threads.add(
            tenants[thread as usize % 2]
                .create(&format!("q{thread}"), Limits::new())
                .unwrap(),
            move |group| {
                for round in 0..2 {
                    let bytes = 1 + (thread + round) % 3;
                    if thread < 3 {
                        drop(group.charge_with(Bytes(bytes), OnFull::Wait(EVER)).unwrap());
                    } else if thread == 5 {
                        let mut future = pin!(group.charge_async(Bytes(bytes)));
                        let polled = future
                            .as_mut()
                            .poll(&mut Context::from_waker(Waker::noop()));
                        assert!(!matches!(polled, Poll::Ready(Err(_))));
                    } else {
                        drop(block_on(group.charge_async(Bytes(bytes))).unwrap());
                    }
                }
            },
        );
    }
    threads.join();
    assert_eq!(
        (
            runtime.root().waiting_count(),
            tenants[0].waiting_count(),
            tenants[1].waiting_count()
        ),
        (0, 0, 0)
    );
    assert_adds_up(&runtime, &[]);
}

#[test]
fn shuttle_each_waiter_in_line_is_served() {
    check(300, || crowd(0));
}

#[test]
fn shuttle_each_waiter_in_line_is_served_with_stock() {
    check(300, || crowd(1));
}

/// Charges that wait at a tenant are refused at the root once the tenant has room: they move to the
/// line there, and ask the cache there, which alone has what they wait for.
#[test]
fn shuttle_a_charge_that_moves_to_another_line_asks_there() {
    check(80, || {
        let runtime = runtime(4, 0);
        let tenant = below(&runtime.root(), "tenant", 2);
        let other = runtime.root().create("other", Limits::new()).unwrap();
        let held = tenant.charge(2).unwrap();
        let kept = [1, 1].map(|bytes| other.charge(bytes).unwrap());
        let cache = ChargeCache::of(kept.into());
        let registration = other.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        let mut threads = Threads::new();
        for _ in 0..3 {
            threads.add(tenant.clone(), move |tenant| {
                drop(block_on(tenant.charge_async(1)).unwrap())
            });
        }
        threads.add(tenant.clone(), move |sets| drop(sets.set_max(3)));
        threads.join();
        assert_eq!(
            (runtime.root().waiting_count(), tenant.waiting_count()),
            (0, 0)
        );
        let left = other.usage();
        assert_adds_up(&runtime, &[(&other, left), (&tenant, 2)]);
        drop((registration, held));
    });
}

/// The last bytes come back while their waiter leaves, and with it the group: no thread serves the
/// next group in its object, and no object is released twice.
#[test]
fn shuttle_a_waiter_leaves_with_the_group() {
    check(2500, || {
        let runtime = runtime(64, 0);
        let mut threads = Threads::new();
        for name in ["first", "second"] {
            let gone = below(&runtime.root(), name, 1);
            let held = gone.charge(1).unwrap();
            let future = waiting(&gone, 1, Waker::noop());
            threads.add(held, drop);
            threads.add((), move |()| {
                drop(future);
                gone.offline().unwrap();
            });
        }
        threads.join();
        assert_adds_up(&runtime, &[]);
        assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
        assert_released_once(&runtime, &["a", "b", "c", "d"]);
    });
}

/// Groups go offline while their charges wait: those are refused, and the waiters behind them are
/// served.
#[test]
fn shuttle_waiters_of_groups_that_go_offline() {
    check(300, || {
        let runtime = runtime(2, 0);
        let root = runtime.root();
        let held = root.charge(2).unwrap();
        let refused = Arc::new(AtomicU64::new(0));
        let mut threads = Threads::new();
        for thread in 0..4 {
            let group = root.create(&format!("q{thread}"), Limits::new()).unwrap();
            let goes = group.clone();
            let refused = refused.clone();
            threads.add((), move |()| {
                match group.charge_with(1, OnFull::Wait(EVER)) {
                    Ok(charge) => drop(charge),
                    Err(error) if error.is_offline() => {
                        drop(refused.fetch_add(1, Ordering::Relaxed))
                    }
                    Err(error) => panic!("{error}"),
                }
            });
            if thread % 2 == 0 {
                threads.add((), move |()| goes.offline().unwrap());
            }
        }
        threads.add(held, drop);
        threads.join();
        assert!(refused.load(Ordering::Relaxed) <= 2);
        assert_eq!((root.waiting_count(), runtime.dying_count()), (0, 0));
        assert_adds_up(&runtime, &[]);
    });
}

/// Five threads wait in any of three ways for what the others have, while limits move, events are
/// listened to and groups go offline. A waiter holds nothing, so each is served or refused.
#[test]
fn shuttle_waits_at_random() {
    check(300, || {
        let runtime = runtime(6, 1);
        let tenants = ["acme", "blue"].map(|name| below(&runtime.root(), name, 4));
        let notified = Arc::new(AtomicU64::new(0));
        let mut threads = Threads::new();
        for thread in 0..5 {
            let tenants = tenants.clone();
            let notified = notified.clone();
            threads.add((), move |()| {
                let mut group = tenants[thread % 2].clone();
                for op in 0..6 {
                    let mut rng = thread_rng();
                    let bytes: u64 = rng.gen_range(1..4);
                    match rng.gen_range(0..6) {
                        0 => drop(group.charge(Bytes(bytes))),
                        1 => drop(group.charge_with(Bytes(bytes), OnFull::Wait(EVER))),
                        2 => drop(block_on(group.charge_async(Bytes(bytes)))),
                        3 => drop(tenants[op % 2].set_max(Limit::Bytes(bytes + 1))),
                        4 => {
                            let notified = notified.clone();
                            let count = move |_: &_| {
                                assert!(notified.fetch_add(1, Ordering::Relaxed) < 1_000)
                            };
                            let registration = tenants[op % 2].on_event(Event::Max, count);
                            drop(group.charge(Bytes(bytes + 2)));
                            drop(registration);
                        }
                        _ => {
                            let next = tenants[op % 2]
                                .create(&format!("q{thread}-{op}"), Limits::new())
                                .unwrap();
                            let old = std::mem::replace(&mut group, next);
                            if !tenants.contains(&old) {
                                old.offline().unwrap();
                            }
                        }
                    }
                }
            });
        }
        threads.join();
        assert!(
            notified.load(Ordering::Relaxed) <= 5 * runtime.root().events().get(Event::Max),
            "each listener is called once for each event"
        );
        assert_eq!(
            [&runtime.root(), &tenants[0], &tenants[1]].map(Group::waiting_count),
            [0, 0, 0]
        );
        assert_adds_up(&runtime, &[]);
    });
}
