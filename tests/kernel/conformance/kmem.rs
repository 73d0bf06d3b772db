//! Statements 76 to 80: kernel memory, which here is what a service keeps about its own work, by
//! node.
//!
//! The kernel charges pages and parks the rest of a page with a processor; here every object is
//! charged and accounted to the byte, and only the stock is in batches. So nothing is approximate
//! where the statements allow an error.

use std::alloc::Layout;

use memcg::kmem::{Kmem, NodeId, Placement, PrechargeBound, Topology};
use memcg::{Bytes, Freshness, Group, Limits, Runtime, StatKey};

use super::{Other, adaptive_groups, assert_groups_sound, bare_groups, create};

const PAGE: u64 = 4_096;
/// The word beside an object that names its group.
const POINTER: u64 = 8;

fn node(number: u16) -> NodeId {
    NodeId::new(number)
}

fn hold(group: &Group, stat: StatKey, of: u16, bytes: u64) -> Kmem {
    group
        .precharge(Bytes(bytes))
        .expect("no limits")
        .account_as(stat, &Placement::on(node(of), Bytes(bytes)))
}

/// A batch of a page, which stays open.
fn paged() -> Runtime {
    adaptive_groups()
        .batch(Bytes(PAGE))
        .adaptive(false)
        .nodes(2)
        .build()
        .expect("a configuration")
}

/// 41 objects of 100 bytes and a pointer each, by one thread: the kernel has charged 2 pages, the
/// rest of the second one parked. So has the stock; what is held and accounted is 41 x 108 bytes.
/// All freed and drained, nothing is.
#[test]
fn s076_bytes_are_paid_from_a_stock() {
    let runtime = paged();
    let group = create(&runtime.root(), "q", Limits::new());
    let mut held: Vec<Kmem> = (0..41)
        .map(|_| hold(&group, StatKey::KERNEL, 1, 100 + POINTER))
        .collect();
    assert_eq!((group.usage(), group.live()), (2 * PAGE, 4_428));
    assert_eq!(
        group
            .numa_stat(StatKey::KERNEL, Freshness::Exact)
            .get(node(1)),
        4_428
    );
    held.truncate(20);
    assert_eq!(
        (
            group.live(),
            group
                .numa_stat(StatKey::KERNEL, Freshness::Exact)
                .get(node(1))
        ),
        (2_160, 2_160)
    );
    drop(held);
    assert_eq!(
        (
            group.live(),
            group.numa_stat(StatKey::KERNEL, Freshness::Exact).sum()
        ),
        (0, 0)
    );
    group.memory().drain();
    assert_eq!((group.usage(), runtime.root().usage()), (0, 0));
    assert_groups_sound(&runtime);
}

#[test]
fn s076_adaptive() {
    for builder in [bare_groups(), adaptive_groups()] {
        let runtime = builder.nodes(2).build().expect("a configuration");
        let group = create(&runtime.root(), "q", Limits::new());
        let held: Vec<Kmem> = (0..41)
            .map(|_| hold(&group, StatKey::KERNEL, 1, 100 + POINTER))
            .collect();
        assert_eq!(
            (
                group.live(),
                group
                    .numa_stat(StatKey::KERNEL, Freshness::Exact)
                    .get(node(1))
            ),
            (4_428, 4_428)
        );
        drop(held);
        runtime.root().memory().drain();
        assert_eq!(
            (
                group.live(),
                group.numa_stat(StatKey::KERNEL, Freshness::Exact).sum(),
                runtime.root().usage()
            ),
            (0, 0, 0)
        );
        assert_groups_sound(&runtime);
    }
}

/// Two threads each park the rest of a page, and the rests come to a page: in the kernel no group
/// gives that page back until the owner is released. Here a rest is credit like any other: a drain
/// takes both, and so does the group's end.
#[test]
fn s077_parked_remainders_are_found() {
    for rest in [1, 100, 2_048, PAGE - 1] {
        let runtime = paged();
        let root = runtime.root();
        let group = create(&root, "q", Limits::new());
        let others = [Other::spawn(), Other::spawn()];
        let park = |group: &Group| -> Vec<Kmem> {
            let bytes = [PAGE - rest, rest];
            let each = |(other, bytes): (&Other, u64)| {
                let group = group.clone();
                other.run(move || hold(&group, StatKey::KERNEL, 0, bytes))
            };
            others.iter().zip(bytes).map(each).collect()
        };
        let held = park(&group);
        assert_eq!((group.usage(), group.live()), (2 * PAGE, PAGE));
        group.memory().drain();
        assert_eq!(
            (
                group.usage(),
                group
                    .numa_stat(StatKey::KERNEL, Freshness::Exact)
                    .get(node(0))
            ),
            (PAGE, PAGE.cast_signed())
        );
        drop(held);
        group.memory().drain();
        assert_eq!((group.usage(), root.usage()), (0, 0));
        // The same, released instead of drained, the guards freed by neither of the two.
        let held = park(&group);
        group.offline().expect("no children");
        drop((group, held));
        runtime.settle();
        assert_eq!(
            (
                root.usage(),
                runtime.dying_count(),
                root.numa_stat(StatKey::KERNEL, Freshness::Exact).sum()
            ),
            (0, 0, 0)
        );
        assert_groups_sound(&runtime);
    }
}

