//! Looks up the nodes of pages by a group's runtime.

use memcg::kmem::{NodeId, NodeOf, PageNode, Placement, Topology};
use memcg::{Bytes, ChargeError, Group};
use smallvec::SmallVec;

/// Pages in one look-up. The batch lies on the stack.
pub(crate) const BATCH: usize = 64;

/// Looks up the page of each address, in batches, and calls `each` with the answers in turn. Calls foreign code: the
/// thread holds no lock.
pub(crate) fn look_up_each(
    node_of: &dyn NodeOf,
    mut addresses: impl Iterator<Item = usize>,
    mut each: impl FnMut(PageNode),
) {
    let size = node_of.page_size().max(1);
    loop {
        let (mut pages, mut found) = ([0; BATCH], [PageNode::Untouched; BATCH]);
        let mut many = 0;
        for (page, address) in pages.iter_mut().zip(&mut addresses) {
            *page = address - address % size;
            many += 1;
        }
        if many == 0 {
            return;
        }
        node_of.look_up(&pages[..many], &mut found[..many]);
        found[..many].iter().copied().for_each(&mut each);
    }
}

/// The nodes of pages, at most [`BATCH`] of them. Calls foreign code: the thread holds no lock, and the pages stay.
pub(crate) fn look_up(group: &Group, addresses: impl Iterator<Item = usize>) -> SmallVec<[Option<NodeId>; BATCH]> {
    let mut nodes = SmallVec::new();
    look_up_each(&**memcg::kmem::node_of(group), addresses, |found| nodes.push(found.node()));
    nodes
}

/// The place of a node among the possible ones, with the node. A node that the topology does not have is its first.
pub(crate) fn place_of(topology: &Topology, node: NodeId) -> (usize, NodeId) {
    let mut nodes = topology.nodes();
    let first = nodes.next().unwrap_or(node);
    if first == node {
        return (0, first);
    }
    nodes.position(|of| of == node).map_or((0, first), |at| (at + 1, node))
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
    Err(ChargeError::OtherRuntime { from: from.clone(), to: to.clone() })
}
