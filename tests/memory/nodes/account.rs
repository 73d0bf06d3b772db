//! What was precharged is accounted to the nodes where it lies; what is freed is taken off where it was accounted.

use memcg::expert::BarrierMode;
use memcg::{Freshness, Limits, Runtime, Stat};

use super::{Other, assert_empty, assert_sums, hold, local, machine, node, on, placed, scattered};
use crate::support::trees::{assert_sound, build, create};

#[test]
fn the_rest_goes_back() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        for used in [0_u64, 1, 99, 100] {
            let kmem = group.precharge(100).expect("room").account(&scattered(&[(0, used / 2)], used - used / 2));
            assert_eq!((kmem.bytes(), group.live(), root.live()), (used, used, used));
            assert_eq!(on(&root), [(used / 2).cast_signed(), 0, 0]);
            assert_sums(&runtime);
        }
        assert_eq!((group.live(), group.forced()), (0, 0));
        drop(group);
        assert_empty(&runtime);
    }
}

/// A bound that did not hold: the memory is there, so it is charged whatever the limits say.
#[test]
fn more_than_the_bound_goes_by_force() {
    for builder in super::kinds(2) {
        let runtime = build(builder.max(100));
        let root = runtime.root();
        let kmem = root.precharge(60).expect("room").account(&placed(&[(0, 80), (1, 50)]));
        assert_eq!((kmem.bytes(), root.live(), root.forced()), (130, 130, 30));
        assert_eq!(on(&root), [80, 50]);
        assert_sound(&runtime);
        drop(kmem);
        assert_empty(&runtime);
    }
}

/// Usage ends at 2^63. What does not fit is neither charged nor accounted: the account is never more than the charge.
#[test]
fn never_more_than_is_charged() {
    for placement in [placed(&[(0, u64::MAX)]), placed(&[(0, 7), (1, u64::MAX)]), scattered(&[(1, 1 << 63)], 1 << 63)] {
        for nodes in [1, 2] {
            let runtime = build(crate::support::trees::bare().nodes(nodes));
            let root = runtime.root();
            let kmem = root.precharge(10).expect("room").account(&placement);
            assert_eq!(kmem.placement().bytes(), kmem.bytes());
            assert_eq!(
                (root.numa_stat(Stat::KERNEL, Freshness::Exact).sum(), root.live()),
                (kmem.bytes().cast_signed(), kmem.bytes())
            );
            drop(kmem);
            assert_empty(&runtime);
        }
    }
}

#[test]
fn freed_elsewhere_it_leaves_the_nodes_where_it_lay() {
    for builder in super::kinds(4) {
        let runtime = build(builder);
        let root = runtime.root();
        let groups = ["a", "b"].map(|name| create(&root, name));
        let others = [Other::spawn(), Other::spawn(), Other::spawn()];
        let mut held = Vec::new();
        let mut expected = [[0_i64; 4]; 2];
        for round in 0..60_usize {
            let (at, bytes) = (round % 2, 1 + round as u64 * 13 % 5_000);
            let (first, second) = (round % 4, (round / 3) % 4);
            let placement = placed(&[(first as u16, bytes), (second as u16, 10)]);
            expected[at][first] += bytes.cast_signed();
            expected[at][second] += 10;
            held.push((others[round % 3].hold(&groups[at], &placement), at, placement));
            assert_eq!([on(&groups[0]), on(&groups[1])], expected);
        }
        assert_sums(&runtime);
        for (number, (kmem, at, placement)) in held.into_iter().enumerate() {
            assert_eq!(kmem.placement(), placement);
            others[number * 7 % 3].run(move || drop(kmem));
            placement.nodes().for_each(|(of, bytes)| expected[at][usize::from(of.get())] -= bytes.cast_signed());
            assert_eq!([on(&groups[0]), on(&groups[1])], expected);
        }
        assert_eq!(expected, [[0; 4]; 2]);
        drop(groups);
        assert_empty(&runtime);
    }
}

