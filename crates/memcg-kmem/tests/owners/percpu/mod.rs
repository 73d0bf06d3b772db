//! Per-processor memory: what each object is charged, on which node each of its bytes is accounted,
//! and that all of it goes back. Where pages lie says a table, but for one test that asks this
//! machine.
//!
//! * here: objects, their chunks and their values; `moves`: pages that move and groups that go;
//!   `refusals`: what does not fit.

mod moves;
mod refusals;

use std::alloc::Layout;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use memcg::kmem::{MovePages, NodeId, NodeOf, OneNode, PageNode, Topology};
use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use memcg_kmem::{NodeTable, PerCpu, PerCpuAllocator, PerCpuBytes, PerCpuShape};

const PAGE: usize = 4_096;

fn node(number: u16) -> NodeId {
    NodeId::new(number)
}

fn bytes_of(size: usize) -> Layout {
    Layout::from_size_align(size, 4).expect("small")
}

/// A table of nodes that a runtime and a test share.
#[derive(Clone)]
struct Told(Arc<NodeTable>);

impl NodeOf for Told {
    fn page_size(&self) -> usize {
        self.0.page_size()
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        self.0.look_up(pages, found);
    }
}

/// A machine that the table makes up.
struct World {
    runtime: Runtime,
    group: Group,
    allocator: PerCpuAllocator,
    table: Told,
    /// The addresses where the first chunk begins: units and words.
    data: usize,
    words: usize,
}

impl World {
    /// The nodes of processors in order, and how many nodes there are.
    fn new(processors: &[u16], nodes: u16, shape: PerCpuShape) -> World {
        let of = |node: u16| {
            (0..processors.len()).filter(move |processor| processors[*processor] == node)
        };
        let topology = Topology::fixed((0..nodes).map(|number| (node(number), of(number))))
            .expect("one node each");
        let table = Told(Arc::new(NodeTable::new(PAGE)));
        let runtime = Runtime::builder()
            .topology(topology)
            .node_of(table.clone())
            .build()
            .expect("no limit");
        let group = runtime
            .root()
            .create("tenant", Limits::new())
            .expect("a name");
        let allocator = PerCpuAllocator::new(&group, shape).expect("a small shape");
        // The first object of a chunk shows where it begins.
        let first = allocator
            .allocate_uncharged(Layout::new::<u8>())
            .expect("memory");
        let data = address(&first, 0);
        let words = first.metadata().start;
        drop(first);
        World {
            runtime,
            group,
            allocator,
            table,
            data,
            words,
        }
    }

    /// Each unit on its processor's node, the metadata on another.
    fn placed(processors: &[u16], nodes: u16, metadata: u16, shape: PerCpuShape) -> World {
        let world = World::new(processors, nodes, shape);
        for (processor, of) in processors.iter().enumerate() {
            world.table.0.set(world.unit(processor), node(*of));
        }
        world.table.0.set(world.all_words(), node(metadata));
        world.allocator.migrated(0..usize::MAX);
        world
    }

    fn unit(&self, processor: usize) -> Range<usize> {
        let start = self.data + processor * self.allocator.shape().unit();
        start..start + self.allocator.shape().unit()
    }

    fn all_words(&self) -> Range<usize> {
        let shape = self.allocator.shape();
        self.words..self.words + shape.unit() / shape.granule() * shape.word()
    }

    fn allocate(&self, size: usize) -> PerCpuBytes {
        self.allocator
            .allocate(bytes_of(size), &self.group)
            .expect("no limit")
    }

    /// The bytes accounted on each node, and on none.
    fn accounted(&self) -> (Vec<i64>, i64) {
        accounted(&self.group)
    }

    fn nothing_is_left(&self) {
        let (nodes, unplaced) = accounted(&self.runtime.root());
        assert!(
            nodes.iter().all(|bytes| *bytes == 0) && unplaced == 0,
            "{nodes:?}, {unplaced}"
        );
        assert_eq!(self.runtime.root().live(), 0);
    }
}

fn accounted(group: &Group) -> (Vec<i64>, i64) {
    let now = group.numa_stat(StatKey::PERCPU, Freshness::Exact);
    (now.iter().map(|(_, bytes)| bytes).collect(), now.unplaced())
}

