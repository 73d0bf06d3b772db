//! Objects with a copy for each processor, charged and accounted to the nodes where they lie.

#![cfg(not(loom))]

use std::alloc::Layout;
use std::hint::black_box;

use memcg::kmem::{NodeId, NodeOf, PageNode, Topology};
use memcg::{Group, Runtime};
use memcg_bench_rows::instructions::counted;
use memcg_kmem::{PerCpuAllocator, PerCpuShape};

const PROCESSORS: usize = 8;

/// Says that the pages of a look-up lie on the nodes in turn, as the copies of processors do.
struct InTurn(u16);

impl NodeOf for InTurn {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
        for (node, found) in (0..self.0).cycle().zip(found) {
            *found = PageNode::On(NodeId::new(node));
        }
    }
}

/// Objects on so many nodes that come and go, charged to a group or to none.
pub(super) fn objects(nodes: u16, are_charged: bool, objects: u64) {
    let of = |node: u16| (usize::from(node)..PROCESSORS).step_by(nodes.into());
    let topology = Topology::fixed((0..nodes).map(|node| (NodeId::new(node), of(node))))
        .expect("each processor once");
    let runtime = Runtime::builder()
        .topology(topology)
        .node_of(InTurn(nodes))
        .build()
        .expect("nothing is asked for that cannot be had");
    let group = runtime.root();
    let allocator =
        PerCpuAllocator::new(&group, PerCpuShape::new()).expect("a default shape is small");
    let come_and_go = if are_charged { charged } else { uncharged };
    come_and_go(&allocator, &group, 1_000);
    counted(|| come_and_go(&allocator, &group, objects));
}

const LAYOUT: Layout = Layout::new::<[u64; 8]>();

#[inline(never)]
fn charged(allocator: &PerCpuAllocator, group: &Group, objects: u64) {
    for _ in 0..objects {
        drop(black_box(
            allocator
                .allocate(black_box(LAYOUT), group)
                .expect("no limit is set"),
        ));
    }
}

#[inline(never)]
fn uncharged(allocator: &PerCpuAllocator, _: &Group, objects: u64) {
    for _ in 0..objects {
        drop(black_box(
            allocator
                .allocate_uncharged(black_box(LAYOUT))
                .expect("there is memory"),
        ));
    }
}
