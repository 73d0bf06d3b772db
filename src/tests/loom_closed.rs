//! Walks of a closed stock, outside of slow paths.

use super::loom_exceeded::{charge_and_ask, is_alert, is_marked, with_max};
use super::loom_level::{charge_vs_set_max, walk_vs_set_max};
use super::loom_lifecycle::bare;
use super::{build, group, model, model_without_pair, race, stocked};
use crate::counter::slow_path::SlowPath;
use crate::{Bytes, Limit, PageCounter};

/// A thread has a block from its first slow path on, and walks outside of slow paths from then on.
fn with_block<T>(charge: impl FnOnce() -> T) -> T {
    drop(SlowPath::enter());
    charge()
}

fn charge_with_block(counter: PageCounter) -> bool {
    with_block(|| counter.charge(2).is_ok())
}

/// A new peak stops the walk: no charge up to this usage has one.
fn with_peak(counter: &PageCounter, usage: u64) {
    counter.charge(usage).unwrap();
    counter.uncharge(usage);
}

/// E1. A limit is lowered, or a charge above it stands, never both.
#[test]
fn loom_closed_charge_vs_set_max() {
    model_without_pair(|| charge_vs_set_max(|counter| with_peak(counter, 2), charge_with_block));
}

/// E5. A walk that passed the level under the old max is undone before `set_max` says that the new
/// max holds.
#[test]
fn loom_closed_walk_vs_set_max() {
    model(|| walk_vs_set_max(charge_with_block));
}

/// E4. A stock opens while a forced charge goes above max outside of any slow path: freed units are
/// no credit to hit on.
#[test]
fn loom_closed_forced_vs_opening() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        counter.force_charge(62);
        counter.uncharge(61);
        // Usage is 1, and no stock is open. The other thread's charge opens the stock.
        race(
            counter.clone(),
            |counter| counter.charge(1).is_ok(),
            || counter.force_charge(41),
        );
        counter.uncharge(1);
        counter.charge(1).expect_err("usage is above max");
        assert_eq!(counter.stocked(), 0, "no stock is open above max");
    });
}

/// E4. A stock opens while a charge of a group above it, which has no stock, passes the max of that
/// group, which is only observed: freed units are no credit, for what hits on it would not be counted
/// as above that max.
#[test]
fn loom_closed_observed_vs_opening() {
    model_without_pair(|| {
        let (_runtime, root) = build(
            bare()
                .adaptive(true)
                .budget(Bytes(40))
                .max(Limit::Bytes(40)),
        );
        let below = group(&root, "below");
        below.memory().set_batch(2);
        root.set_observe_only(true);
        let mut held = below.force_charge(62);
        held.shrink(61);
        // Usage is 1, and no stock is open. The other thread's charge opens one.
        let (second, above) = race(
            below.clone(),
            |below| below.charge(1).unwrap(),
            || with_block(|| root.charge(41).unwrap()),
        );
        drop(second);
        assert_eq!(root.usage(), root.live(), "no credit above max");
        drop((held, above));
    });
}

/// E43. Usage falls to max while a forced charge goes above it outside of any slow path, as it was
/// when the charge began.
#[test]
fn loom_closed_forced_vs_mark() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(1);
        drop(root.force_charge(4));
        let mut held = root.force_charge(2);
        let charge = |root: crate::Group| with_block(|| charge_and_ask(&root));
        let second = race(root.clone(), charge, || held.shrink(1)).0;
        assert_eq!(
            (root.usage(), is_marked(&root), is_alert(&root)),
            (2, true, true)
        );
        drop((held, second));
        assert!(!is_marked(&root) && !is_alert(&root));
    });
}