/// 2 nodes, 4 processors by halves, units of 64 bytes, 16 bytes kept for every 4 of them: 64 x 4 +
/// 16 x 16 = 512 bytes. The kernel precharges ceil(512 / page) + a page for each node, 3 pages.
/// Here the bound is what it says, 512 bytes; also of 3 pages all but 512 bytes go back. The
/// metadata is where it lives, and after the free all nodes are at 0.
#[test]
fn s078_percpu_by_node() {
    let machine =
        Topology::fixed([(node(0), [0, 1]), (node(1), [2, 3])]).expect("nodes that differ");
    let runtime = bare_groups()
        .topology(machine.clone())
        .build()
        .expect("a configuration");
    let group = create(&runtime.root(), "q", Limits::new());
    let bound = Placement::bound(Layout::new::<[u8; 64 * 4]>()).with_metadata(64 / 4 * 16);
    assert_eq!((bound.bytes(), 512_u64.div_ceil(PAGE) + 2), (512, 3));
    for (bound, metadata) in [
        (bound.clone(), 0),
        (bound, 1),
        (PrechargeBound::from(Bytes(3 * PAGE)), 1),
    ] {
        let precharge = group.precharge(bound.clone()).expect("no limits");
        assert_eq!(
            (
                group.usage(),
                group.numa_stat(StatKey::PERCPU, Freshness::Exact).sum()
            ),
            (bound.bytes(), 0),
            "admitted, and no more"
        );
        let mut placement = Placement::new();
        for processor in 0..machine.processor_count() {
            placement.add(machine.node_of_processor(processor), 64);
        }
        placement.add(Some(node(metadata)), 256);
        let kmem = precharge.account_as(StatKey::PERCPU, &placement);
        let mut expected = [128, 128];
        expected[usize::from(metadata)] += 256;
        let now = group.numa_stat(StatKey::PERCPU, Freshness::Exact);
        assert_eq!(
            ([node(0), node(1)].map(|of| now.get(of)), now.sum()),
            (expected, 512)
        );
        assert_eq!(
            (kmem.bytes(), group.usage()),
            (512, 512),
            "the rest went back"
        );
        drop(kmem);
        let now = group.numa_stat(StatKey::PERCPU, Freshness::Exact);
        assert_eq!(
            ([node(0), node(1)].map(|of| now.get(of)), group.usage()),
            ([0, 0], 0)
        );
    }
    assert_groups_sound(&runtime);
}

/// A node without processors that holds nothing but metadata shows its bytes, and goes back to 0.
#[test]
fn s080_a_node_with_metadata_alone() {
    let machine = [
        (node(0), vec![0, 1]),
        (node(1), vec![2, 3]),
        (node(4), vec![]),
    ];
    let machine = Topology::fixed(machine).expect("nodes that differ");
    assert!(!machine.has_processors(node(4)));
    let runtime = adaptive_groups()
        .topology(machine)
        .build()
        .expect("a configuration");
    let group = create(&runtime.root(), "q", Limits::new());
    let mut placement = Placement::new();
    for (of, bytes) in [(0, 128), (1, 128), (4, 256)] {
        placement.add(Some(node(of)), bytes);
    }
    let kmem = group.precharge(512).expect("no limits").account(&placement);
    for of in [&group, &runtime.root()] {
        assert_eq!(
            of.numa_stat(StatKey::KERNEL, Freshness::Exact).to_string(),
            "N0=128 N1=128 N4=256"
        );
    }
    drop(kmem);
    for of in [&group, &runtime.root()] {
        assert_eq!(
            of.numa_stat(StatKey::KERNEL, Freshness::Exact).to_string(),
            "N0=0 N1=0 N4=0"
        );
    }
    assert_groups_sound(&runtime);
}
