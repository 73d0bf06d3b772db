//! A max that moves, for groups: what is set apart, and what reclaim may use.

use super::loom_lifecycle::bare;
use super::{build, model, model_without_pair, race};
use crate::thread::context::in_hook;
use crate::{Charge, ChargeError, Group, Limit};

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
