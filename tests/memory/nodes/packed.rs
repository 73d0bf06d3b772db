//! Accounts in a few words: made from a `Kmem`, or at once, by an owner that holds a lock.

use memcg::kmem::{Kmem, NodeId, PackedKmem, Placement, Precharge};
use memcg::{Bytes, Freshness, Group, StatKey, Unit};

use super::{
    Other, assert_sums, hold, kinds, left_empty, local, node, on, placed, runtimes, scattered,
};
use crate::support::trees::{bare, build, create};

type Parts<const N: usize> = [(Option<NodeId>, Bytes); N];

fn parts<const N: usize>(nodes: [(u16, u64); N]) -> Parts<N> {
    nodes.map(|(of, bytes)| (Some(node(of)), Bytes(bytes)))
}

fn precharge(group: &Group, bytes: u64) -> Precharge {
    group.precharge(Bytes(bytes)).expect("room")
}

fn at_once<const N: usize>(group: &Group, parts: Parts<N>) -> Result<PackedKmem<N>, Precharge> {
    let all = parts.iter().map(|(_, Bytes(bytes))| bytes).sum();
    precharge(group, all).try_account_as(StatKey::KERNEL, &parts)
}

/// An account that is not made at once leaves the precharge, and accounts nothing.
#[track_caller]
fn assert_left<const N: usize>(refused: Result<PackedKmem<N>, Precharge>, bytes: u64) {
    let left = refused.expect_err("not at once");
    assert_eq!(left.bytes(), bytes);
    let group = left.group();
    let accounted = group.numa_stat(StatKey::KERNEL, Freshness::Exact).sum();
    assert_eq!(group.live(), bytes + accounted as u64);
    let placement = Placement::new();
    assert_eq!(left.account(&placement).placement(), placement);
}

#[test]
fn an_account_at_once_is_exact_on_each_node() {
    for runtime in runtimes(3) {
        let parent = create(&runtime.root(), "p");
        let group = create(&parent, "q");
        let all = parts([(0, 70), (1, 7), (2, 300)]);
        assert_left(at_once(&group, all), 377);
        let first = hold(&group, &placed(&[(0, 1), (1, 1), (2, 1)]));
        let made: Vec<_> = (0..100)
            .map(|_| at_once(&group, all).expect("the thread has written there"))
            .collect();
        assert_eq!(on::<3>(&parent), [7_001, 701, 30_001]);
        assert_eq!(
            (local::<3>(&group), parent.live()),
            ([7_001, 701, 30_001], 37_703)
        );
        assert_sums(&runtime);
        // Half of them end on another thread.
        let (here, there): (Vec<_>, Vec<_>) = made
            .into_iter()
            .enumerate()
            .partition(|(number, _)| number % 2 == 0);
        Other::spawn().run(move || drop(there));
        assert_eq!(on::<3>(&parent), [3_501, 351, 15_001]);
        drop(here);
        assert_eq!((on::<3>(&parent), group.live()), ([1, 1, 1], 3));
        drop(first);
        assert_eq!(on::<3>(&parent), [0; 3]);
    }
}

#[test]
fn with_one_node_every_part_is_the_groups_own() {
    for runtime in runtimes(1) {
        let root = runtime.root();
        let first = hold(&root, &placed(&[(0, 1)]));
        let made = at_once(
            &root,
            [
                (Some(node(0)), Bytes(10)),
                (None, Bytes(5)),
                (None, Bytes(0)),
            ],
        );
        let made = made.expect("the thread has written");
        assert_eq!(on::<1>(&root), [16]);
        assert_eq!(made.unpack().placement(), placed(&[(0, 15)]));
        assert_eq!(on::<1>(&root), [1]);
        drop(first);
    }
}

#[test]
fn memory_on_no_node_is_a_part() {
    let runtime = left_empty(build(bare().nodes(2)));
    let root = runtime.root();
    let first = hold(&root, &scattered(&[(1, 1)], 1));
    let unknown = Some(node(9));
    let parts = [
        (None, Bytes(20)),
        (Some(node(1)), Bytes(3)),
        (unknown, Bytes(5)),
    ];
    let made = at_once(&root, parts).expect("the thread has written there");
    assert_eq!(made.group(), root);
    let kmem = made.unpack();
    assert_eq!(kmem.placement(), scattered(&[(1, 3)], 25));
    drop(kmem);
    drop(first);
}