fn address(bytes: &PerCpuBytes, processor: usize) -> usize {
    bytes.as_ptr(processor).expect("a processor").addr().get()
}

/// The copy of a processor as it is.
#[allow(unsafe_code)]
fn content(bytes: &PerCpuBytes, processor: usize) -> &[u8] {
    let copy = bytes.as_ptr(processor).expect("a processor");
    // SAFETY: as many bytes, which no group writes.
    unsafe { std::slice::from_raw_parts(copy.as_ptr(), bytes.size()) }
}

#[allow(unsafe_code)]
fn fill(bytes: &PerCpuBytes, with: u8) {
    for copy in (0..bytes.processor_count()).filter_map(|processor| bytes.as_ptr(processor)) {
        // SAFETY: as many bytes, which are this test's alone.
        unsafe { copy.write_bytes(with, bytes.size()) };
    }
}

// === To the byte ===

/// Statement 78 of the conformance list: what the kernel rounds to three pages of precharge is 512
/// bytes here.
#[test]
fn an_object_is_charged_its_copies_and_its_own_words() {
    let shape = PerCpuShape::new().with_granule(4).with_word(16);
    let world = World::placed(&[0, 0, 1, 1], 2, 1, shape);
    let object = world.allocate(64);
    assert_eq!(object.charged(), 64 * 4 + 64 / 4 * 16);
    assert_eq!(
        (object.charged(), world.group.live()),
        (512, 512),
        "nothing that is precharged stays"
    );
    assert_eq!(world.accounted(), (vec![128, 128 + 256], 0));
    assert_eq!(
        (
            object.placement().on_node(node(0)),
            object.placement().on_node(node(1))
        ),
        (128, 384)
    );
    assert_eq!(world.group.read(Freshness::Exact).get(StatKey::PERCPU), 512);
    drop(object);
    assert_eq!(world.accounted(), (vec![0, 0], 0));
    world.nothing_is_left();
}

/// The functional test of the patch series: two nodes with processors, six without, one of which
/// holds the metadata. For each allocation every node is charged and later uncharged the same
/// bytes, and nothing is left after teardown.
#[test]
fn seed_functional_8_nodes() {
    let world = World::placed(&[0, 1, 0, 1, 0, 1], 8, 5, PerCpuShape::new());
    let mut held = Vec::new();
    for size in [1, 8, 9, 64, 100, 256, 1_024, 4_000, 4_096, 8_192, 8, 3] {
        let before = world.accounted();
        let object = world.allocate(size);
        let rounded = size.next_multiple_of(8) as i64;
        let after = world.accounted();
        let charged: Vec<i64> = after
            .0
            .iter()
            .zip(&before.0)
            .map(|(after, before)| after - before)
            .collect();
        assert_eq!(
            charged,
            [3 * rounded, 3 * rounded, 0, 0, 0, rounded, 0, 0],
            "{size} B"
        );
        assert_eq!((after.1, object.charged() as i64), (0, 7 * rounded));
        drop(object);
        assert_eq!(world.accounted(), before, "{size} B");
        held.push(world.allocate(size));
    }
    let sum: u64 = held.iter().map(PerCpuBytes::charged).sum();
    assert_eq!(
        (world.group.live(), world.accounted().0.iter().sum::<i64>()),
        (sum, sum as i64)
    );
    assert!(
        world.accounted().0[5] > 0,
        "a node that holds metadata alone"
    );
    while !held.is_empty() {
        held.swap_remove(held.len() / 2);
    }
    world.nothing_is_left();
}

#[test]
fn an_object_that_straddles_pages_is_split_where_one_ends() {
    let world = World::new(&[0, 1, 2], 4, PerCpuShape::new());
    for processor in 0..3 {
        // The first page of each unit at home, the rest on node 3.
        let unit = world.unit(processor);
        world.table.0.set(unit.clone(), node(3));
        world
            .table
            .0
            .set(unit.start..unit.start + PAGE, node(processor as u16));
    }
    // As many words as granules: the same page of metadata ends there.
    world.table.0.set(world.all_words(), node(1));
    world.table.0.set(world.words..world.words + PAGE, node(0));
    world
        .allocator
        .migrated(world.unit(0).start..world.unit(2).end);
    world.allocator.migrated(world.all_words());
    let below = world.allocate(PAGE - 96);
    let before = world.accounted().0;
    assert_eq!(
        before,
        [
            2 * (PAGE as i64 - 96),
            PAGE as i64 - 96,
            PAGE as i64 - 96,
            0
        ]
    );
    let straddling = world.allocate(200);
    let charged: Vec<i64> = world
        .accounted()
        .0
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(address(&straddling, 0), world.data + PAGE - 96);
    assert_eq!(charged, [96 + 96, 96 + 104, 96, 3 * 104]);
    drop(below);
    drop(straddling);
    world.nothing_is_left();
}

