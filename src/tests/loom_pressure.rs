//! The pressure of a group: the bits that one load reads agree with usage, and each change of them
//! is one event.

use super::loom_exceeded::with_max;
use super::{build, model, model_without_pair, race};
use crate::CentralStock;
use crate::counter::slow_path::SlowPath;
use crate::pressure::pressure_levels;
use crate::{Bytes, Charge, Event, Group, Limit, Limits, PressureLevel, Runtime};

/// Elevated from 1 byte on, critical from 2.
fn with_thresholds(group: &Group) {
    group
        .set_limits(Limits::new().pressure_levels(50, 100))
        .unwrap();
}

fn changes(group: &Group) -> u64 {
    group.events().local().get(Event::PressureLevel)
}

/// E43. One thread charges and another uncharges: the bits end where usage does, and both changes
/// count.
#[test]
fn loom_pressure_vs_uncharge() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(2);
        with_thresholds(&root);
        let held = root.charge(1).unwrap();
        assert_eq!(
            (root.pressure_level(), changes(&root)),
            (PressureLevel::Elevated, 1)
        );
        let second = race(held, drop, || root.force_charge(1)).1;
        assert_eq!(
            (root.usage(), root.pressure_level()),
            (1, PressureLevel::Elevated)
        );
        assert_eq!(
            changes(&root) % 2,
            1,
            "as many ways up as down, and the first one"
        );
        drop(second);
        assert_eq!(root.pressure_level(), PressureLevel::Normal);
    });
}

/// E43. Thresholds are set while another thread charges.
#[test]
fn loom_pressure_vs_thresholds() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(2);
        let held: Charge = race(
            root.clone(),
            |root| with_thresholds(&root),
            || root.force_charge(2),
        )
        .1;
        assert_eq!(
            (root.pressure_level(), changes(&root)),
            (PressureLevel::Critical, 1)
        );
        drop(held);
    });
}

/// E43. A max is set while another thread charges.
#[test]
fn loom_pressure_vs_max() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(4);
        with_thresholds(&root);
        let held: Charge = race(
            root.clone(),
            |root| root.set_max(2).unwrap(),
            || root.force_charge(1),
        )
        .1;
        assert_eq!(
            (root.pressure_level(), changes(&root)),
            (PressureLevel::Elevated, 1)
        );
        drop(held);
    });
}

/// E43. A look at stalls corrects the word beside a charge: neither takes the other's part.
#[test]
fn loom_pressure_vs_stalls() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(2);
        with_thresholds(&root);
        let by_stalls = |root: Group| {
            let _path = SlowPath::enter();
            assert!(pressure_levels::set_by_stalls(root.first(), 9_000, 0));
        };
        let held: Charge = race(root.clone(), by_stalls, || root.force_charge(2)).1;
        assert_eq!(root.pressure_level(), PressureLevel::Critical);
        drop(held);
        assert_eq!(root.pressure_level(), PressureLevel::Elevated, "by stalls");
    });
}

/// E43. A group that goes offline has no pressure, although another thread charges it meanwhile.
#[test]
fn loom_pressure_vs_offline() {
    model_without_pair(|| {
        let (_runtime, root) = build(super::loom_lifecycle::bare());
        let gone = root
            .create(
                "gone",
                Limits::new().max(Limit::Bytes(2)).pressure_levels(50, 100),
            )
            .unwrap();
        let held = race(
            gone.clone(),
            |gone| gone.force_charge(2),
            || gone.offline().unwrap(),
        )
        .0;
        assert_eq!(gone.pressure_level(), PressureLevel::Normal);
        drop(held);
    });
}

/// E43. Limits that were only observed act again beside a charge: no thread finds the group without
/// its max.
#[test]
fn loom_pressure_vs_act_again() {
    model_without_pair(|| {
        let (_runtime, root) = with_max(2);
        with_thresholds(&root);
        root.set_observe_only(true);
        let held = root.charge(2).unwrap();
        assert_eq!(
            (root.pressure_level(), changes(&root)),
            (PressureLevel::Critical, 1)
        );
        let more = race(
            root.clone(),
            |root| root.set_observe_only(false),
            || root.force_charge(1),
        )
        .1;
        assert_eq!(
            (root.pressure_level(), changes(&root)),
            (PressureLevel::Critical, 1)
        );
        drop((held, more));
    });
}

/// Bytes that kept the level up are put into a slot while another thread reads it: the next read
/// finds it down, and each change counts.
#[test]
fn loom_pressure_read_vs_put() {
    model(|| {
        let (_runtime, root) = build(super::loom_lifecycle::stocked());
        let limits = Limits::new().max(Limit::Bytes(8)).pressure_levels(25, 0);
        let group = root.create("q", limits).unwrap();
        let held = [(); 2].map(|()| group.charge(1).unwrap());
        assert_eq!(group.pressure_level(), PressureLevel::Elevated);
        race(
            group.clone(),
            |group| _ = group.pressure_level(),
            || drop(held),
        );
        assert_eq!(
            (group.pressure_level(), group.live(), changes(&group) % 2),
            (PressureLevel::Normal, 0, 0)
        );
    });
}

/// As above, where the bytes lie in the central stock.
#[test]
fn loom_pressure_read_vs_give_back() {
    model_without_pair(|| {
        let (_runtime, root) = build(Runtime::builder().batch(Bytes(4)).budget(Bytes(64)));
        let limits = Limits::new().max(Limit::Bytes(4)).pressure_levels(50, 0);
        let group = root.create("q", limits).unwrap();
        let stock = CentralStock::of(&group);
        let held = stock.charge_if_room(Bytes(2)).unwrap();
        assert_eq!(group.pressure_level(), PressureLevel::Elevated);
        let read = |group: Group| _ = group.pressure_level();
        race(group.clone(), read, || stock.give_back(held));
        assert_eq!(
            (group.pressure_level(), group.live(), changes(&group)),
            (PressureLevel::Normal, 0, 2)
        );
    });
}
