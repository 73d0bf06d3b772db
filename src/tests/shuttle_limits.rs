//! Limits that move while many threads charge: no group is above a limit once it is set, and no
//! charge is refused beside credit that lies in another thread's slots or is in transit.

use super::{Threads, assert_adds_up, check, runtime};
use crate::{Bytes, CounterConfig, Limit, Limits, PageCounter, Runtime};

/// A max that is lowered holds from then on: walks that were under way are undone.
#[test]
fn shuttle_a_lowered_max_holds_at_once() {
    check(1500, || {
        let root = PageCounter::root(CounterConfig::new().batch(0));
        let child = PageCounter::child(&root);
        root.set_max(12).unwrap();
        let mut threads = Threads::new();
        for thread in 0..3 {
            threads.add(child.clone(), move |child| {
                for round in 0..2 {
                    let units = 1 + (thread + round) % 3;
                    if child.charge(units).is_ok() {
                        child.uncharge(units);
                    }
                }
            });
        }
        threads.add(root.clone(), move |sets| {
            for max in [6, 3, 12, 4, 12, 2] {
                if sets.set_max(max).is_ok() {
                    assert!(sets.usage() <= max, "{} above {max}", sets.usage());
                }
            }
        });
        threads.join();
        assert!(root.verify().is_ok(), "{}", root.verify());
        root.drain();
        assert_eq!(
            (root.usage(), child.usage(), root.counts().underflows),
            (0, 0, 0)
        );
    });
}

/// Once a max is imposed, usage above it only falls: no walk that passed under the old max is left.
/// What is held above it is forced.
#[test]
fn shuttle_an_imposed_max_admits_nothing_above() {
    check(1_000, || {
        let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
        let tenant = runtime
            .root()
            .create("tenant", Limits::new().max(12))
            .unwrap();
        let query = tenant.create("q", Limits::new()).unwrap();
        let held = query.charge(3).unwrap();
        let mut threads = Threads::new();
        for thread in 0..3 {
            threads.add(query.clone(), move |query| {
                for round in 0..2 {
                    drop(query.charge(1 + (thread + round) % 3));
                }
            });
        }
        threads.add(tenant.clone(), move |sets| {
            for max in [3, 12, 3, 12, 3, 12, 4, 1] {
                sets.set_max(Limit::Bytes(max)).unwrap();
                let mut before = sets.usage();
                for _ in 0..8 {
                    let usage = sets.usage();
                    assert!(
                        usage <= before.max(max),
                        "usage {usage} after {before}, max {max}"
                    );
                    before = usage;
                }
            }
        });
        threads.join();
        assert_eq!(
            (tenant.usage(), tenant.forced()),
            (3, 2),
            "what is held above the max is forced"
        );
        assert_adds_up(&runtime, &[(&query, 3)]);
        drop(held);
        assert_eq!(tenant.forced(), 0);
        assert_adds_up(&runtime, &[]);
    });
}

/// As many threads as there is room for, each with its share: no charge is refused, wherever the
/// credit of the other threads is.
#[test]
fn shuttle_no_charge_is_refused_beside_credit() {
    check(300, || {
        let runtime = runtime(6, 2);
        let groups =
            ["a", "b", "c"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        let mut threads = Threads::new();
        for group in groups {
            threads.add((), move |()| {
                for _ in 0..3 {
                    let mut charge = group.charge(1).expect("a share is free");
                    charge.grow(1).expect("the rest of it is");
                    charge.shrink(1);
                }
            });
        }
        threads.add(runtime.root(), move |drains| {
            assert!(drains.memory().drain() <= 6)
        });
        threads.join();
        assert_eq!(runtime.counts().refused_in_transit, 0);
        assert_adds_up(&runtime, &[]);
    });
}