#[test]
fn more_places_than_a_short_list_has() {
    let world = World::placed(&[0, 1, 2, 3, 4, 5, 6, 7], 9, 8, PerCpuShape::new());
    let objects: Vec<_> = (0..100).map(|_| world.allocate(64)).collect();
    assert_eq!(world.accounted(), (vec![6_400; 9], 0));
    drop(objects);
    world.nothing_is_left();
}

#[test]
fn copies_are_zeroed_and_their_own() {
    let world = World::placed(&[0, 1], 2, 0, PerCpuShape::new());
    let mut seen = Vec::new();
    for round in 1..=3_u8 {
        let objects: Vec<_> = [24, 100, 8].map(|size| world.allocate(size)).into();
        for object in &objects {
            assert!(
                (0..2).all(|processor| content(object, processor).iter().all(|byte| *byte == 0))
            );
            fill(object, round);
            seen.push(address(object, 0));
        }
        let others_intact =
            |object: &PerCpuBytes| content(object, 1).iter().all(|byte| *byte == round);
        assert!(objects.iter().all(others_intact));
    }
    assert_eq!(seen[..3], seen[3..6], "the same granules again");
    world.nothing_is_left();
}

// === Chunks ===

#[test]
fn chunks_come_and_go() {
    let world = World::placed(&[0, 1], 2, 0, PerCpuShape::new().with_unit(PAGE));
    let many = 3 * PAGE / 512;
    let mut objects: Vec<_> = (0..many).map(|_| world.allocate(512)).collect();
    assert_eq!(world.allocator.chunk_count(), 3);
    // No group has said where the others lie.
    let (nodes, unplaced) = world.accounted();
    assert_eq!(
        (nodes, unplaced),
        (vec![2 * PAGE as i64, PAGE as i64], 2 * 3 * PAGE as i64)
    );
    objects.truncate(PAGE / 512 + 1);
    assert_eq!(
        (world.allocator.chunk_count(), world.allocator.trim()),
        (3, 1),
        "an empty one stays for a group that comes next"
    );
    drop(objects);
    assert_eq!(world.allocator.chunk_count(), 1);
    assert_eq!(
        (world.allocator.trim(), world.allocator.chunk_count()),
        (1, 0)
    );
    world.nothing_is_left();
    drop(world.allocate(8));
    world.nothing_is_left();
}

/// Mapped again, memory lies elsewhere: what was known of a chunk goes with it.
#[test]
fn a_new_chunk_is_looked_up_anew() {
    let world = World::placed(&[0, 1], 2, 0, PerCpuShape::new());
    drop(world.allocate(8));
    assert_eq!(world.allocator.trim(), 1);
    world.table.0.set(0..usize::MAX, node(1));
    let object = world.allocate(8);
    assert_eq!(world.accounted(), (vec![0, 24], 0));
    drop(object);
    world.nothing_is_left();
}

#[test]
fn what_is_known_is_not_asked_again() {
    let world = World::placed(&[0, 1], 2, 0, PerCpuShape::new());
    let asked = world.table.0.call_count();
    let objects: Vec<_> = (0..50).map(|_| world.allocate(100)).collect();
    drop(objects);
    assert_eq!(world.table.0.call_count(), asked);
    world
        .allocator
        .migrated(world.unit(0).start..world.unit(0).start + 1);
    assert_eq!(
        world.table.0.call_count(),
        asked + 1,
        "a page of the unit, of all processors"
    );
    world.allocator.migrated(8..16);
    assert_eq!(world.table.0.call_count(), asked + 1, "no group's");
}

