//! Calls on a group that went offline: read it, set it, charge it by force, all while credit of
//! several threads waits for its barrier.

use memcg::{Charge, Group, Limit, Runtime};

use super::{Other, assert_sound, charge, create, runtimes};

/// A group of which two threads have a charge and credit, offline; its handle; its charges.
fn dying(runtime: &Runtime, other: &Other) -> (Group, [Charge; 2]) {
    let group = create(&runtime.root(), "q");
    drop((
        charge(&group, 1),
        other.with(&group, |group| drop(charge(group, 1))),
    ));
    let held = [
        charge(&group, 10),
        other.with(&group, |group| charge(group, 20)),
    ];
    group.offline().expect("no children");
    (group, held)
}

/// An act on a group that is offline and still charged.
type Act = fn(&Group);

const ACTS: [(&str, Act); 8] = [
    ("its max changes", |group| {
        assert_eq!(group.set_max(10).expect("a number"), 20);
        assert_eq!((group.max(), group.forced()), (10, 20));
        assert_eq!(group.set_max(Limit::Unlimited).expect("none"), 0);
    }),
    ("its batch changes", |group| {
        group.memory().set_batch(0);
        group.memory().set_batch(64);
    }),
    ("it is drained", |group| {
        group.memory().drain();
        assert_eq!(group.usage(), 30);
    }),
    ("it is read", |group| {
        // Its credit may not be settled yet. To read it settles nothing.
        let stocked = group.memory().stocked();
        assert_eq!((group.live(), group.usage()), (30, 30 + stocked));
        assert_eq!(group.inspect().live_local(), 30);
        assert!(group.peak() >= 30 && group.is_offline() && group.children().is_empty());
        let window = group.memory().peak_window();
        window.reset();
        assert_eq!(window.peak(), 30 + stocked);
        assert_eq!(group.usage(), 30 + stocked);
    }),
    ("it is charged by force", |group| {
        let mut forced = group.force_charge(100);
        assert_eq!((forced.bytes(), group.live()), (100, 130));
        forced.force_grow(20);
        forced.shrink(30);
        assert_eq!(group.live(), 120);
    }),
    ("it is charged by force above its max", |group| {
        group.set_max(40).expect("a number");
        let forced = group.force_charge(100);
        assert_eq!((group.usage(), group.forced()), (130, 90));
        drop(forced);
        assert_eq!((group.usage(), group.forced()), (30, 0));
    }),
    ("it goes offline again", |group| {
        group.offline().expect("it is");
        group.offline_tree();
    }),
    ("another counts its release in between", |group| {
        let root = group.parent().expect("the root");
        let beside = create(&root, "beside");
        let held = charge(&beside, 10);
        beside.offline().expect("no children");
        assert_eq!(root.live(), 45);
        drop(held);
    }),
];

/// After each act all figures are still sane.
#[test]
fn what_may_still_be_done() {
    for (what, act) in ACTS {
        for runtime in runtimes() {
            let root = runtime.root();
            // A group beside it, with credit and a bound that must stay what they are.
            let stays = create(&root, "stays");
            let held_there = charge(&stays, 5);
            let other = Other::spawn();
            let (group, held) = dying(&runtime, &other);
            act(&group);
            act(&group);
            let bounds = [
                group.memory().stocked_bound(),
                root.memory().stocked_bound(),
            ];
            assert!(
                bounds[0] <= 256 && bounds[1] <= 3 * 256,
                "{what}: {bounds:?}"
            );
            assert_eq!(
                (group.live(), root.live(), group.path().as_str()),
                (30, 35, "/q"),
                "{what}"
            );
            assert!(
                root.memory().stocked() <= root.memory().stocked_bound(),
                "{what}"
            );
            assert!(group.charge(1).is_err(), "{what}");
            assert_sound(&runtime);
            drop((held, group));
            runtime.settle();
            assert_eq!(
                (runtime.dying_count(), root.live(), stays.usage()),
                (0, 5, root.usage()),
                "{what}"
            );
            assert_eq!(
                stays.memory().stocked_bound(),
                root.memory().stocked_bound(),
                "{what}"
            );
            // A limit still finds all credit.
            root.set_max(100).expect("a number");
            let rest = charge(&stays, 95);
            assert!(stays.charge(1).is_err(), "{what}");
            drop((rest, held_there));
            assert_eq!(runtime.counts().refused_in_transit, 0, "{what}");
        }
    }
}
