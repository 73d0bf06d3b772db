//! Observe-only holds for the group and all below it, whenever they are created; for no group
//! above, for none beside.

use memcg::{Bytes, Event, Limit, Limits};

use super::{KIB, build, charge, create, kinds, left_empty, limited, locals, runtimes};

#[test]
fn own_or_inherited() {
    for runtime in runtimes() {
        let root = runtime.root();
        let top = create(&root, "top");
        let inner = create(&top, "inner");
        let beside = create(&root, "beside");
        let levels = [&root, &top, &inner, &beside];
        let observed = || levels.map(|group| group.is_observe_only());
        assert_eq!(observed(), [false; 4]);
        top.set_observe_only(true);
        assert_eq!(observed(), [false, true, true, false]);
        inner.set_observe_only(true);
        top.set_observe_only(false);
        assert_eq!(observed(), [false, false, true, false], "its own");
        root.set_observe_only(true);
        assert_eq!(observed(), [true; 4]);
        root.set_observe_only(false);
        inner.set_observe_only(false);
        assert_eq!(observed(), [false; 4]);
    }
}

#[test]
fn children_that_are_made_later() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        top.set_observe_only(true);
        let late = limited(&top, "late", 10 * KIB);
        let later = limited(&late, "later", KIB);
        assert!(late.is_observe_only() && later.is_observe_only());
        let held = charge(&later, 20 * KIB);
        assert_eq!(
            (locals(&later), locals(&late), locals(&top)),
            ([1, 1, 0], [1, 1, 0], [0; 3])
        );
        top.set_observe_only(false);
        assert!(!later.is_observe_only() && later.charge(1).is_err());
        // An object that is used again remembers nothing.
        drop((held, later, late));
        top.children().iter().for_each(memcg::Group::offline_tree);
        runtime.settle();
        for number in 0..10 {
            let new = limited(&top, &number.to_string(), KIB);
            assert!(!new.is_observe_only() && new.charge(Bytes(KIB + 1)).is_err());
            assert_eq!(new.events().get(Event::Observed), 0);
        }
    }
}

/// Limits above hold, and say no in their own name.
#[test]
fn limits_above_hold() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = limited(&top, "q", 10 * KIB);
        group.set_observe_only(true);
        let _held = charge(&group, 90 * KIB);
        let refused = group.charge(Bytes(11 * KIB)).expect_err("top is full");
        let Some(refusal) = refused.over_limit() else {
            panic!("{refused}")
        };
        assert_eq!((refusal.group(), refusal.requester()), (&top, &group));
        assert_eq!(top.events().local().get(Event::Oom), 1);
        assert_eq!(
            (
                group.live(),
                top.live(),
                top.events().local().get(Event::Observed)
            ),
            (90 * KIB, 90 * KIB, 0)
        );
    }
}

/// Those beside are refused as ever.
#[test]
fn those_beside_are_as_they_were() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        let group = limited(&top, "q", KIB);
        let beside = limited(&top, "beside", KIB);
        group.set_observe_only(true);
        drop(charge(&group, 10 * KIB));
        assert!(beside.charge(Bytes(10 * KIB)).is_err());
        assert_eq!(beside.events().local().get(Event::Observed), 0);
    }
}

/// Each level that is passed counts in its own name.
#[test]
fn each_level_that_is_passed() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 30 * KIB);
        let inner = limited(&top, "inner", 20 * KIB);
        let leaf = limited(&inner, "leaf", 10 * KIB);
        top.set_observe_only(true);
        let steps = [
            (10, [0, 0, 0]),
            (10, [0, 0, 1]),
            (10, [0, 1, 2]),
            (10, [1, 2, 3]),
        ];
        let mut held = Vec::new();
        for (kib, passed) in steps {
            held.push(charge(&leaf, kib * KIB));
            assert_eq!(
                [&top, &inner, &leaf].map(|group| group.events().local().get(Event::Observed)),
                passed
            );
        }
    }
}

/// The root, too; and percentages are of what the limit says.
#[test]
fn the_whole_tree() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(Limit::Bytes(100 * KIB))));
        let root = runtime.root();
        root.set_observe_only(true);
        let half = root
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        assert_eq!(half.max(), 50 * KIB);
        let held = charge(&half, 500 * KIB);
        assert_eq!((locals(&root), locals(&half)), ([1, 1, 0], [1, 1, 0]));
        drop((held, half));
        root.set_observe_only(false);
        assert!(root.charge(Bytes(101 * KIB)).is_err());
    }
}