#[test]
fn one_node_is_never_looked_up() {
    let table = Told(Arc::new(NodeTable::new(PAGE)));
    let runtime = Runtime::builder().node_of(table.clone()).build().unwrap();
    let counters = PerCpu::<AtomicUsize>::new_in(&runtime.root()).unwrap();
    PerCpuAllocator::of(&runtime.root())
        .unwrap()
        .migrated(0..usize::MAX);
    let (nodes, unplaced) = accounted(&runtime.root());
    assert_eq!(
        (nodes, unplaced),
        (vec![counters.bytes().charged() as i64], 0)
    );
    assert_eq!(counters.bytes().group(), Some(runtime.root()));
    drop(counters);
    assert_eq!(
        (
            table.0.call_count(),
            runtime.root().live(),
            accounted(&runtime.root()).0[0]
        ),
        (0, 0, 0)
    );
}

// === Owners ===

/// An address tells the group that is charged for what is there now, on whatever processor's unit.
#[test]
fn words_tell_whose_an_object_is() {
    for nodes in [1, 2] {
        let world = World::placed(&[0, nodes - 1], nodes, 0, PerCpuShape::new());
        let other = world.runtime.root().create("other", Limits::new()).unwrap();
        let owner_of = |address| world.allocator.owner_of(address);
        let first = world.allocate(64);
        let second = world.allocator.allocate(bytes_of(64), &other).unwrap();
        let free = world.allocator.allocate_uncharged(bytes_of(64)).unwrap();
        let owners = |object: &PerCpuBytes| [0, 1].map(|unit| owner_of(address(object, unit)));
        assert_eq!(owners(&first), [(); 2].map(|()| Some(world.group.clone())));
        assert_eq!(owners(&second), [(); 2].map(|()| Some(other.clone())));
        assert_eq!(owners(&free), [None, None]);
        assert_eq!(
            [&first, &second, &free].map(PerCpuBytes::group),
            [Some(world.group.clone()), Some(other.clone()), None]
        );
        let [inside, beyond] = [address(&first, 0) + 8, address(&free, 0) + 64];
        assert_eq!([inside, beyond, 8].map(owner_of), [None, None, None]);
        // The same granules, in the end another group's.
        let start = address(&first, 0);
        drop(first);
        assert_eq!(owner_of(start), None);
        let third = world.allocator.allocate(bytes_of(64), &other).unwrap();
        assert_eq!((address(&third, 0), owner_of(start)), (start, Some(other)));
        drop((second, third));
        world.nothing_is_left();
    }
}

// === Tiers ===

#[test]
fn tiers_have_what_lies_on_their_nodes() {
    let topology = Topology::fixed([(node(0), vec![0]), (node(1), vec![1])]).unwrap();
    let table = Told(Arc::new(NodeTable::new(PAGE)));
    let mut builder = Runtime::builder().topology(topology).node_of(table.clone());
    let toptier = builder.tier("toptier", [node(0)]);
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    let allocator = PerCpuAllocator::of(&root).unwrap();
    let object = allocator.allocate(bytes_of(64), &root).unwrap();
    let start = address(&object, 0);
    let unit = allocator.shape().unit();
    let held = || root.counter(toptier).unwrap().live();
    table.0.set(start..start + unit, node(0));
    table.0.set(start + unit..start + 2 * unit, node(1));
    table.0.set(
        object.metadata().start..object.metadata().start + unit,
        node(1),
    );
    allocator.migrated(0..usize::MAX);
    assert_eq!((accounted(&root), held()), ((vec![64, 128], 0), 64));
    table.0.set(start..start + unit, node(1));
    allocator.migrated(0..usize::MAX);
    assert_eq!((accounted(&root), held()), ((vec![0, 192], 0), 0));
    drop(object);
    assert_eq!((root.live(), held()), (0, 0));
}

// === Values ===

