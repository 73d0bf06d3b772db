//! Observe-only holds for the group and all below it, whenever they are created; for no group
//! above, for none beside.

use memcg::{Bytes, Event};

use super::{KIB, charge, create, limited, locals, runtimes};

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
