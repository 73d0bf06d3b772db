//! The writes of one allocation: one addition for each node that it touches, whatever its pages,
//! processors and threads are, and one charge.
//!
//! Additions are counted as the library counts them itself: at a batch of 0 each is announced at
//! once, and an addition of at most a grain is a grain. Work on counters is seen in the walks that
//! a missing stock asks for.

use memcg::kmem::{Kmem, NodeOf, PageNode, Placement};
use memcg::{Bytes, Freshness, Group, Runtime, StatKey};

use super::{Other, hold, left_empty, machine, node, on, placed, scattered};
use crate::support::trees::{bare, build, create};

/// Additions to items of the group since the last flush: of those that come to at most a grain
/// each.
fn additions(group: &Group, work: impl FnOnce()) -> u64 {
    group.inspect().flush();
    assert_eq!(
        group
            .numa_stat(StatKey::KERNEL, Freshness::Stale)
            .max_error(),
        0
    );
    work();
    group
        .numa_stat(StatKey::KERNEL, Freshness::Stale)
        .max_error()
}

/// Pages lie on so many nodes in turn.
struct Interleaved(u16);

impl NodeOf for Interleaved {
    fn page_size(&self) -> usize {
        16
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        for (page, found) in pages.iter().zip(found) {
            *found = PageNode::On(node((page / 16 % usize::from(self.0)) as u16));
        }
    }
}

/// No stock: nothing but what is asked for is counted.
fn runtime(nodes: u16) -> Runtime {
    build(
        bare()
            .topology(machine(&(0..nodes).collect::<Vec<_>>()))
            .stat_batch(0),
    )
}

#[test]
fn one_addition_for_each_node_that_is_touched() {
    for nodes in [1, 2, 3, 8, 64] {
        let runtime = left_empty(runtime(nodes));
        let group = create(&runtime.root(), "q");
        for touched in [1, 2, 3, 8, 64]
            .into_iter()
            .filter(|&touched| touched <= nodes)
        {
            for warm in [false, true] {
                // Many pages on each, an object that straddles them all.
                let mut placement = Placement::new();
                placement.add_range(5..16 * 200 + 9, &Interleaved(touched));
                assert_eq!(placement.nodes().count(), usize::from(touched));
                let mut kmem = None;
                let made = additions(&group, || {
                    let precharge = group
                        .precharge(Bytes(placement.bytes() + 100))
                        .expect("room");
                    kmem = Some(precharge.account(&placement));
                });
                assert_eq!(
                    made,
                    u64::from(touched),
                    "{touched} of {nodes} nodes, warm: {warm}"
                );
                assert_eq!(
                    additions(&group, || drop(kmem)),
                    u64::from(touched),
                    "freed"
                );
            }
        }
    }
}

#[test]
fn untouched_pages_are_one_more() {
    let runtime = left_empty(runtime(4));
    let group = create(&runtime.root(), "q");
    let mut kmem = None;
    assert_eq!(
        additions(&group, || kmem =
            Some(hold(&group, &scattered(&[(1, 10), (3, 20)], 30)))),
        3
    );
    let mut kmem = kmem.expect("held");
    // Off one node and on to another.
    assert_eq!(
        additions(&group, || assert_eq!(
            kmem.migrated(Some(node(1)), Some(node(2)), 5),
            5
        )),
        2
    );
    assert_eq!(
        additions(&group, || assert_eq!(
            kmem.migrated(None, Some(node(2)), 5),
            5
        )),
        2
    );
    assert_eq!(
        additions(&group, || assert_eq!(
            kmem.migrated(Some(node(0)), Some(node(2)), 5),
            0
        )),
        0
    );
    // Bytes that stay are not written; here one node goes and another grows.
    assert_eq!(
        additions(&group, || kmem
            .relocate(&scattered(&[(2, 15), (3, 20)], 25))),
        2
    );
    assert_eq!(
        additions(&group, || kmem
            .relocate(&scattered(&[(2, 15), (3, 20)], 25))),
        0
    );
    assert_eq!(
        additions(&group, || assert_eq!(kmem.shrink(&placed(&[(3, 1)])), 1)),
        1
    );
}

/// With a stock and a batch, an allocation is paid from the thread's own credit: no walk of any
/// counter, no lock, no barrier, nothing announced.
#[test]
fn from_credit_nothing_shared_is_touched() {
    let runtime = build(Runtime::builder().nodes(8).adaptive(false));
    let group = create(&runtime.root(), "q");
    let placement = placed(&[(0, 100), (5, 28)]);
    let refills = || {
        group.read(Freshness::Exact).get(StatKey::STOCK_REFILL)
            + group.read(Freshness::Exact).get(StatKey::STOCK_RETURN)
    };
    drop(hold(&group, &placement));
    let usage = group.usage();
    let walks = refills();
    let counts = runtime.counts();
    let mut held: Option<Kmem> = None;
    for round in 0..1_000 {
        // Bound and account differ; it is freed while the next one is held.
        let kmem = group.precharge(200).expect("room").account(&placement);
        assert_eq!((kmem.bytes(), group.usage()), (128, usage), "round {round}");
        held = Some(kmem);
    }
    drop(held);
    let after = runtime.counts();
    assert_eq!((refills(), group.usage()), (walks, usage));
    assert_eq!(
        (after.drains, after.barriers, after.stat_lists),
        (counts.drains, counts.barriers, counts.stat_lists)
    );
}

/// A flush looks at the cells of the nodes that were written, of the threads that wrote them.
#[test]
fn a_flush_visits_what_was_written() {
    let runtime = left_empty(build(bare().nodes(8)));
    let root = runtime.root();
    let group = create(&root, "q");
    let visits = |group: &Group| {
        let before = runtime.counts().flush_visits;
        group.inspect().flush();
        runtime.counts().flush_visits - before
    };
    assert_eq!(visits(&root), 0);
    let _kmem = hold(&group, &placed(&[(2, 1), (7, 1)]));
    assert_eq!((visits(&root), visits(&group)), (2, 2));
    let other = Other::spawn();
    let _theirs = other.hold(&group, &scattered(&[(2, 1)], 1));
    assert_eq!(visits(&root), 4);
    assert_eq!(on(&group), [0, 0, 2, 0, 0, 0, 0, 1]);
    let beside = create(&root, "beside");
    assert_eq!(visits(&beside), 0);
}