#[test]
fn every_copy_is_made_and_dropped_once() {
    struct Counted<'a>(usize, &'a AtomicUsize);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = AtomicUsize::new(0);
    let topology = Topology::fixed([(node(0), [0, 1]), (node(1), [3, 4])]).unwrap();
    let runtime = Runtime::builder()
        .topology(topology)
        .node_of(OneNode::new(node(1)))
        .build()
        .unwrap();
    let root = runtime.root();
    let values = PerCpu::new_with_in(&root, |processor| Counted(processor, &dropped)).unwrap();
    assert!(
        values.iter().map(|value| value.0).eq([0, 1, 3, 4]),
        "processor 2 is not possible"
    );
    assert_eq!(values.get(2).map(|value| value.0), None);
    assert_eq!(values.get(4).map(|value| value.0), Some(4));
    assert!([0, 1, 3, 4].contains(&values.current().0));
    drop(values);
    assert_eq!(dropped.swap(0, Ordering::Relaxed), 4);
    let makes = |processor| {
        if processor == 3 {
            panic!("no third")
        } else {
            Counted(processor, &dropped)
        }
    };
    assert!(catch_unwind(AssertUnwindSafe(|| PerCpu::new_with_in(&root, makes))).is_err());
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert_eq!((root.live(), accounted(&root).0[1]), (0, 0));
}

#[test]
fn a_copy_that_panics_at_its_end_does_not_keep_the_others() {
    struct Panics<'a>(usize, &'a AtomicUsize);
    impl Drop for Panics<'_> {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
            assert_ne!(self.0, 1, "the second");
        }
    }
    let dropped = AtomicUsize::new(0);
    let runtime = Runtime::builder()
        .nodes(4)
        .node_of(OneNode::new(node(2)))
        .build()
        .unwrap();
    let values =
        PerCpu::new_with_in(&runtime.root(), |processor| Panics(processor, &dropped)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(values))).is_err());
    assert_eq!(
        (dropped.load(Ordering::Relaxed), runtime.root().live()),
        (4, 0)
    );
}

#[test]
fn threads_count_in_copies_of_their_own() {
    let runtime = Runtime::builder().build().unwrap();
    let counters = PerCpu::<AtomicUsize>::new_in(&runtime.root()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..1_000).for_each(|_| _ = counters.current().fetch_add(1, Ordering::Relaxed))
            });
        }
    });
    assert_eq!(
        counters
            .iter()
            .map(|copy| copy.load(Ordering::Relaxed))
            .sum::<usize>(),
        4_000
    );
}

/// This machine's own nodes, which the kernel tells.
#[test]
fn the_kernel_says_where_copies_lie() {
    let Ok(node_of) = MovePages::new() else {
        return eprintln!("skipped: this system does not say where pages lie");
    };
    // A second node that the machine need not have: with one node no `NodeOf` would be asked.
    let real = Topology::detect().unwrap_or_else(|_| Topology::one_node());
    let spare = node(real.nodes().map(NodeId::get).max().unwrap_or(0) + 1);
    let of = |node| -> (NodeId, Vec<usize>) {
        let is_of = |processor: &usize| real.node_of_processor(*processor) == Some(node);
        (node, (0..real.processor_count()).filter(is_of).collect())
    };
    let nodes = real.nodes().map(of).chain([(spare, Vec::new())]);
    let runtime = Runtime::builder()
        .topology(Topology::fixed(nodes).unwrap())
        .node_of(node_of)
        .build()
        .unwrap();
    let object = PerCpu::new_with_in(&runtime.root(), |processor| [processor; 40]).unwrap();
    let (nodes, unplaced) = accounted(&runtime.root());
    assert_eq!(
        (nodes.iter().sum::<i64>() as u64, unplaced),
        (object.bytes().charged(), 0),
        "chunks are touched"
    );
    drop(object);
    assert_eq!(runtime.root().live(), 0);
}

/// A runtime keeps its allocator beside those of other runtimes.
#[test]
fn each_runtime_has_one_allocator() {
    let told = || Told(Arc::new(NodeTable::new(PAGE)));
    let runtimes =
        [told(), told()].map(|told| Runtime::builder().node_of(Arc::new(told)).build().unwrap());
    let of = |runtime: &Runtime| PerCpuAllocator::of(&runtime.root()).unwrap();
    let first = of(&runtimes[0]);
    let _second = of(&runtimes[1]);
    let _bytes = first.allocate(bytes_of(64), &runtimes[0].root()).unwrap();
    assert_eq!(
        [0, 1].map(|number: usize| of(&runtimes[number]).chunk_count()),
        [1, 0]
    );
}
