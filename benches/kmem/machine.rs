//! A machine that is not at hand: its processors and nodes, and where its memory is said to lie.
//! The memory itself is this machine's, and the library is driven as it would be there.

#![cfg(not(loom))]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use memcg::kmem::{NodeId, NodeOf, PageNode, Topology};
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_kmem::{PerCpuAllocator, PerCpuBytes};

use super::walk::Walk;

/// Credit that a thread keeps: objects of such machines are charged 6 KiB to 1.4 MiB, and what is
/// beyond a batch always goes up the tree, accounted by node or not.
pub(crate) const BATCH: Bytes = Bytes(4 << 20);

/// The parts of a machine.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Model {
    pub(crate) nodes: u16,
    pub(crate) processors: usize,
    /// Nodes that have processors.
    with_processors: u16,
    /// The node of metadata.
    metadata: u16,
}

/// The series' first machine, its second, and the one of its functional test, as large as the
/// first.
pub(crate) const NODES1: Model = Model {
    nodes: 1,
    processors: 176,
    with_processors: 1,
    metadata: 0,
};
pub(crate) const NODES2: Model = Model {
    nodes: 2,
    processors: 80,
    with_processors: 2,
    metadata: 1,
};
pub(crate) const NODES8: Model = Model {
    nodes: 8,
    processors: 176,
    with_processors: 2,
    metadata: 5,
};
pub(crate) const MODELS: [Model; 3] = [NODES1, NODES2, NODES8];

impl Model {
    /// Two nodes, so many processors.
    pub(crate) const fn with_processors(processors: usize) -> Model {
        Model {
            processors,
            ..NODES2
        }
    }

    pub(crate) fn node_of(&self, processor: usize) -> u16 {
        let each = self.processors.div_ceil(usize::from(self.with_processors));
        (processor / each) as u16
    }

    fn topology(&self) -> Topology {
        let of =
            |node| (0..self.processors).filter(move |processor| self.node_of(*processor) == node);
        Topology::fixed((0..self.nodes).map(|node| (NodeId::new(node), of(node))))
            .expect("each processor once")
    }
}

/// Ranges of addresses, by start, with end and node.
#[derive(Clone, Default)]
struct Said(Arc<RwLock<BTreeMap<usize, (usize, NodeId)>>>);

impl NodeOf for Said {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (page, found) in pages.iter().zip(found) {
            *found = match ranges.range(..=*page).next_back() {
                Some((_, (end, node))) if page < end => PageNode::On(*node),
                _ => PageNode::Untouched,
            };
        }
    }
}

/// A machine, and what each way of accounting needs of it.
pub(crate) struct Machine {
    pub(crate) model: Model,
    pub(crate) group: Group,
    pub(crate) allocator: PerCpuAllocator,
    /// Nodes by page, as the kernel finds them.
    pub(crate) walk: Walk,
    /// Nodes by unit and page of it, and of the metadata behind all units.
    pub(crate) cache: Vec<u8>,
    /// The addresses where units and metadata begin.
    pub(crate) data: usize,
    pub(crate) words: usize,
    pub(crate) unit: usize,
    _runtime: Runtime,
}

impl Machine {
    pub(crate) fn new(model: Model) -> Machine {
        let said = Said::default();
        let machine = Runtime::builder()
            .topology(model.topology())
            .node_of(said.clone());
        let runtime = machine.batch(BATCH).build().expect("no limit");
        let group = runtime
            .root()
            .create("tenant", Limits::new())
            .expect("a name");
        let allocator = PerCpuAllocator::of(&group).expect("a default shape");
        let shape = allocator.shape();
        let unit = allocator.shape().unit();
        // The first object of a chunk shows where it begins.
        let first = allocator
            .allocate(Layout::new::<u8>(), &group)
            .expect("no limit");
        let data = first.as_ptr(0).expect("a processor").addr().get();
        let words = first.metadata().start;
        let words_len = unit / shape.granule() * shape.word();
        let mut walk = Walk::new();
        let mut cache = Vec::new();
        let mut says = |range: Range<usize>, node: u16| {
            said.0
                .write()
                .expect("no thread panics")
                .insert(range.start, (range.end, NodeId::new(node)));
            cache.extend((0..range.len().div_ceil(4_096)).map(|_| node as u8));
            walk.set(range, node);
        };
        for processor in 0..model.processors {
            let start = data + processor * unit;
            says(start..start + unit, model.node_of(processor));
        }
        says(words..words + words_len, model.metadata);
        allocator.migrated(0..usize::MAX);
        let machine = Machine {
            model,
            group,
            allocator,
            walk,
            cache,
            data,
            words,
            unit,
            _runtime: runtime,
        };
        machine.check(&first);
        machine
    }

    /// The library sees what is said.
    fn check(&self, first: &PerCpuBytes) {
        let placement = first.placement();
        assert_eq!(
            (placement.bytes(), placement.unplaced()),
            (self.full_size(8), 0)
        );
        assert!(placement.on_node(NodeId::new(self.model.metadata)) >= 8);
        for node in 0..self.model.nodes {
            let copies = (0..self.model.processors)
                .filter(|processor| self.model.node_of(*processor) == node);
            let words = if node == self.model.metadata { 8 } else { 0 };
            assert_eq!(
                placement.on_node(NodeId::new(node)),
                8 * copies.count() as u64 + words
            );
        }
    }

    /// The charge of an object of so many bytes, whole granules.
    pub(crate) fn full_size(&self, size: usize) -> u64 {
        let shape = self.allocator.shape();
        (size * self.model.processors + size / shape.granule() * shape.word()) as u64
    }

    pub(crate) fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).expect("small")
    }
}
