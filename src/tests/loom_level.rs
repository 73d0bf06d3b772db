//! One level: limits, protection, sets.

use super::loom_lifecycle::bare;
use super::{beside, build, model, model_without_pair, race, stocked};
use crate::thread::context::in_hook;
use crate::{Charge, ChargeError, CounterConfig, CounterSet, Group, Limit, PageCounter, SetStock};

fn unstocked() -> CounterConfig {
    CounterConfig::new().batch(0)
}

/// E1. A limit is lowered, or a charge above it stands, never both.
#[test]
fn loom_charge_vs_set_max() {
    model_without_pair(|| {
        let counter = PageCounter::root(unstocked());
        let (charged, lowered) =
            race(counter.clone(), |counter| counter.try_charge(2).is_ok(), || counter.set_max(1).is_ok());
        assert!(!(lowered && charged), "usage {} of max {}", counter.usage(), counter.max());
        assert_eq!(counter.usage(), if charged { 2 } else { 0 });
    });
}

/// E5. A walk that passed the level under the old max is undone before `set_max` says that the new max holds.
#[test]
fn loom_walk_vs_set_max() {
    model(|| {
        let counter = PageCounter::root(unstocked().max(4));
        let charger = beside(counter.clone(), |counter| counter.try_charge(2).is_ok());
        let setter = beside(counter.clone(), |counter| {
            let set = counter.set_max(1);
            assert!(set.is_err() || counter.usage() <= 1, "usage {} of max 1", counter.usage());
        });
        charger.join().unwrap();
        setter.join().unwrap();
    });
}

/// E5. Units of a walk that is undone for the new max are not set apart as forced.
#[test]
fn loom_walk_vs_imposed_max() {
    model(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(4)));
        let set = || root.set_max(Limit::Bytes(1)).unwrap();
        let charge = race(root.clone(), |root| root.try_charge(2).ok(), set).0;
        assert_eq!(root.forced(), root.usage().saturating_sub(1), "usage {}", root.usage());
        drop(charge);
    });
}

/// A charge of three bytes inside reclaim.
fn charge_in_reclaim(root: Group) -> Option<Charge> {
    in_hook(|| root.try_charge(3).ok()).flatten()
}

/// A charge inside reclaim goes by one max, however often the reserved share of it changes meanwhile.
#[test]
fn loom_reserve_vs_charge_in_reclaim() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(2)));
        let charged = race(root.clone(), charge_in_reclaim, || [1, 2].map(|reserve| root.set_reserve(reserve))).0;
        assert!(charged.is_none(), "three of two");
    });
}

/// A refusal names the max that refused, though another thread sets a larger one meanwhile.
#[test]
fn loom_refusal_vs_raised_max() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(1)));
        let set = || root.set_max(Limit::Bytes(4)).unwrap();
        match race(root.clone(), |root| root.try_charge(2), set).0 {
            Err(ChargeError::Limit(refusal)) => assert_eq!((refusal.max(), refusal.usage()), (1, 0), "{refusal}"),
            charged => drop(charged.unwrap()),
        }
    });
}

/// E31. A charge inside reclaim goes by the new max, or is set apart from what the new max admits.
#[test]
fn loom_imposed_max_vs_charge_in_reclaim() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(4)));
        root.set_reserve(2);
        let charge = race(root.clone(), charge_in_reclaim, || root.set_max(Limit::Bytes(1)).unwrap()).0;
        assert!(root.usage() <= 1 + root.forced(), "usage {}, forced {}", root.usage(), root.forced());
        drop(charge);
    });
}

/// E39. Usage never shows units above max that are not set apart: a reader of usage finds them in `forced` after it.
#[test]
fn loom_forced_vs_look_at_usage() {
    model_without_pair(|| {
        let counter = PageCounter::root(unstocked().max(1));
        let read = |counter: PageCounter| {
            let usage = counter.usage();
            let forced = counter.forced();
            assert!(usage <= 1 + forced, "usage {usage}, forced {forced}");
        };
        race(counter.clone(), read, || counter.charge(3));
        assert_eq!((counter.usage(), counter.forced()), (3, 2));
    });
}

/// E39. A reader that finds less set apart finds usage lowered: units leave usage first.
#[test]
fn loom_forced_vs_uncharge() {
    model_without_pair(|| {
        let counter = PageCounter::root(unstocked().max(1));
        counter.charge(3);
        let read = |counter: PageCounter| {
            let forced = counter.forced();
            let usage = counter.usage();
            assert!(usage <= 1 + forced, "usage {usage}, forced {forced}");
        };
        race(counter.clone(), read, || counter.uncharge(2));
        assert_eq!((counter.usage(), counter.forced()), (1, 0));
    });
}

/// E11. The thread that adds to the parent last has seen the latest usage.
#[test]
fn loom_min_propagation() {
    model_without_pair(|| {
        let parent = PageCounter::root(unstocked());
        let child = parent.child();
        child.set_min(2);
        race(child.clone(), |child| child.try_charge(1).unwrap(), || child.try_charge(1).unwrap());
        assert_eq!(parent.children_min_usage(), 2);
    });
}

/// E11. A setting that changes while usage does.
#[test]
fn loom_min_setting_vs_charge() {
    model_without_pair(|| {
        let parent = PageCounter::root(unstocked());
        let child = parent.child();
        race(child.clone(), |child| child.try_charge(1).unwrap(), || child.set_min(2));
        assert_eq!(parent.children_min_usage(), 1);
    });
}

/// A set is charged and refused as one: a refusal leaves no trace at the counters charged before.
#[test]
fn loom_set_vs_refusal() {
    model(|| {
        let set = CounterSet::root(vec![stocked().max(1), stocked()], SetStock::Shared);
        let (there, here) = race(set.clone(), |set| set.try_charge(1).is_ok(), || set.try_charge(1).is_ok());
        assert!(here ^ there, "one unit of room, one winner");
        for counter in [0, 1].map(|index| set.counter(index).unwrap()) {
            assert_eq!(counter.usage(), 1);
        }
    });
}

/// E13. A window that is reset while a charge is admitted has seen the charge, or the charge has seen the reset.
#[test]
fn loom_peak_window_vs_charge() {
    model_without_pair(|| {
        let counter = PageCounter::root(unstocked());
        counter.charge(3);
        counter.uncharge(3);
        let window = counter.peak_window();
        race(counter.clone(), |counter| counter.try_charge(2).unwrap(), || window.reset());
        assert!(window.peak() >= counter.usage(), "peak {} below usage", window.peak());
    });
}
