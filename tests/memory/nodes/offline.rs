//! Groups that go offline between admission and account, and between account and free. An offline
//! group gets no new part: its parent is accounted, and gets back what it was accounted.

use memcg::{Freshness, StatKey};

use super::{Other, assert_sums, local, node, on, placed, runtimes, scattered};
use crate::support::trees::create;

#[test]
fn between_precharge_and_account() {
    for runtime in runtimes(3) {
        let root = runtime.root();
        let parent = create(&root, "p");
        let group = create(&parent, "q");
        let other = Other::spawn();
        // A part on node 0, by another thread.
        let _before = other.hold(&group, &placed(&[(0, 10)]));
        let precharge = group.precharge(100).expect("room");
        group.offline().expect("no children");
        let kmem = precharge.account(&scattered(&[(0, 20), (1, 30)], 40));
        assert_eq!(
            (local(&group), on(&group)),
            ([30, 0, 0], [30, 0, 0]),
            "it has a part on node 0 alone"
        );
        assert_eq!(
            (local(&parent), on(&parent), on(&root)),
            ([0, 30, 0], [30, 30, 0], [30, 30, 0])
        );
        assert_eq!(
            group
                .numa_stat(StatKey::KERNEL, Freshness::Exact)
                .unplaced(),
            40,
            "what is on no node is its own"
        );
        // Whatever is accounted above: the bytes are held by the group.
        assert_eq!(
            (kmem.placement(), kmem.bytes()),
            (scattered(&[(0, 20), (1, 30)], 40), 90)
        );
        assert_eq!(
            (group.live(), parent.live(), kmem.group()),
            (100, 100, group.clone())
        );
        assert_sums(&runtime);
        other.run(move || drop(kmem));
        assert_eq!(
            (on(&group), on(&parent), on(&root)),
            ([10, 0, 0], [10, 0, 0], [10, 0, 0])
        );
    }
}

#[test]
fn between_account_and_free() {
    for runtime in runtimes(3) {
        let root = runtime.root();
        let group = create(&root, "q");
        let others = [Other::spawn(), Other::spawn()];
        let mut kmem = others[0].hold(&group, &placed(&[(0, 100), (2, 50)]));
        group.offline().expect("no children");
        assert_eq!(
            (on(&group), local(&group)),
            ([100, 0, 50], [100, 0, 50]),
            "nothing moves because of it"
        );
        // Its owner moves it: where there is a part it is the group's, where there is none the
        // root's.
        assert_eq!(kmem.migrated(Some(node(0)), Some(node(2)), 30), 30);
        assert_eq!(kmem.migrated(Some(node(0)), Some(node(1)), 40), 40);
        assert_eq!(
            (local(&group), local(&root), on(&root)),
            ([30, 0, 80], [0, 40, 0], [30, 40, 80])
        );
        assert_eq!(kmem.migrated(Some(node(1)), Some(node(0)), 15), 15);
        assert_eq!(
            (local(&group), local(&root), on(&root)),
            ([45, 0, 80], [0, 25, 0], [45, 25, 80])
        );
        assert_eq!(kmem.shrink(&placed(&[(1, 5), (2, 80)])), 85);
        assert_eq!((local(&group), local(&root)), ([45, 0, 0], [0, 20, 0]));
        kmem.relocate(&placed(&[(1, 65)]));
        assert_eq!((local(&group), local(&root)), ([0, 0, 0], [0, 65, 0]));
        assert_sums(&runtime);
        drop(group);
        assert_eq!(runtime.dying_count(), 1, "it is held");
        others[1].run(move || drop(kmem));
    }
}
