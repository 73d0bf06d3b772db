//! Memory that moves, is touched late, or goes in part: the account goes with it, and the charge only where bytes go.

use memcg::Stat;
use memcg::kmem::Kmem;
use memcg::{Bytes, Freshness};

use super::{Other, assert_empty, assert_sums, hold, node, on, placed, scattered};
use crate::support::trees::{build, create};

#[test]
fn migration_moves_the_account_and_not_the_charge() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let mut kmem = hold(&group, &placed(&[(0, 1_000), (1, 500)]));
        for (from, to, bytes, moved, expected) in [
            (0, 1, 300, 300, [700, 800, 0]),
            (1, 2, 10_000, 800, [700, 0, 800]),
            (1, 2, 1, 0, [700, 0, 800]),
            (2, 2, 5, 5, [700, 0, 800]),
            (2, 0, 0, 0, [700, 0, 800]),
            (2, 0, 800, 800, [1_500, 0, 0]),
            (0, 1, u64::MAX, 1_500, [0, 1_500, 0]),
        ] {
            assert_eq!(kmem.migrate(Some(node(from)), Some(node(to)), Bytes(bytes)), moved);
            assert_eq!((on(&group), on(&root)), (expected, expected));
            assert_eq!((kmem.bytes(), group.live(), group.peak()), (1_500, 1_500, group.peak()));
            assert_sums(&runtime);
        }
        assert_eq!(kmem.placement(), placed(&[(1, 1_500)]));
        drop((kmem, group));
        assert_empty(&runtime);
    }
}

#[test]
fn what_is_touched_late_comes_from_no_node() {
    for builder in super::kinds(2) {
        let runtime = build(builder);
        let root = runtime.root();
        let mut kmem = hold(&root, &scattered(&[], 10_000));
        assert_eq!((on(&root), root.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced()), ([0, 0], 10_000));
        for (page, number) in [0, 1, 1, 0, 1].into_iter().enumerate() {
            assert_eq!(kmem.migrate(None, Some(node(number)), 2_000), 2_000);
            assert_eq!(root.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced(), 8_000 - 2_000 * page as i64);
        }
        assert_eq!((on(&root), kmem.migrate(None, Some(node(0)), 1)), ([4_000, 6_000], 0));
        // Given up by the owner, and kept as it was: on no node again. One that is not there is no node either.
        assert_eq!(kmem.migrate(Some(node(1)), None, 5_000), 5_000);
        assert_eq!(kmem.migrate(Some(node(0)), Some(node(9)), 1_000), 1_000);
        assert_eq!((on(&root), root.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced()), ([3_000, 1_000], 6_000));
        assert_sums(&runtime);
        drop(kmem);
        assert_empty(&runtime);
    }
}

/// The account becomes what is said, as far as there are bytes; what is missing is on no node.
#[test]
fn relocation_keeps_the_bytes() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let mut kmem = hold(&root, &scattered(&[(0, 60)], 40));
        for (wanted, expected) in [
            (placed(&[(0, 10), (1, 20), (2, 70)]), scattered(&[(0, 10), (1, 20), (2, 70)], 0)),
            (placed(&[(2, 10)]), scattered(&[(2, 10)], 90)),
            (placed(&[]), scattered(&[], 100)),
            (placed(&[(1, 1_000), (2, 1_000)]), scattered(&[(1, 100)], 0)),
            (scattered(&[(0, 50)], 1_000), scattered(&[(0, 50)], 50)),
            (placed(&[(0, 30), (1, 30), (2, 30)]), scattered(&[(0, 30), (1, 30), (2, 30)], 10)),
            // Two that the machine does not have, and what is said of none, are one and the same.
            (scattered(&[(7, 30), (2, 20), (8, 30)], 10), scattered(&[(2, 20)], 80)),
            (placed(&[(7, 40), (8, 60)]), scattered(&[], 100)),
            (placed(&[(7, u64::MAX), (0, 100)]), scattered(&[], 100)),
        ] {
            kmem.relocate(&wanted);
            assert_eq!((kmem.placement(), kmem.bytes(), root.live()), (expected.clone(), 100, 100), "{wanted:?}");
            let now = root.numa_stat(Stat::KERNEL, Freshness::Exact);
            assert_eq!((now.sum(), now.unplaced()), (100, expected.unplaced().cast_signed()), "{wanted:?}");
            assert_sums(&runtime);
        }
        drop(kmem);
        assert_empty(&runtime);
    }
}

