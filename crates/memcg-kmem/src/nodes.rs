//! Looks up the nodes of pages by a group's runtime.

use memcg::kmem::{NodeId, Placement, Topology, look_up_each};
use memcg::{Bytes, ChargeError, Group};
use smallvec::SmallVec;

/// Pages that are looked up at a time. Their nodes lie on the stack.
pub(crate) const BATCH: usize = 64;

/// The nodes of pages, at most [`BATCH`] of them. Calls foreign code: the thread holds no lock, and
/// the pages stay.
pub(crate) fn look_up(
    group: &Group,
    addresses: impl Iterator<Item = usize>,
) -> SmallVec<[Option<NodeId>; BATCH]> {
    let mut nodes = SmallVec::new();
    look_up_each(&**memcg::kmem::node_of(group), addresses, |found| {
        nodes.push(found.node())
    });
    nodes
}

/// The place of a node among the possible ones, with the node. A node that the topology does not
/// have is its first.
pub(crate) fn place_of(topology: &Topology, node: NodeId) -> (usize, NodeId) {
    let mut nodes = topology.nodes();
    let first = nodes.next().unwrap_or(node);
    if first == node {
        return (0, first);
    }
    nodes
        .position(|of| of == node)
        .map_or((0, first), |at| (at + 1, node))
}

/// The node at a place among the possible ones.
pub(crate) fn node_at(topology: &Topology, place: usize) -> Option<NodeId> {
    topology.nodes().nth(place)
}

/// So many bytes, on a node or on none.
#[inline]
pub(crate) fn placed(node: Option<NodeId>, bytes: u64) -> Placement {
    let mut placement = Placement::new();
    placement.add(node, Bytes(bytes));
    placement
}

/// Refuses a group of another runtime.
pub(crate) fn check_runtime(from: &Group, to: &Group) -> Result<(), ChargeError> {
    if std::ptr::eq(Topology::of(from), Topology::of(to)) {
        return Ok(());
    }
    // A charge of no bytes is not moved there either.
    from.force_charge(0).transfer(to)
}
