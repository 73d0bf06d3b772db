//! Marks of groups above max or high, and the word that a checkpoint loads: where usage is above a
//! limit for good, each checkpoint from then on finds it.

use super::loom_lifecycle::bare;
use super::{build, model_without_pair, race};
use crate::counter::thresholds;
use crate::counter::watch::{EXCEEDED, RECLAIMS};
use crate::pressure::started;
use crate::{Charge, Group, Limit, Limits, Runtime};

pub(super) fn with_max(max: u64) -> (Runtime, Group) {
    build(bare().max(Limit::Bytes(max)))
}

pub(super) fn is_alert(group: &Group) -> bool {
    group.first().tree().alerts.any()
}

pub(super) fn is_marked(group: &Group) -> bool {
    group.first().limits.watched.is_for(EXCEEDED)
}

/// Charges what does not fit, as an allocator does, and asks at once.
pub(super) fn charge_and_ask(group: &Group) -> Charge {
    let held = group.force_charge(1);
    assert!(is_alert(group), "usage is above max, and stays there");
    held
}

/// E43. A forced charge goes above max while another thread uncharges: the mark ends where usage
/// does.
#[test]
fn loom_mark_vs_uncharge() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(1);
        let held = root.charge(1).unwrap();
        let second = race(held, drop, || root.force_charge(1)).1;
        assert_eq!(
            (root.usage(), is_marked(&root), is_alert(&root)),
            (1, false, false)
        );
        drop(second);
    });
}

/// E43. Usage falls to max and is forced above it again: no moment from then on is without an
/// alert.
#[test]
fn loom_mark_vs_forced() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(1);
        let mut held = root.force_charge(2);
        let second = race(
            root.clone(),
            |root| charge_and_ask(&root),
            || held.shrink(1),
        )
        .0;
        assert_eq!(
            (root.usage(), is_marked(&root), is_alert(&root)),
            (2, true, true)
        );
        drop((held, second));
        assert!(!is_marked(&root) && !is_alert(&root));
    });
}

/// E44. A thread that finds the mark of another finds it counted.
#[test]
fn loom_mark_vs_mark() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(0);
        let held = race(
            root.clone(),
            |root| charge_and_ask(&root),
            || charge_and_ask(&root),
        );
        drop(held.0);
        assert!(is_marked(&root) && is_alert(&root));
        drop(held.1);
        assert!(!is_marked(&root) && !is_alert(&root));
    });
}

/// E43. A high moves below usage, or above it, while usage passes.
#[test]
fn loom_mark_vs_high() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let group = root
            .create("group", Limits::new().high(Limit::Bytes(4)))
            .unwrap();
        let held = race(
            group.clone(),
            |group| group.set_limits(Limits::new().high(1)).unwrap(),
            || group.force_charge(2),
        )
        .1;
        assert!(is_marked(&group) && is_alert(&group));
        race(
            group.clone(),
            |group| group.set_limits(Limits::new().high(4)).unwrap(),
            || drop(held),
        );
        assert!(!is_marked(&group) && !is_alert(&group));
    });
}

/// E43. A group that goes offline is above no limit, although another thread charges it meanwhile.
#[test]
fn loom_mark_vs_offline() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let gone = root
            .create("gone", Limits::new().max(Limit::Bytes(0)))
            .unwrap();
        let held = race(
            gone.clone(),
            |gone| gone.force_charge(1),
            || gone.offline().unwrap(),
        )
        .0;
        assert!(!is_marked(&gone) && !is_alert(&root));
        drop(held);
        assert!(!is_alert(&root));
    });
}

/// E55. Usage passes the threshold of reclaim in the background, while the thread that has
/// reclaimed finds usage below it. One of the two goes on.
#[test]
fn loom_passed_vs_armed() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let group = root
            .create("group", Limits::new().reclaim_above(Limit::Bytes(1)))
            .unwrap();
        assert!(thresholds::take_bit(group.first()), "a thread reclaims");
        let (goes_on, held) = race(
            group.clone(),
            |group| thresholds::arm(group.first()),
            || group.charge(2).unwrap(),
        );
        assert!(goes_on || started::listed(root.first().tree()) == 1);
        drop(held);
    });
}

/// E55. Usage passes a threshold while another thread sets it: one of the two has the group listed.
#[test]
fn loom_passed_vs_threshold() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let group = root.create("group", Limits::new()).unwrap();
        let set = |group: Group| {
            group
                .set_limits(Limits::new().reclaim_above(Limit::Bytes(1)))
                .unwrap()
        };
        let held = race(group.clone(), set, || group.charge(2).unwrap()).1;
        assert_eq!(started::listed(root.first().tree()), 1);
        drop(held);
    });
}

/// E55. Reclaim in the background ends while another thread takes the threshold away: no bit is
/// left.
#[test]
fn loom_armed_vs_unset() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let group = root
            .create("group", Limits::new().reclaim_above(Limit::Bytes(1)))
            .unwrap();
        assert!(thresholds::take_bit(group.first()), "a thread reclaims");
        let unset = |group: Group| {
            group
                .set_limits(Limits::new().reclaim_above(Limit::Unlimited))
                .unwrap()
        };
        race(group.clone(), unset, || {
            assert!(!thresholds::arm(group.first()))
        });
        assert!(!group.first().limits.watched.is_for(RECLAIMS));
    });
}

/// E55. Reclaim in the background ends while another thread takes the threshold away and sets it
/// again: the next walk above it still looks.
#[test]
fn loom_armed_vs_unset_and_set() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let above = |limit| Limits::new().reclaim_above(limit);
        let group = root.create("group", above(Limit::Bytes(1))).unwrap();
        assert!(thresholds::take_bit(group.first()), "a thread reclaims");
        let arm = |group: Group| assert!(!thresholds::arm(group.first()));
        race(group.clone(), arm, || {
            thresholds::set_reclaim_above(group.first(), u64::MAX);
            thresholds::set_reclaim_above(group.first(), 1);
        });
        assert!(group.first().limits.watched.is_for(RECLAIMS));
        let held = group.charge(2).unwrap();
        assert_eq!(started::listed(root.first().tree()), 1);
        drop(held);
    });
}
