//! Groups that come and go while other threads charge them, look them up and walk past them.

use std::sync::Arc;

use super::common::{end, group};
use super::{Threads, assert_adds_up, assert_released_once, below, check};
use crate::sync::lock::{Lock, Rank};
use crate::{Bytes, Charge, GroupId, Limit, Runtime};

fn bare() -> Runtime {
    Runtime::builder().batch(Bytes(0)).build().unwrap()
}

/// A batch of two units; a margin closes stocks and opens them.
fn stocked(max: u64) -> Runtime {
    Runtime::builder()
        .batch(Bytes(2))
        .budget(Bytes(16))
        .max(Limit::Bytes(max))
        .build()
        .unwrap()
}

/// No unit is charged and no group is dying: every object is the pool's again, once.
#[track_caller]
fn assert_all_gone(runtime: &Runtime) {
    assert_adds_up(runtime, &[]);
    assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
    assert_eq!(runtime.pools().rows()[0].live, 1, "the root");
    assert_released_once(runtime, &["a", "b", "c", "d", "e", "f"]);
}

/// The guard gives its last byte back and takes it again, four times; it keeps its group.
fn turn_over(mut guard: Charge, id: GroupId) {
    for _ in 0..4 {
        guard.shrink(1);
        guard.force_grow(1);
        assert_eq!(
            (guard.group().id(), guard.group().usage()),
            (id, 1),
            "the guard keeps its group"
        );
    }
}

/// Guards of groups that are offline lose their last byte and take it again, while the last handles
/// go and other threads look the groups up.
#[test]
fn shuttle_guards_turn_over() {
    check(1000, || {
        let runtime = Arc::new(bare());
        let mut threads = Threads::new();
        for name in ["first", "second"] {
            let gone = group(&runtime.root(), name);
            let id = gone.id();
            let guard = gone.charge(1).unwrap();
            gone.offline().unwrap();
            threads.add(gone, drop);
            threads.add((), move |()| turn_over(guard, id));
            threads.add(runtime.clone(), move |finds| {
                for found in (0..2).filter_map(|_| finds.find(id)) {
                    assert_eq!(found.id(), id);
                }
            });
        }
        threads.join();
        assert_all_gone(&runtime);
    });
}

/// Each thread makes groups below the tenants, charges them, and goes on with the charge of another
/// thread's group.
#[test]
fn shuttle_groups_come_and_go() {
    check(300, || {
        let runtime = Arc::new(stocked(40));
        let tenants = ["acme", "blue"].map(|name| below(&runtime.root(), name, 20));
        let handed = Arc::new(Lock::new(Rank::Stocks, Vec::new()));
        let mut threads = Threads::new();
        for thread in 0..4 {
            let tenants = tenants.clone();
            let handed = handed.clone();
            threads.add((), move |()| {
                for round in 0..2 {
                    let query = group(
                        &tenants[(thread + round) % 2],
                        &format!("q{thread}-{round}"),
                    );
                    let mut charge = query.charge(2).unwrap();
                    let split = charge.split(1).unwrap();
                    end(query);
                    handed.lock().push(split);
                    let mut taken = handed.lock().pop();
                    if let Some(taken) = &mut taken {
                        taken.force_grow(1);
                        let _ = taken.transfer(&tenants[0]);
                    }
                    drop(charge);
                }
            });
        }
        threads.add(runtime.clone(), move |walks| {
            for found in walks.root().inspect().descendants() {
                assert!(found.usage() <= 20 + found.memory().stocked_bound());
                let same = walks.find(found.id());
                assert_eq!(same, Some(found));
            }
        });
        threads.join();
        handed.lock().clear();
        for tenant in tenants {
            tenant.offline().unwrap();
        }
        assert_all_gone(&runtime);
    });
}
