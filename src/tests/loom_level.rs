//! One level: limits, protection.

use super::{beside, model, model_without_pair, race};
use crate::{CounterConfig, PageCounter};

pub(super) fn unstocked() -> CounterConfig {
    CounterConfig::new().batch(0)
}

/// One thread charges a new counter, as `charge` does, and another one lowers its max.
pub(super) fn charge_vs_set_max(prepare: fn(&PageCounter), charge: fn(PageCounter) -> bool) {
    let counter = PageCounter::root(unstocked());
    prepare(&counter);
    let (charged, lowered) = race(counter.clone(), charge, || counter.set_max(1).is_ok());
    assert!(
        !(lowered && charged),
        "usage {} of max {}",
        counter.usage(),
        counter.max()
    );
    assert_eq!(counter.usage(), if charged { 2 } else { 0 });
}

/// The same beside a third thread, below a max.
pub(super) fn walk_vs_set_max(charge: fn(PageCounter) -> bool) {
    let counter = PageCounter::root(unstocked().max(4));
    let charger = beside(counter.clone(), charge);
    let setter = beside(counter.clone(), |counter| {
        let set = counter.set_max(1);
        assert!(
            set.is_err() || counter.usage() <= 1,
            "usage {} of max 1",
            counter.usage()
        );
    });
    charger.join().unwrap();
    setter.join().unwrap();
}

/// E1. A limit is lowered, or a charge above it stands, never both.
#[test]
fn loom_charge_vs_set_max() {
    model_without_pair(|| charge_vs_set_max(|_| {}, |counter| counter.charge(2).is_ok()));
}

/// E5. A walk that passed the level under the old max is undone before `set_max` says that the new
/// max holds.
#[test]
fn loom_walk_vs_set_max() {
    model(|| walk_vs_set_max(|counter| counter.charge(2).is_ok()));
}

/// E11. The thread that adds to the parent last has seen the latest usage.
#[test]
fn loom_min_propagation() {
    model_without_pair(|| {
        let parent = PageCounter::root(unstocked());
        let child = parent.child();
        child.set_min(2);
        race(
            child.clone(),
            |child| child.charge(1).unwrap(),
            || child.charge(1).unwrap(),
        );
        assert_eq!(parent.children_min_usage(), 2);
    });
}

/// E11. A setting that changes while usage does.
#[test]
fn loom_min_setting_vs_charge() {
    model_without_pair(|| {
        let parent = PageCounter::root(unstocked());
        let child = parent.child();
        race(
            child.clone(),
            |child| child.charge(1).unwrap(),
            || child.set_min(2),
        );
        assert_eq!(parent.children_min_usage(), 1);
    });
}

/// E13. A window that is reset while a charge is admitted has seen the charge, or the charge has
/// seen the reset.
#[test]
fn loom_peak_window_vs_charge() {
    model_without_pair(|| {
        let counter = PageCounter::root(unstocked());
        counter.force_charge(3);
        counter.uncharge(3);
        let window = counter.peak_window();
        race(
            counter.clone(),
            |counter| counter.charge(2).unwrap(),
            || window.reset(),
        );
        assert!(
            window.peak() >= counter.usage(),
            "peak {} below usage",
            window.peak()
        );
    });
}