#[test]
fn what_takes_more_than_the_threads_own_figures_is_left() {
    let mut builder = bare().nodes(2);
    let spilt = builder.stat_per_node("spilt", Unit::Bytes);
    let foreign = bare().stat_per_node("foreign", Unit::Bytes);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    let group = create(&root, "q");
    let first = hold(&group, &placed(&[(0, 1)]));
    let first_bytes = group.live();
    drop(first);
    assert_eq!(first_bytes, 1);
    // On node 1 it has written nothing yet.
    assert_left(at_once(&group, parts([(0, 5), (1, 5)])), 10);
    let left = |bytes, parts: Parts<2>| {
        assert_left(
            precharge(&group, bytes).try_account_as::<2>(StatKey::KERNEL, &parts),
            bytes,
        );
    };
    left(10, parts([(0, 9), (0, 0)]));
    left(10, parts([(0, 9), (0, 2)]));
    left(1 << 32, parts([(0, 1 << 32), (0, 0)]));
    left(0, parts([(0, 0), (0, 0)]));
    let [own, other] = [spilt, foreign]
        .map(|stat| precharge(&group, 5).try_account_as::<1>(stat, &parts([(0, 5)])));
    assert_eq!(own.expect("an item of the runtime").unpack().stat(), spilt);
    assert_left(other, 5);
    // Another thread has no figures of this group.
    let elsewhere = group.clone();
    Other::spawn().run(move || assert_left(at_once(&elsewhere, parts([(0, 5)])), 5));
}

/// What is missing from a stale read is within its bound, whoever announces.
#[test]
fn an_account_at_once_is_announced() {
    const PAGE: u64 = 4_096;
    for batch in [0, 8, 1_024] {
        let runtime = left_empty(build(bare().nodes(2).stat_batch(batch)));
        let root = runtime.root();
        let group = create(&root, "q");
        let _first = hold(&group, &placed(&[(1, PAGE)]));
        let mut held = Vec::new();
        for round in 1..=1_000_i64 {
            let bytes = round.unsigned_abs() % 7 * PAGE + 1;
            let made = at_once(&group, parts([(1, bytes)]));
            held.push(made.expect("the thread has written there"));
            if round % 3 == 0 {
                drop(held.swap_remove(round as usize % held.len()));
            }
            let all = group.live().cast_signed();
            let now = root.numa_stat(StatKey::KERNEL, Freshness::Stale);
            let missing = (all - now.get(node(1))).unsigned_abs() / PAGE;
            assert!(missing <= now.max_error(), "{missing}, {now:?}");
        }
        assert_eq!(on::<2>(&root), [0, group.live().cast_signed()]);
    }
}

#[test]
fn a_tier_is_charged_the_long_way() {
    let mut builder = bare().nodes(3);
    let toptier = builder.tier("toptier", [node(0), node(1)]);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    let on_tier = || root.counter(toptier).expect("declared").live();
    let first = hold(&root, &placed(&[(0, 1), (2, 1)]));
    assert_left(at_once(&root, parts([(0, 5), (2, 5)])), 10);
    drop(first);
    // An account of some nodes keeps what its tiers are charged.
    let kmem = hold(&root, &scattered(&[(0, 10), (1, 20), (2, 40)], 80));
    assert_eq!(on_tier(), 30 + 80, "some may yet come there");
    let packed = kmem.pack::<4>().expect("four parts");
    assert_eq!(on_tier(), 30, "the promise ends");
    let mut kmem = packed.unpack();
    kmem.relocate(&placed(&[(1, 50), (2, 100)]));
    assert_eq!(on_tier(), 50);
    drop(kmem.pack::<2>().expect("two parts"));
    assert_eq!(on_tier(), 0);
}

#[test]
fn an_account_is_packed_where_its_parts_fit() {
    let runtime = left_empty(build(bare().nodes(4)));
    let root = runtime.root();
    let placement = placed(&[(0, 1), (1, 2), (3, 4)]);
    let kmem = hold(&root, &placement);
    let kmem = kmem.pack::<2>().expect_err("three parts");
    let packed = kmem.pack::<3>().expect("three parts");
    assert_eq!(on::<4>(&root), [1, 2, 0, 4]);
    let mut kmem = packed.unpack();
    assert_eq!((kmem.placement(), kmem.bytes()), (placement, 7));
    // It moves, and is packed again.
    assert_eq!(kmem.migrated(Some(node(3)), Some(node(2)), 4), 4);
    let packed: PackedKmem<8> = kmem.pack().expect("three parts");
    assert_eq!(on::<4>(&root), [1, 2, 4, 0]);
    drop(packed);
    let nothing: Kmem = hold(&root, &Placement::new());
    assert!(nothing.pack::<1>().is_err(), "no bytes");
}

/// The account ends before the charge, whose last byte releases the group. What was made at once
/// may be all that keeps it.
#[test]
fn an_account_outlives_its_group_and_runtime() {
    for builder in kinds(2) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        drop(hold(&group, &placed(&[(0, 1), (1, 1)])));
        let packed = at_once(&group, parts([(0, 10), (1, 20)])).expect("the thread has written");
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
        assert_eq!((runtime.dying_count(), on::<2>(&root)), (1, [10, 20]));
        assert_eq!(packed.group().live(), 30);
        drop(packed);
        runtime.settle();
        assert_eq!((runtime.dying_count(), on::<2>(&root)), (0, [0, 0]));

        let last = create(&root, "q");
        drop(hold(&last, &placed(&[(0, 1)])));
        let packed = at_once(&last, parts([(0, 10)])).expect("the thread has written");
        drop((last, root, runtime));
        Other::spawn().run(move || drop(packed));
    }
}
