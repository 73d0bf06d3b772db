//! Looks ahead: a walk that will be refused takes nothing, and is refused as any walk is.

use super::loom_level::unstocked;
use super::{beside, group, model_without_pair, race, stocked, walk_first, with_group};
use crate::{CounterKey, PageCounter, Runtime, Unit};

fn refuse(counter: &PageCounter, n: u64) {
    counter.charge(n).expect_err("no room");
}

/// Charges that the root refuses do not show at the level below: what fits there is charged.
#[test]
fn loom_refused_walk_vs_charge() {
    model_without_pair(|| {
        let root = PageCounter::root(unstocked().max(2));
        root.charge(1).unwrap();
        let parent = root.child();
        parent.set_max(2).unwrap();
        let [refused, fits] = [(); 2].map(|()| parent.child());
        refuse(&refused, 2);
        race(
            refused,
            |refused| refuse(&refused, 2),
            || fits.charge(1).expect("nobody holds what it needs"),
        );
        assert_eq!((parent.usage(), root.usage()), (1, 2));
    });
}

/// Nor do sets of which one counter is full show at the others.
#[test]
fn loom_refused_set_vs_charge() {
    model_without_pair(|| {
        let mut builder = Runtime::builder().batch(0);
        let [free, full] = ["free", "full"].map(|name| builder.counter(name, Unit::Events));
        let (runtime, tenant) = with_group(builder, "tenant");
        let beside_it = group(&runtime.root(), "beside it");
        let [free_of_all, full_of_all] =
            [free, full].map(|counter| runtime.root().counter(counter).unwrap());
        free_of_all.set_max(1).unwrap();
        full_of_all.set_max(0).unwrap();
        let refuse = move |amounts: &[(CounterKey, usize); 2]| {
            tenant.try_charge_set(amounts).expect_err("one is full");
        };
        refuse(&[(full, 1), (free, 1)]);
        let sets = move |()| refuse(&[(full, 1), (free, 1)]);
        let [charged] = race((), sets, || {
            beside_it
                .try_charge_set(&[(free, 1)])
                .expect("nobody holds what it needs")
        })
        .1;
        assert_eq!((free_of_all.usage(), full_of_all.usage()), (1, 0));
        drop(charged);
    });
}

/// E10. The refusal of a look that found no open stock looks again: a stock that opened meanwhile
/// may hold the credit that it lacks.
#[test]
fn loom_look_ahead_vs_opening() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        walk_first(&counter);
        refuse(&counter, 41);
        // The first charge leaves room enough to open the stock, the second takes a batch.
        race(
            counter.clone(),
            |counter| [1, 1].map(|n| counter.charge(n).unwrap()),
            || counter.charge(38).expect("38 and 2 fit into 40"),
        );
        assert_eq!(counter.usage(), 40 + counter.stocked());
    });
}

/// E10. A stock that is closing counts as open until its credit is back.
#[test]
fn loom_look_ahead_vs_closing() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().max(2).budget(64));
        counter.charge(1).unwrap();
        // More than all credit could pay: it marks the level, and closes no stock.
        refuse(&counter, 3);
        let closer = beside(counter.clone(), |counter| counter.set_batch(0));
        let charger = beside(counter.clone(), |counter| counter.charge(1).unwrap());
        charger.join().unwrap();
        closer.join().unwrap();
        assert_eq!(counter.usage(), 2);
    });
}

/// A look that meets a max which another thread raises is refused by the old one, or finds room.
#[test]
fn loom_look_ahead_vs_raised_max() {
    model_without_pair(|| {
        let root = PageCounter::root(unstocked().max(1));
        let child = root.child();
        refuse(&child, 2);
        let raise = |root: PageCounter| root.set_max(2).unwrap();
        let charged = race(root.clone(), raise, || child.charge(2)).1;
        match charged {
            Ok(()) => assert_eq!((child.usage(), root.usage()), (2, 2)),
            Err(refused) => {
                assert_eq!((refused.usage, refused.max, root.usage()), (0, 1, 0));
                child.charge(2).expect("the max is raised");
            }
        }
    });
}
