//! Charges and handles that outlive their group and their runtime, and what is left when the last
//! of them goes.

use memcg::{Bytes, Group};

use super::{Other, assert_sound, build, charge, create, fixed, kinds, left_empty, runtimes};

#[test]
fn a_charge_outlives_every_handle() {
    for runtime in runtimes() {
        let root = runtime.root();
        let acme = create(&root, "acme");
        let query = create(&acme, "q17");
        let id = query.id();
        let held = charge(&query, 10);
        root.children()[0].offline_tree();
        drop((acme, query));
        runtime.settle();
        assert_eq!(
            (runtime.dying_count(), runtime.group_count(), root.live()),
            (2, 1, 10),
            "its parent stays with it"
        );
        let found = runtime.find(id).expect("still there");
        assert_eq!((found.path().as_str(), found.live()), ("/acme/q17", 10));
        assert_eq!(held.group(), found);
        drop(found);
        assert_sound(&runtime);
        Other::spawn().run(move || drop(held));
        assert_eq!(
            (runtime.find(id), runtime.dying_count(), root.usage()),
            (None, 0, 0)
        );
    }
}

#[test]
fn a_charge_outlives_its_runtime() {
    for builder in kinds() {
        let runtime = build(builder);
        let other = Other::spawn();
        let query = create(&create(&runtime.root(), "acme"), "q17");
        let mut held = vec![charge(&query, 10)];
        held.extend(other.with(&query, |query| [charge(query, 20), charge(query, 30)]));
        drop((runtime, query));
        let query = held[0].group();
        assert_eq!((query.path().as_str(), query.live()), ("/acme/q17", 60));
        let root = query.ancestors().last().expect("the root");
        assert_eq!(
            (root.usage(), root.live(), root.memory().stocked_bound()),
            (60, 60, 0),
            "all credit is back"
        );
        let mut last = held.pop().expect("three");
        let part = last.split(12).expect("of 30");
        other.run(move || drop(held));
        assert_eq!(root.usage(), 30);
        assert!(matches!(last.grow(1), Err(error) if error.is_offline()));
        drop(query);
        drop(last);
        assert_eq!(root.usage(), 12);
        drop(part);
        assert_eq!(root.usage(), 0);
    }
}

#[test]
fn a_guard_of_zero_bytes_keeps_its_group() {
    type Make = fn(&Group) -> memcg::Charge;
    let ways: [(&str, Make); 6] = [
        ("charge(0)", |group| {
            group.charge(0).expect("zero bytes fit")
        }),
        ("charge(0)", |group| group.force_charge(0)),
        ("shrink to 0", |group| {
            let mut charge = charge(group, 9);
            assert_eq!(charge.shrink(Bytes(u64::MAX)), 9);
            charge
        }),
        ("split(0)", |group| charge(group, 9).split(0).expect("of 9")),
        ("split(all)", |group| {
            let mut charge = charge(group, 9);
            drop(charge.split(9).expect("of 9"));
            charge
        }),
        ("take", |group| {
            let mut charge = charge(group, 9);
            drop(charge.take());
            charge
        }),
    ];
    for builder in kinds() {
        for (way, make) in ways {
            let runtime = left_empty(build(builder.clone()));
            let group = create(&runtime.root(), "q");
            let mut guard = make(&group);
            assert_eq!((guard.bytes(), runtime.root().live()), (0, 0), "{way}");
            group.offline().expect("no children");
            let id = group.id();
            drop(group);
            runtime.settle();
            assert_eq!(
                (runtime.dying_count(), runtime.root().usage()),
                (1, 0),
                "{way}"
            );
            assert_eq!(
                (guard.group().id(), guard.group().path().as_str()),
                (id, "/q"),
                "{way}"
            );
            // More of them, each with a handle of its own.
            let zero = guard.take();
            let none = guard.split(0).expect("of 0");
            assert!(guard.split(1).is_err() && guard.shrink(1) == 0, "{way}");
            drop(guard);
            assert_eq!(runtime.dying_count(), 1, "{way}");
            guard = zero;
            drop(none);
            // With bytes again: from here on those keep it.
            guard.force_grow(5);
            assert_eq!(
                (runtime.dying_count(), runtime.root().live()),
                (1, 5),
                "{way}"
            );
            assert_eq!(guard.shrink(5), 5);
            assert_eq!(runtime.dying_count(), 1, "{way}");
            guard.force_grow(3);
            drop(guard);
            assert_eq!(
                (runtime.dying_count(), runtime.find(id)),
                (0, None),
                "{way}"
            );
        }
    }
}

/// Growing, shrinking and resizing by nothing changes nothing: no handle stays behind.
#[test]
fn a_change_by_nothing_keeps_nothing() {
    for builder in kinds() {
        for bytes in [0, 10] {
            let runtime = left_empty(build(builder.clone()));
            let group = create(&runtime.root(), "q");
            let mut held = charge(&group, bytes);
            held.grow(0).expect("nothing fits");
            held.force_grow(0);
            held.resize(Bytes(bytes)).expect("as it is");
            assert_eq!(held.shrink(0), 0);
            drop(held.split(0).expect("nothing of it"));
            held.merge(charge(&group, 0)).expect("the same group");
            held.transfer(&group).expect("the same group");
            group.offline().expect("no children");
            held.transfer(&group).expect("where it is");
            held.grow(0).expect("nothing is asked for");
            held.resize(Bytes(bytes)).expect("as it is");
            assert_eq!(held.bytes(), bytes);
            drop(group);
        }
    }
}

#[test]
fn what_is_forgotten_stays_for_ever() {
    let runtime = build(fixed());
    let root = runtime.root();
    let [bytes, none] = ["bytes", "none"].map(|name| create(&root, name));
    let ids = [bytes.id(), none.id()];
    assert_eq!(
        (charge(&bytes, 10).forget(), charge(&none, 0).forget()),
        (10, 0)
    );
    for group in [bytes, none] {
        group.offline().expect("no children");
    }
    runtime.settle();
    assert_eq!((runtime.dying_count(), root.usage()), (2, 10));
    assert!(ids.iter().all(|&id| runtime.find(id).is_some()));
    assert_sound(&runtime);
    drop(runtime);
    assert_eq!(root.usage(), 10);
}
