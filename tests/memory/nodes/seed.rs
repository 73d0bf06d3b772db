//! The functional test of "per-memcg-per-node kmem accounting" (Ghiti, 2026): eight nodes of which
//! two have processors. For each allocation every node is charged, and later uncharged, the same
//! bytes, also one without processors that ends up holding nothing but metadata; nothing is left in
//! the end.

use memcg::Group;
use memcg::kmem::{Kmem, NodeOf, PageNode, Placement, PrechargeBound, Topology};

use super::{Other, assert_machine_shape, assert_sums, left_empty, local, node, on};
use crate::support::trees::{build, create};

const PROCESSORS: usize = 16;
const NODES: usize = 8;

/// Nodes 0 and 1 have the processors, by halves; 2 to 7 have memory only.
fn machine() -> Topology {
    let half = PROCESSORS / 2;
    let processors = |number: usize| {
        if number < 2 {
            number * half..(number + 1) * half
        } else {
            0..0
        }
    };
    Topology::fixed((0..NODES).map(|number| (node(number as u16), processors(number))))
        .expect("nodes that differ")
}

/// A chunk's pages: each processor's unit on the processor's own node, the metadata behind them on
/// a node of its own.
struct Chunk {
    unit: usize,
    topology: Topology,
    metadata: u16,
}

const BASE: usize = 1 << 30;
const PAGE: usize = 4_096;

impl Chunk {
    fn metadata_at(&self) -> usize {
        BASE + PROCESSORS * self.unit
    }
}

impl NodeOf for Chunk {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        for (&page, found) in pages.iter().zip(found) {
            let of = self
                .topology
                .node_of_processor((page - BASE) / self.unit)
                .unwrap_or(node(self.metadata));
            let on = if page < self.metadata_at() {
                of
            } else {
                node(self.metadata)
            };
            *found = PageNode::On(on);
        }
    }
}

/// An object of so many bytes at an offset into each unit, and its slots in the metadata.
fn allocate(group: &Group, chunk: &Chunk, at: usize, size: usize) -> Kmem {
    let metadata = size / 4 * 8;
    let bound = PrechargeBound::from(size * PROCESSORS).with_metadata(metadata);
    let precharge = group.precharge(bound).expect("room");
    let mut placement = Placement::new();
    for processor in 0..PROCESSORS {
        let copy = BASE + processor * chunk.unit + at;
        placement.add_range(copy..copy + size, chunk);
    }
    let slots = chunk.metadata_at() + at / 4 * 8;
    placement.add_range(slots..slots + metadata, chunk);
    assert_eq!(placement.bytes(), precharge.bytes(), "to the byte");
    precharge.account(&placement)
}

#[test]
fn seed_functional_8_nodes() {
    for builder in crate::support::trees::kinds() {
        let runtime = left_empty(build(builder.topology(machine())));
        assert_machine_shape(runtime.topology(), 2, NODES);
        let root = runtime.root();
        let group = create(&root, "q");
        let others = [Other::spawn(), Other::spawn()];
        for metadata in 0..NODES as u16 {
            let chunk = Chunk {
                unit: 64 << 10,
                topology: machine(),
                metadata,
            };
            let mut expected = [0_i64; NODES];
            let mut held = Vec::new();
            // The sizes of the patch series, and one that straddles two pages of its unit.
            for (at, size) in [
                (0, 64),
                (64, 256),
                (512, 1_024),
                (4_096, 4_096),
                (8_192, 8_192),
                (PAGE * 5 - 32, 64),
            ] {
                let kmem = allocate(&group, &chunk, at, size);
                let data = (size * PROCESSORS / 2) as i64;
                let mut of_this = [0; NODES];
                of_this[0] += data;
                of_this[1] += data;
                of_this[usize::from(metadata)] += (size / 4 * 8) as i64;
                (0..NODES).for_each(|of| expected[of] += of_this[of]);
                assert_eq!(
                    (on(&root), on(&group), local(&group)),
                    (expected, expected, expected)
                );
                assert!((0..NODES).all(
                    |of| kmem.placement().on_node(node(of as u16)).cast_signed() == of_this[of]
                ));
                assert_eq!(
                    (group.live(), group.forced()),
                    (expected.iter().sum::<i64>().cast_unsigned(), 0)
                );
                held.push((kmem, of_this));
            }
            assert_sums(&runtime);
            // Freed by others, in another order.
            for number in 0..held.len() {
                let (kmem, of_this) = held.swap_remove(held.len() / 2);
                others[number % 2].run(move || drop(kmem));
                (0..NODES).for_each(|of| expected[of] -= of_this[of]);
                assert_eq!((on(&root), on(&group)), (expected, expected));
            }
            assert_eq!((expected, group.live()), ([0; NODES], 0), "nothing is left");
        }
    }
}
