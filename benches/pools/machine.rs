//! Machines that are not at hand: nodes by table. Where one is not there, its memory is this
//! machine's.

#![cfg(not(loom))]

use memcg::footprint::PoolAlign;
use memcg::kmem::{Kmem, NodeId, Placement, Topology};
use memcg::{Bytes, Group, Limits, Runtime};

/// Numbers of their nodes.
pub(crate) const NODES: [u16; 3] = [1, 2, 8];

pub(crate) const ALIGNS: [PoolAlign; 2] = [PoolAlign::CacheLine, PoolAlign::Packed];

/// Bytes on each node.
const BYTES: usize = 64;

pub(crate) fn runtime(nodes: u16, align: PoolAlign) -> Runtime {
    let topology = Topology::fixed((0..nodes).map(|node| (NodeId::new(node), [usize::from(node)])));
    let builder = Runtime::builder()
        .topology(topology.expect("each processor once"))
        .pool_align(align);
    builder.build().expect("memory for a root")
}

pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).expect("a new name")
}

/// Charge the group for memory on every node.
pub(crate) fn hold(group: &Group, nodes: u16) -> Kmem {
    let mut placement = Placement::new();
    (0..nodes).for_each(|node| placement.add(Some(NodeId::new(node)), BYTES));
    group
        .precharge(Bytes(placement.bytes()))
        .expect("no limit")
        .account(&placement)
}