#[test]
fn ancestors_see_what_is_below() {
    for builder in super::kinds(2) {
        let runtime = build(builder.barrier(BarrierMode::Fence));
        let root = runtime.root();
        let a = create(&root, "a");
        let [b, c] = ["b", "c"].map(|name| create(&a, name));
        let held =
            [hold(&b, &placed(&[(0, 5)])), hold(&c, &placed(&[(1, 7)])), hold(&a, &placed(&[(0, 100), (1, 1_000)]))];
        assert_eq!((on(&root), local(&root)), ([105, 1_007], [0, 0]));
        assert_eq!((on(&a), local(&a)), ([105, 1_007], [100, 1_000]));
        assert_eq!([on(&b), local(&b), on(&c), local(&c)], [[5, 0], [5, 0], [0, 7], [0, 7]]);
        assert_sums(&runtime);
        drop(held);
        drop((a, b, c));
        assert_empty(&runtime);
    }
}

/// With one node there is one place for everything, wherever it is said to lie.
#[test]
fn one_node_has_it_all() {
    for (number, builder) in super::kinds(1).chain([Runtime::builder().topology(machine(&[3]))]).enumerate() {
        let runtime = build(builder);
        let root = runtime.root();
        let only = node(if number == 3 { 3 } else { 0 });
        let mut kmem = hold(&root, &scattered(&[(0, 10), (3, 20), (9, 30)], 40));
        let now = root.numa_stat(Stat::KERNEL, Freshness::Exact);
        assert_eq!((now.get(only), now.local(only), now.unplaced(), now.iter().count()), (100, 100, 0, 1));
        assert_eq!(kmem.placement(), placed(&[(only.get(), 100)]));
        assert_eq!(kmem.migrate(Some(only), Some(node(7)), 60), 60);
        assert_eq!(kmem.migrate(None, Some(only), 1_000), 100);
        kmem.relocate(&placed(&[(1, 30), (2, 30)]));
        assert_eq!((kmem.bytes(), root.numa_stat(Stat::KERNEL, Freshness::Exact).get(only)), (100, 100));
        assert_eq!(kmem.shrink(&scattered(&[(5, 15)], 15)), 30);
        assert_eq!((kmem.bytes(), root.live(), root.numa_stat(Stat::KERNEL, Freshness::Exact).get(only)), (70, 70, 70));
        assert_sums(&runtime);
        drop(kmem);
        assert!(root.numa_stat(Stat::KERNEL, Freshness::Exact).iter().all(|(_, bytes)| bytes == 0));
        assert_eq!(root.live(), 0);
    }
}

/// The runtime goes before what it has admitted: that is accounted and taken off all the same.
#[test]
fn it_outlives_its_runtime() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = root.create("q", Limits::new()).expect("a name");
        let before = hold(&group, &placed(&[(0, 10)]));
        let precharges = [&root, &group].map(|group| group.precharge(100).expect("room"));
        drop(runtime);
        let after = precharges.map(|precharge| precharge.account(&placed(&[(0, 30), (2, 40)])));
        assert_eq!((on(&root), root.live()), ([70, 0, 80], 150));
        let other = Other::spawn();
        other.run(move || drop((before, after)));
        assert_eq!((on(&root), root.live()), ([0, 0, 0], 0));
        drop(group);
    }
}

#[test]
fn it_says_what_it_is() {
    let runtime = build(crate::support::trees::bare().nodes(2));
    let group = create(&runtime.root(), "q");
    let kmem = group.precharge(10).expect("room").account_as(Stat::PERCPU, &placed(&[(1, 10)]));
    assert_eq!((kmem.stat(), kmem.group(), kmem.bytes()), (Stat::PERCPU, group.clone(), 10));
    assert!(format!("{kmem:?}").contains("placement"));
    assert_eq!(on(&group), [0, 0], "an item of its own");
    assert_eq!(group.numa_stat(Stat::PERCPU, Freshness::Exact).to_string(), "N0=0 N1=10");
}