#[test]
fn a_part_goes_from_its_node() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let mut kmem = hold(&group, &scattered(&[(0, 100), (1, 100)], 100));
        for (part, gone, expected, unplaced) in [
            (placed(&[(0, 30)]), 30, [70, 100, 0], 100),
            (placed(&[(2, 30)]), 0, [70, 100, 0], 100),
            (scattered(&[(0, 1_000), (1, 10)], 1), 81, [0, 90, 0], 99),
            (placed(&[(9, 9)]), 9, [0, 90, 0], 90),
            (placed(&[]), 0, [0, 90, 0], 90),
            (scattered(&[(0, u64::MAX), (1, u64::MAX)], u64::MAX), 180, [0, 0, 0], 0),
        ] {
            assert_eq!(kmem.shrink(&part), gone, "{part:?}");
            assert_eq!(
                (on(&group), group.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced()),
                (expected, unplaced),
                "{part:?}"
            );
            let left = expected.iter().sum::<i64>() + unplaced;
            assert_eq!((kmem.bytes().cast_signed(), group.live(), root.live()), (left, kmem.bytes(), kmem.bytes()));
            assert_sums(&runtime);
        }
        // Empty, it keeps its group all the same.
        group.offline().expect("no children");
        drop(group);
        assert_eq!(runtime.dying_count(), 1);
        assert_eq!(kmem.shrink(&placed(&[(0, 1)])), 0);
        drop(kmem);
        assert_empty(&runtime);
    }
}

#[test]
fn two_become_one() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let [group, beside] = ["q", "beside"].map(|name| create(&root, name));
        let other = Other::spawn();
        let mut all = hold(&group, &scattered(&[(0, 10), (1, 20)], 5));
        let more = other.hold(&group, &scattered(&[(1, 100), (2, 200)], 50));
        let before = on::<3>(&group);
        all.merge(more).expect("of one group");
        assert_eq!((all.bytes(), all.placement()), (385, scattered(&[(0, 10), (1, 120), (2, 200)], 55)));
        assert_eq!((on(&group), group.live()), (before, 385), "nothing was charged for it");
        all.merge(hold(&group, &placed(&[]))).expect("nothing");
        // Not of another group, nor as another item: it comes back as it was.
        let as_slab = group.precharge(7).expect("room").account_as(Stat::SLAB, &placed(&[(0, 7)]));
        for stranger in [hold(&beside, &placed(&[(0, 7)])), as_slab] {
            let (whose, what) = (stranger.group(), stranger.stat());
            let back = all.merge(stranger).expect_err("a stranger");
            assert_eq!((back.group(), back.stat(), back.placement()), (whose, what, placed(&[(0, 7)])));
            assert_eq!(all.bytes(), 385);
        }
        assert_eq!(
            (on(&group), on(&beside), group.numa_stat(Stat::SLAB, Freshness::Exact).sum()),
            (before, [0, 0, 0], 0)
        );
        drop((all, group, beside));
        assert_empty(&runtime);
    }
}

/// A thread that holds it, and where it is freed, is no thread's business.
#[test]
fn it_moves_on_any_thread() {
    for builder in super::kinds(4) {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let others = [Other::spawn(), Other::spawn(), Other::spawn()];
        let mut kmem: Kmem = hold(&group, &placed(&[(0, 400)]));
        for step in 0..30_u16 {
            kmem = others[usize::from(step) % 3].run(move || {
                let (from, to) = (node(step % 4), node((step + 1) % 4));
                assert_eq!(kmem.migrate(Some(from), Some(to), 400), 400);
                assert_eq!(kmem.shrink(&placed(&[(to.get(), 1)])), 1);
                let more = kmem.group().precharge(1).expect("room").account(&placed(&[(to.get(), 1)]));
                kmem.merge(more).expect("of one group");
                kmem
            });
            let mut expected = [0; 4];
            expected[usize::from(step + 1) % 4] = 400;
            assert_eq!(on(&group), expected);
        }
        drop((kmem, group));
        assert_empty(&runtime);
    }
}
