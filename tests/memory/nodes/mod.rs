//! Memory on nodes as a program that embeds the library meets it: admitted first, accounted where
//! it lies, taken off where it was accounted.
//!
//! * `gather`: where the bytes of a range lie; `precharge`: admission; `account`: what becomes of
//!   it;
//! * `transfer`: another group's;
//! * `figures`: what is read, by which readers, how exactly; `items`: which items; `updates`: how
//!   much is written for it;
//! * `offline`: groups that go meanwhile; `released`: what released groups leave to the next groups
//!   in their objects;
//! * `packed`: accounts in a few words;
//! * `tiers`: counters of some nodes; `reclaim`: what gives way; `members`: threads that others
//!   move;
//! * `seed`: two nodes with processors, six without; `model`: any operations on any machine,
//!   against a naive twin;
//! * `threads`: many threads at once.

mod account;
mod figures;
mod gather;
mod items;
mod members;
mod model;
mod offline;
mod packed;
mod precharge;
mod reclaim;
mod released;
mod seed;
mod threads;
mod tiers;
mod transfer;
mod updates;

use memcg::kmem::{Kmem, NodeId, NodeStats, Placement, Topology};
use memcg::{Bytes, Freshness, Group, Runtime, RuntimeBuilder, StatKey};

use crate::support::trees;
use crate::support::trees::LeftEmpty;
pub(crate) use crate::support::workers::Other;

pub(crate) const fn node(number: u16) -> NodeId {
    NodeId::new(number)
}

/// Nodes of these numbers, with one processor each.
#[track_caller]
pub(crate) fn machine(nodes: &[u16]) -> Topology {
    let nodes = nodes
        .iter()
        .enumerate()
        .map(|(processor, &number)| (node(number), [processor]));
    Topology::fixed(nodes).expect("nodes that differ")
}

/// So many nodes, of which some have processors.
#[track_caller]
pub(crate) fn assert_machine_shape(machine: &Topology, with_processors: usize, nodes: usize) {
    assert_eq!(machine.nodes().len(), nodes);
    assert_eq!(
        machine
            .nodes()
            .filter(|&of| machine.has_processors(of))
            .count(),
        with_processors
    );
}

/// Bytes by node.
pub(crate) fn placed(nodes: &[(u16, u64)]) -> Placement {
    let mut placement = Placement::new();
    nodes
        .iter()
        .for_each(|&(number, bytes)| placement.add(Some(node(number)), Bytes(bytes)));
    placement
}

/// Bytes by node, and on none.
pub(crate) fn scattered(nodes: &[(u16, u64)], unplaced: u64) -> Placement {
    let mut placement = placed(nodes);
    placement.add(None, Bytes(unplaced));
    placement
}

/// Precharge just these, and account them.
#[track_caller]
pub(crate) fn hold(group: &Group, placement: &Placement) -> Kmem {
    group
        .precharge(Bytes(placement.bytes()))
        .expect("room")
        .account(placement)
}

/// Of the subtree, on nodes 0 to `N` - 1, exactly.
pub(crate) fn on<const N: usize>(group: &Group) -> [i64; N] {
    let now = group.numa_stat(StatKey::KERNEL, Freshness::Exact);
    assert_eq!(now.max_error(), 0);
    std::array::from_fn(|number| now.get(node(number as u16)))
}

/// The same of the group alone.
pub(crate) fn local<const N: usize>(group: &Group) -> [i64; N] {
    let now = group.numa_stat(StatKey::KERNEL, Freshness::Exact);
    std::array::from_fn(|number| now.local(node(number as u16)))
}

/// Nodes and what is on none are the item's sum, for every item of every group.
#[track_caller]
pub(crate) fn assert_sums(runtime: &Runtime) {
    let items: Vec<StatKey> = runtime.items().map(|item| item.stat).collect();
    for group in runtime
        .root()
        .inspect()
        .descendants()
        .chain([runtime.root()])
    {
        for &item in &items {
            let by_node = group.numa_stat(item, Freshness::Exact);
            let whole = group.read(Freshness::Exact);
            assert_eq!(
                by_node.sum(),
                whole.get(item),
                "{item:?} of {}",
                group.path()
            );
            let sum = by_node.iter().map(|(_, bytes)| bytes).sum::<i64>() + by_node.unplaced();
            assert_eq!(by_node.sum(), sum, "{item:?} of {}", group.path());
        }
    }
}

/// All has been given back: no group, no byte on any node, none of any item.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    trees::assert_empty(runtime);
    let root = runtime.root();
    for item in runtime.items().filter(|item| item.per_node) {
        assert_zero(&root.numa_stat(item.stat, Freshness::Exact));
        assert_eq!(
            root.read(Freshness::Exact).get(item.stat),
            0,
            "{}",
            item.name
        );
    }
}

#[track_caller]
pub(crate) fn assert_zero(now: &NodeStats) {
    assert!(
        now.iter().all(|(_, bytes)| bytes == 0) && now.unplaced() == 0,
        "{now} and {} on none",
        now.unplaced()
    );
}

/// Every kind of stock, with announcements seldom and at each write, on so many nodes.
pub(crate) fn kinds(nodes: usize) -> impl Iterator<Item = RuntimeBuilder> {
    let batches = [None, Some(0), Some(8)];
    trees::kinds()
        .into_iter()
        .zip(batches)
        .map(move |(builder, batch)| {
            let builder = builder.nodes(nodes);
            batch.map_or(builder.clone(), |batch| builder.stat_batch(batch))
        })
}

impl Other {
    /// Holds there.
    pub(crate) fn hold(&self, group: &Group, placement: &Placement) -> Kmem {
        let group = group.clone();
        let placement = placement.clone();
        self.run(move || hold(&group, &placement))
    }
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    LeftEmpty::by(assert_empty, runtime)
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes(nodes: usize) -> impl Iterator<Item = LeftEmpty> {
    kinds(nodes).map(|builder| left_empty(trees::build(builder)))
}
