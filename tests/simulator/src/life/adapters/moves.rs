//! Containers with many pages, on a machine whose pages move in part, and are reported in part.
//!
//! The machine is a table of `memcg-kmem`, beside a list of what was written into it. After each
//! step each group's memory is accounted on the nodes where its bytes lie, and no more pages are
//! kept than have something, but for an empty one of each node.

// Memory of processors is reached by its addresses.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use allocator_api2::alloc::Allocator;
use memcg::kmem::{NodeId, NodeOf, PageNode, Placement, Topology, TopologyError, node_of};
use memcg::{Bytes, Freshness, Group, Limits, Reclaim, ReclaimPriority, Runtime, StatKey};
use memcg_alloc::GroupAlloc;
use memcg_kmem::{
    KmemBox, KmemError, KmemSlab, KmemStore, KmemVec, NodeTable, PerCpuAllocator, PerCpuBytes,
    PerCpuShape, StoreKey,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::host::Gives;
use crate::denied::own;
use crate::machine::PAGE;
use crate::script::pick;

const STEPS: usize = 30;
const CHUNK_STEPS: usize = 60;
const VECTOR_STEPS: u64 = 12;

/// A vector that grows looks up so many pages at a time.
const LOOKED_UP: usize = 64;
const SLAB_STEPS: u64 = 14;

/// Pages of a table that come and go, and the bytes that a few ranges take, with room for as many.
const TABLE_ROUNDS: usize = 100;
const TABLE_PAGES: usize = 12;
const TABLE_RANGES: usize = 3;
const TABLE_MOST: isize = 1_200;

/// Small enough for one page of the system to have several.
type Row = [u64; 50];

struct Stored {
    group: usize,
    key: StoreKey,
    bytes: Vec<u8>,
}

struct InSlab {
    group: usize,
    object: KmemBox<Row>,
    row: Row,
}

/// Memory of processors, with what is written into each copy.
struct OfProcessors {
    group: usize,
    bytes: PerCpuBytes,
    fill: u8,
}

impl OfProcessors {
    /// The addresses of its copies.
    fn copies(&self) -> Vec<Range<usize>> {
        let processors = 0..self.bytes.processor_count();
        let copies = processors.filter_map(|processor| self.bytes.as_ptr(processor));
        copies
            .map(|copy| copy.addr().get()..copy.addr().get() + self.bytes.size())
            .collect()
    }

    /// Each byte of each copy.
    fn all_are(&self, byte: u8) -> bool {
        let processors = 0..self.bytes.processor_count();
        let mut copies = processors.filter_map(|processor| self.bytes.as_ptr(processor));
        copies.all(|copy| {
            // SAFETY: the copy has so many bytes, which nobody else writes.
            let copy = unsafe { std::slice::from_raw_parts(copy.as_ptr(), self.bytes.size()) };
            copy.iter().all(|found| *found == byte)
        })
    }

    fn fill(&self) {
        for processor in 0..self.bytes.processor_count() {
            if let Some(copy) = self.bytes.as_ptr(processor) {
                // SAFETY: as above.
                unsafe { copy.write_bytes(self.fill, self.bytes.size()) };
            }
        }
    }
}

/// What was written into the table, in this order, whose pages may be parts of the system's, or
/// several of these.
struct Written {
    page: usize,
    all: Vec<(Range<usize>, PageNode)>,
}

impl Written {
    /// A range stands for every page that it touches.
    fn page(&self, address: usize) -> PageNode {
        let page = address / self.page;
        let holds = |range: &Range<usize>| {
            let pages = range.start / self.page..=range.end.saturating_sub(1) / self.page;
            !range.is_empty() && pages.contains(&page)
        };
        let last = self.all.iter().rfind(|(range, _)| holds(range));
        last.map_or(PageNode::Unmapped, |(_, found)| *found)
    }

    /// The bytes of a range on each node.
    fn add(&self, range: Range<usize>, on: &mut BTreeMap<Option<NodeId>, i64>) {
        let mut at = range.start;
        while at < range.end {
            let end = (at / self.page + 1) * self.page;
            let end = end.min(range.end);
            *on.entry(self.page(at).node()).or_default() += (end - at) as i64;
            at = end;
        }
    }
}

struct World {
    runtime: Runtime,
    nodes: u16,
    table: Arc<NodeTable>,
    written: Written,
    asked: (u64, u64),
    groups: Vec<Group>,
    stranger: Runtime,
    store: KmemStore,
    stored: Vec<Stored>,
    /// Keys of strings that are gone.
    gone: Vec<StoreKey>,
    slab: KmemSlab<Row>,
    in_slab: Vec<InSlab>,
    per_cpu: PerCpuAllocator,
    of_processors: Vec<OfProcessors>,
    vec: KmemVec<u64>,
    items: Vec<u64>,
    /// The most items of the pages that the vector has.
    touched: usize,
    /// Pages lie elsewhere since the vector has looked.
    has_moved: bool,
    next: u64,
}

impl World {
    fn new(nodes: u16, page: usize) -> World {
        let table = Arc::new(NodeTable::new(page));
        let builder = Runtime::builder().batch(0).nodes(nodes.into());
        let builder = builder.node_of(Arc::clone(&table));
        let runtime = builder.build().expect("a configuration that holds");
        let group = |name: &str| {
            let made = runtime.root().create(name, Limits::new());
            made.expect("nothing is in the way")
        };
        let groups = vec![group("one"), group("two")];
        let stranger = Runtime::builder().nodes(nodes.into()).build();
        let stranger = stranger.expect("a configuration that holds");
        let shape = PerCpuShape::new().with_unit(16 << 10);
        let per_cpu = PerCpuAllocator::new(&groups[0], shape);
        World {
            nodes,
            table,
            written: Written {
                page,
                all: Vec::new(),
            },
            asked: (0, 0),
            stranger,
            store: KmemStore::new_in(&groups[0]),
            stored: Vec::new(),
            gone: Vec::new(),
            slab: KmemSlab::new_in(&groups[1]),
            in_slab: Vec::new(),
            per_cpu: per_cpu.expect("a small chunk"),
            of_processors: Vec::new(),
            vec: KmemVec::new_in(&groups[1]),
            items: Vec::new(),
            touched: 0,
            has_moved: false,
            next: 0,
            groups,
            runtime,
        }
    }

    fn step(&mut self, rng: &mut Xoshiro256PlusPlus) {
        self.next += 1;
        let was_at = self.vec.as_ptr();
        let group = rng.random_range(0..self.groups.len());
        let node = NodeId::new(rng.random_range(0..self.nodes + 1));
        let of = self.groups[group].clone();
        match rng.random_range(0..17) {
            0 => {
                for _ in 0..pick(rng, &[1, 4, 70]) {
                    self.put_string(group, node, pick(rng, &[0, 1, 300, 1_500, 4_000]));
                }
            }
            1 => self.put_string(group, node, pick(rng, &[0, 30, 900, 2_000, 4_000])),
            2 | 3 => {
                let part = pick(rng, &[1, 2, 5]);
                let mut number = rng.random_range(0..part);
                let (keep, go) = std::mem::take(&mut self.stored).into_iter().partition(|_| {
                    number += 1;
                    number % part != 0
                });
                self.stored = keep;
                go.into_iter()
                    .for_each(|it: Stored| self.remove_string(&it));
            }
            4 => self.compact(),
            5 => {
                for _ in 0..pick(rng, &[1, 3, 20, 600]) {
                    let row = [self.next; 50];
                    let object = self.slab.insert_on(&of, node, row).expect("no limit");
                    self.in_slab.push(InSlab { group, object, row });
                    self.next += 1;
                }
            }
            6 => {
                let before = self.slab.page_count();
                self.in_slab.truncate(pick(rng, &[0, 7, 100]));
                let after = self.slab.page_count();
                assert!(
                    before == 0 || after > 0,
                    "no page stays for the next object"
                );
            }
            7 | 8 => {
                let size = pick(rng, &[1, 100, 3_000, 12_000]);
                let layout = Layout::from_size_align(size, pick(rng, &[1, 8, 256]));
                let layout = layout.expect("small");
                let bytes = self.per_cpu.allocate(layout, &of).expect("no limit");
                let fill = self.next as u8;
                let new = OfProcessors { group, bytes, fill };
                assert!(new.all_are(0), "memory of processors is zeroed");
                new.fill();
                self.of_processors.push(new);
            }
            9 => {
                if !self.of_processors.is_empty() {
                    let at = rng.random_range(0..self.of_processors.len());
                    let copies = self.of_processors.swap_remove(at).copies();
                    let owners = copies.iter().map(|copy| self.per_cpu.owner_of(copy.start));
                    assert!(owners.flatten().next().is_none(), "who has what is gone");
                }
            }
            10 => {
                for _ in 0..pick(rng, &[1, 600, 3_000]) {
                    self.vec.push(self.next).expect("no limit");
                    self.items.push(self.next);
                    self.next += 1;
                }
                self.touched = self.touched.max(self.items.len());
            }
            11 => {
                let keep = pick(rng, &[0, 500, 2_000]);
                self.vec.truncate(keep);
                self.items.truncate(keep);
                self.vec.shrink_to_fit();
                self.touched = self.touched.min(self.vec.capacity());
            }
            12 => self.refuse_strangers(node),
            16 => self.fill_chunks(rng),
            13 => self.move_pages_of_vector(rng),
            _ => self.move_pages(rng),
        }
        // It has moved, or its new pages were never asked for. Where none has moved since, one look at
        // those that nobody has looked at does as well.
        let has_moved = std::mem::take(&mut self.has_moved) || self.vec.as_ptr() != was_at;
        if has_moved || rng.random() {
            self.vec.relocate();
        } else {
            self.vec.settle();
        }
        self.holds(rng);
    }

    fn put_string(&mut self, group: usize, node: NodeId, length: usize) {
        self.next += 1;
        let first = self.next as u8;
        let bytes: Vec<u8> = (0..length).map(|at| first.wrapping_add(at as u8)).collect();
        let key = self.store.insert_on(&self.groups[group], node, &bytes);
        let key = key.expect("no limit");
        self.stored.push(Stored { group, key, bytes });
    }

    /// The one empty page that a node may keep is kept: the first one stays.
    fn remove_string(&mut self, it: &Stored) {
        let page = |it: &Stored| self.address(it.key) / PAGE;
        let pages: BTreeSet<usize> = self.stored.iter().map(page).chain([page(it)]).collect();
        let before = self.store.mapped();
        assert!(self.store.remove(it.key), "a string of {}", it.bytes.len());
        let mapped = self.store.mapped();
        assert!(
            mapped == before || before > pages.len() * PAGE,
            "{before} bytes of pages, none of which was empty, are {mapped}"
        );
        self.gone.push(it.key);
    }

    /// Chunks are filled, and emptied again: what stays has room for the largest object.
    fn fill_chunks(&self, rng: &mut Xoshiro256PlusPlus) {
        let layout = |bytes| Layout::from_size_align(bytes, 8).expect("small");
        let put = |bytes| {
            let put = self.per_cpu.allocate_uncharged(layout(bytes));
            put.expect("it fits into a chunk")
        };
        let before = self.per_cpu.chunk_count();
        let mut all = Vec::new();
        while self.per_cpu.chunk_count() <= before + 1 {
            all.push(put(pick(rng, &[8, 700, 4_000])));
        }
        drop(all);
        let kept = self.per_cpu.chunk_count();
        let whole = put(self.per_cpu.shape().unit());
        assert_eq!(self.per_cpu.chunk_count(), kept, "an empty chunk has room");
        drop(whole);
    }

    /// A group of another runtime has nothing here, and nothing changes.
    fn refuse_strangers(&self, node: NodeId) {
        let stranger = self.stranger.root();
        let stored = self.store.insert_on(&stranger, node, b"of another");
        let in_slab = self.slab.insert_on(&stranger, node, [0; 50]);
        let errors = [
            stored.expect_err("a stranger's string"),
            in_slab.expect_err("a stranger's object").into_parts().1,
        ];
        for error in errors {
            assert!(matches!(error, KmemError::Charge(_)), "{error}");
        }
        let long = vec![0; self.store.max_len() + 1];
        let refused = self.store.insert_on(&self.groups[0], node, &long);
        assert!(matches!(refused, Err(KmemError::Capacity { .. })));
        let large = Layout::from_size_align(self.per_cpu.shape().unit() + 1, 8);
        let refused = self
            .per_cpu
            .allocate(large.expect("small"), &self.groups[0]);
        assert!(matches!(refused, Err(KmemError::Capacity { .. })));
        assert_eq!(stranger.live(), 0, "a stranger pays");
    }

    // === Pages ===

    /// All that there is, by addresses.
    fn addresses(&self) -> Vec<usize> {
        let strings = self.stored.iter().map(|it| self.address(it.key));
        let objects = self.in_slab.iter();
        let objects = objects.map(|it| std::ptr::from_ref::<Row>(&it.object).addr());
        let copies = self.of_processors.iter().flat_map(OfProcessors::copies);
        let words = self.of_processors.iter().map(|it| it.bytes.metadata());
        let copies = copies.chain(words).map(|range| range.start);
        let vec = (!self.items.is_empty()).then(|| self.vec.as_slice().as_ptr().addr());
        strings.chain(objects).chain(copies).chain(vec).collect()
    }

    /// An address of a string: one of nothing may begin where its page ends, behind its head.
    fn address(&self, key: StoreKey) -> usize {
        let address = self.store.get(key, |bytes| bytes.as_ptr().addr());
        address.expect("it is there") - 1
    }

    /// Pages around something lie elsewhere from here on, and that range is reported.
    fn move_pages(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let all = self.addresses();
        if all.is_empty() {
            return;
        }
        self.has_moved = true;
        for _ in 0..pick(rng, &[1, 1, 8]) {
            let start = all[rng.random_range(0..all.len())];
            let start = match rng.random_range(0..3) {
                0 => start,
                1 => start / PAGE * PAGE,
                _ => start.saturating_sub(rng.random_range(0..4) * PAGE),
            };
            let length = pick(rng, &[0, 1, PAGE, 5 * PAGE, 1 << 24, 1 << 40]);
            let range = start..start.saturating_add(length);
            let found = match rng.random_range(0..8) {
                0 => PageNode::Unmapped,
                1 => PageNode::Untouched,
                _ => PageNode::On(NodeId::new(rng.random_range(0..self.nodes))),
            };
            if found == PageNode::Unmapped {
                self.table.remove(range.clone());
            } else {
                self.table.set(range.clone(), found);
            }
            self.written.all.push((range.clone(), found));
            // Each page that it touches has moved. Of a page that is larger than the system's all of
            // that is said.
            let page = self.written.page.max(PAGE);
            let whole = range.start / page * page..range.end.next_multiple_of(page);
            let said = if page > PAGE || rng.random() {
                whole
            } else {
                range
            };
            if !said.is_empty() {
                self.per_cpu.migrated(said);
            }
        }
        self.store.relocate();
        self.slab.relocate();
    }

    /// The vector is told of pages that have moved, and looks none of them up.
    fn move_pages_of_vector(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let node = |rng: &mut Xoshiro256PlusPlus| NodeId::new(rng.random_range(0..self.nodes));
        let (from, to) = (node(rng), node(rng));
        let pages = pick(rng, &[0, 1, 3, usize::MAX]);
        let before = self.vec.placement();
        self.has_moved = true;
        let moved = self.vec.migrated(from, to, pages);
        let bytes = (pages.saturating_mul(PAGE) as u64).min(before.on_node(from));
        let known = bytes as usize / PAGE;
        let found = self.vec.placement();
        assert_eq!(found.bytes(), before.bytes(), "all of it");
        if from != to {
            assert_eq!(moved, known, "pages that were there");
            let known = [before.on_node(from) - bytes, before.on_node(to) + bytes];
            let found = [from, to].map(|node| found.on_node(node));
            assert_eq!(found, known, "of pages from {from:?} to {to:?}");
        }
    }

    /// Strings by the page that they are in, with what each takes.
    fn pages_of_strings(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut pages: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for it in &self.stored {
            let taken = KmemStore::object_bytes(it.bytes.len()) as usize;
            pages
                .entry(self.address(it.key) / PAGE)
                .or_default()
                .push(taken);
        }
        pages
    }

    /// Afterwards what is in the emptiest page has no room in the others.
    fn compact(&self) {
        let places = |world: &World| -> Vec<usize> {
            let all = world.stored.iter();
            all.map(|it| world.address(it.key) / PAGE).collect()
        };
        let (before, mapped) = (places(self), self.store.mapped());
        let done = self.store.compact();
        let after = places(self);
        let of_both = before.iter().zip(&after);
        let moved = of_both.filter(|(before, after)| before != after).count();
        assert_eq!(mapped - self.store.mapped(), done.freed, "of {done:?}");
        let again = self.store.compact();
        assert_eq!(
            again.freed, 0,
            "what one call leaves: {again:?} after {done:?}"
        );
        assert!(done.moved >= moved, "{moved} have moved, of {done:?}");
        let is_one_node = self.nodes == 1 && done.moved_nodes > 0;
        assert!(done.moved_nodes <= done.moved && !is_one_node, "{done:?}");
        let pages = self.pages_of_strings();
        assert_eq!(
            self.store.mapped(),
            pages.len() * PAGE,
            "pages that are kept"
        );
        let room = |page: &Vec<usize>| PAGE - page.iter().sum::<usize>();
        let emptiest = pages.iter().max_by_key(|(_, page)| room(page));
        let Some((number, emptiest)) = emptiest else {
            return;
        };
        let others = pages.iter().filter(|(other, _)| *other != number);
        let rooms: Vec<usize> = others.map(|(_, page)| room(page)).collect();
        // Of pages with nearly as much room another may have been looked at.
        if rooms.iter().any(|other| other + 64 > room(emptiest)) {
            return;
        }
        let would_fit = rooms.iter().sum::<usize>() >= PAGE - room(emptiest);
        // A page that has just enough may be passed over.
        let most = rooms
            .iter()
            .max()
            .map_or(0, |room| room.saturating_sub(2 * 64));
        let fits = would_fit && emptiest.iter().all(|&taken| taken <= most);
        assert!(!fits, "{emptiest:?} beside pages with room for {rooms:?}");
    }

    // === What must hold ===

    fn holds(&mut self, rng: &mut Xoshiro256PlusPlus) {
        self.table_holds(rng);
        for (number, group) in self.groups.iter().enumerate() {
            let mut known: [BTreeMap<Option<NodeId>, i64>; 3] = Default::default();
            let [kernel, slab, per_cpu] = &mut known;
            for it in self.stored.iter().filter(|it| it.group == number) {
                // All of a string is where its page begins.
                let page = self.address(it.key) / PAGE * PAGE;
                let node = self.written.page(page).node();
                *kernel.entry(node).or_default() += KmemStore::object_bytes(it.bytes.len()) as i64;
            }
            if number == 1 {
                let start = self.vec.as_slice().as_ptr().addr();
                let touched = (self.touched * 8).next_multiple_of(PAGE);
                self.written.add(start..start + touched, kernel);
                let rest = self.vec.capacity() * 8 - touched;
                *kernel.entry(None).or_default() += rest as i64;
            }
            for it in self.in_slab.iter().filter(|it| it.group == number) {
                let address = std::ptr::from_ref::<Row>(&it.object).addr();
                let page = address / self.slab.page_bytes() * self.slab.page_bytes();
                let node = self.written.page(page).node();
                *slab.entry(node).or_default() += self.slab.object_bytes() as i64;
            }
            for it in self.of_processors.iter().filter(|it| it.group == number) {
                let copies = it.copies().into_iter().chain([it.bytes.metadata()]);
                copies.for_each(|range| self.written.add(range, per_cpu));
            }
            let stats = [StatKey::KERNEL, StatKey::SLAB, StatKey::PERCPU];
            for (of, known) in stats.into_iter().zip(known) {
                let found = group.numa_stat(of, Freshness::Exact);
                let all: i64 = known.values().sum();
                assert_eq!(found.sum(), all, "{of:?} of {group:?}");
                for node in (0..self.nodes).map(NodeId::new) {
                    // Of one node it is known where all is.
                    let known = match self.nodes {
                        1 => all,
                        _ => known.get(&Some(node)).copied().unwrap_or(0),
                    };
                    assert_eq!(found.get(node), known, "{of:?} of {group:?} on {node:?}");
                }
            }
        }
        self.contents_hold();
        self.pages_hold();
    }

    fn table_holds(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let mut pages = self.addresses();
        let edges = self.written.all.iter().rev().take(8);
        pages.extend(edges.flat_map(|(range, _)| {
            let before = range.start.saturating_sub(self.written.page);
            [before, range.start, range.end.saturating_sub(1), range.end]
        }));
        let from = rng.random_range(0..pages.len() + 1);
        let pages = &pages[from..];
        let mut found = vec![PageNode::Zero; pages.len()];
        let before = (self.table.call_count(), self.table.page_count());
        self.table.look_up(pages, &mut found);
        let after = (self.table.call_count(), self.table.page_count());
        let known = (before.0 + 1, before.1 + pages.len() as u64);
        assert_eq!(after, known, "look-ups and their pages");
        assert!(before >= self.asked, "look-ups are counted");
        self.asked = after;
        for (page, found) in pages.iter().zip(found) {
            assert_eq!(found, self.written.page(*page), "the page at {page:#x}");
        }
    }

    fn contents_hold(&self) {
        for it in &self.stored {
            let is_it = self.store.get(it.key, |found| found == it.bytes);
            assert_eq!(is_it, Some(true), "a string of {}", it.bytes.len());
        }
        for &key in &self.gone {
            let found = self.store.get(key, <[u8]>::len);
            assert_eq!(found, None, "the key of a string that is gone");
        }
        for it in &self.in_slab {
            assert!(*it.object == it.row, "an object of the slab");
        }
        assert!(*self.vec == *self.items, "items of the vector");
        let mut words: Vec<Range<usize>> = Vec::new();
        for it in &self.of_processors {
            assert!(it.all_are(it.fill), "memory of processors is its own");
            let group = self.groups[it.group].id();
            assert_eq!(it.bytes.group().map(|group| group.id()), Some(group));
            for copy in it.copies() {
                let owner = self.per_cpu.owner_of(copy.start);
                assert_eq!(owner.map(|owner| owner.id()), Some(group), "whose it is");
                let within = copy.start + self.per_cpu.shape().granule();
                let owner = self.per_cpu.owner_of(within).filter(|_| within < copy.end);
                assert_eq!(owner, None, "whose the middle is");
            }
            let shape = self.per_cpu.shape();
            let of = it.bytes.metadata();
            let known = it.bytes.size() / shape.granule() * shape.word();
            assert_eq!(of.len(), known, "words of {} bytes", it.bytes.size());
            words.push(of);
        }
        words.sort_by_key(|of| of.start);
        let is_apart = words.windows(2).all(|of| of[0].end <= of[1].start);
        assert!(is_apart, "words of two objects are one: {words:?}");
    }

    /// One empty page is kept for each node, and one empty chunk.
    fn pages_hold(&self) {
        let nodes = usize::from(self.nodes);
        let (has, most) = (self.store.mapped(), self.pages_of_strings().len() + nodes);
        assert!(has <= most * PAGE, "{has} bytes, and {most} pages at most");
        let of_objects: BTreeSet<usize> = (self.in_slab.iter())
            .map(|it| std::ptr::from_ref::<Row>(&it.object).addr() / self.slab.page_bytes())
            .collect();
        let (has, least) = (self.slab.page_count(), of_objects.len());
        let is_right = (least..=least + nodes).contains(&has);
        assert!(
            is_right,
            "{has} pages of the slab, and {least} have objects"
        );
        let (has, most) = (self.per_cpu.chunk_count(), self.of_processors.len() + 1);
        assert!(has <= most, "{has} chunks, and {most} at most");
    }

    fn end(self) {
        let (runtime, table) = (self.runtime.clone(), Arc::clone(&self.table));
        drop(self);
        assert_eq!(runtime.root().live(), 0, "live at the end");
        drop(runtime);
        // The allocator of a runtime that is gone goes with that of the next.
        let next = Runtime::builder().build();
        let next = next.expect("a configuration that holds");
        drop(PerCpuAllocator::of(&next.root()).expect("a small chunk"));
        assert_eq!(Arc::strong_count(&table), 1, "who keeps the machine");
    }
}

/// Where a group is full of what a cache has, each adapter that asks the group gets its bytes.
fn caches_give_room(world: &World) {
    let node = NodeId::new(0);
    let layout = |bytes| Layout::from_size_align(bytes, 8).expect("small");
    let asks: [&dyn Fn(&Group) -> bool; 6] = [
        &|group| {
            let allocator = GroupAlloc::new(group);
            let block = allocator.allocate(layout(5_000));
            // SAFETY: it is of that allocator and layout.
            block.is_ok_and(|block| unsafe {
                let grown = allocator.grow(block.cast(), layout(5_000), layout(9_000));
                let (block, size) = grown.map_or((block, 5_000), |grown| (grown, 9_000));
                allocator.deallocate(block.cast(), layout(size));
                size == 9_000
            })
        },
        &|group| KmemVec::<u64>::with_capacity_in(600, group).is_ok(),
        &|group| {
            KmemVec::new_in(group)
                .extend_from_slice(&[1_u64; 600])
                .is_ok()
        },
        &|group| world.slab.insert_on(group, node, [0; 50]).is_ok(),
        &|group| {
            let key = world.store.insert_on(group, node, &[7; 3_000]);
            key.is_ok_and(|key| world.store.remove(key))
        },
        &|group| world.per_cpu.allocate(layout(100), group).is_ok(),
    ];
    for (number, ask) in asks.into_iter().enumerate() {
        let group = world
            .runtime
            .root()
            .create(number as u64, Limits::new().max(100_000));
        let group = group.expect("nothing is in the way");
        let held = group.charge(99_900).expect("there is room");
        let cache = Arc::new(Gives::new(held)) as Arc<dyn Reclaim>;
        let registration = group.register_reclaimer(cache, ReclaimPriority::NORMAL);
        assert!(ask(&group), "{number} is refused, and a cache would give");
        drop(registration);
        assert_eq!(group.live(), 0, "live after {number}");
        group.offline().expect("nothing is below it");
    }
}

/// A vector that may not double grows by what it needs.
fn grow_by_what_is_needed() {
    let mut builder = Runtime::builder().batch(0).nodes(2);
    let near = builder.tier("near", [NodeId::new(0)]);
    let runtime = builder.build().expect("a configuration that holds");
    let root = runtime.root();
    let page = PAGE as u64;
    let of_tier = root.counter(near).expect("declared");
    of_tier.set_max(Bytes(3 * page)).expect("no percentage");
    let mut vec = KmemVec::<[u8; PAGE]>::new_in(&root);
    for pages in 1..4 {
        let pushed = vec.push([7; PAGE]);
        assert!(pushed.is_ok(), "page {pages} of three: {pushed:?}");
    }
    assert_eq!(vec.capacity(), 3, "pages of the vector");
    let refused = vec.push([8; PAGE]).expect_err("a tier of three pages");
    assert_eq!(refused.into_value(), [8; PAGE], "it comes back");
    drop(vec);
    assert_eq!((root.live(), of_tier.live()), (0, 0), "live at the end");
}

/// A chunk of an allocator, by the address of its first unit: which granules are taken.
struct ChunkOf {
    start: usize,
    taken: Vec<bool>,
}

impl ChunkOf {
    /// The first run of so many free granules, at a multiple of that.
    fn fits(&self, many: usize, align: usize) -> Option<usize> {
        let is_free = |at: &usize| !self.taken[*at..*at + many].contains(&true);
        let starts = (0..=self.taken.len() - many).step_by(align);
        starts.into_iter().find(is_free)
    }
}

/// Objects of all sizes and alignments come and go: a chunk is mapped where none has room, and then
/// alone.
fn chunks_are_used(rng: &mut Xoshiro256PlusPlus, group: &Group) {
    let granule = pick(rng, &[8, 256, 512]);
    let shape = PerCpuShape::new().with_unit(PAGE).with_granule(granule);
    let allocator = PerCpuAllocator::new(group, shape).expect("a small chunk");
    let mut chunks: Vec<ChunkOf> = Vec::new();
    // Each with the place of its chunk and its granules.
    let mut all: Vec<(PerCpuBytes, usize, Range<usize>)> = Vec::new();
    for step in 0..CHUNK_STEPS {
        if !all.is_empty() && rng.random_bool(0.45) {
            let (bytes, start, granules) = all.swap_remove(rng.random_range(0..all.len()));
            let of = chunks.iter_mut().find(|of| of.start == start);
            of.expect("it is there").taken[granules].fill(false);
            let before = allocator.chunk_count();
            drop(bytes);
            if allocator.chunk_count() < before {
                chunks.retain(|of| of.start != start);
            }
            let is_empty = |of: &&ChunkOf| !of.taken.contains(&true);
            let empty = chunks.iter().filter(is_empty).count();
            assert!(empty <= 1, "{empty} chunks have nothing, and are kept");
            continue;
        }
        let size: usize = pick(rng, &[1, 256, 700, 1_000, 1_400, 2_000, 3_000]);
        let align: usize = pick(rng, &[1, 8, 256, 1_024, 2_048]);
        let (many, aligned) = (size.div_ceil(granule), align.max(granule) / granule);
        let fits = chunks.iter().any(|of| of.fits(many, aligned).is_some());
        let before = allocator.chunk_count();
        let layout = Layout::from_size_align(size, align).expect("small");
        let bytes = allocator.allocate(layout, group).expect("no limit");
        let new = allocator.chunk_count() - before;
        assert_eq!(
            new,
            usize::from(!fits),
            "new chunks at step {step}, for {size} bytes at a multiple of {align}"
        );
        let at = bytes.as_ptr(0).expect("a processor").addr().get();
        assert!(at.is_multiple_of(align), "{at:#x}, asked for {align}");
        if new > 0 {
            // It is the first there.
            chunks.push(ChunkOf {
                start: at,
                taken: vec![false; PAGE / granule],
            });
        }
        let mut of = chunks.iter_mut();
        let of = of.find(|of| (of.start..of.start + PAGE).contains(&at));
        let of = of.expect("a chunk that is known");
        let first = (at - of.start) / granule;
        let granules = first..first + many;
        let is_free = !of.taken[granules.clone()].contains(&true);
        assert!(is_free, "{granules:?} are another one's");
        of.taken[granules.clone()].fill(true);
        all.push((bytes, of.start, granules));
    }
}

/// A slab of any type: its pages are those that have objects, and one more, and each object pays for
/// what it takes and its part of the page.
fn slab_of<T: PartialEq>(rng: &mut Xoshiro256PlusPlus, make: fn(u64) -> T) {
    let nodes = rng.random_range(1..3);
    let builder = Runtime::builder().batch(0).nodes(nodes);
    let runtime = builder.node_of(Arc::new(NodeTable::new(PAGE))).build();
    let runtime = runtime.expect("a configuration that holds");
    let group = runtime.root();
    let slab = KmemSlab::<T>::new_in(&group);
    let (each, of_page) = (slab.object_bytes(), slab.objects_per_page());
    assert!(each >= size_of::<T>() as u64, "an object pays for itself");
    let mut all: Vec<(u64, usize, KmemBox<T>)> = Vec::new();
    for number in 0..SLAB_STEPS {
        if rng.random_bool(0.6) {
            for _ in 0..pick(rng, &[1, of_page.min(4), 2]) {
                let node = rng.random_range(0..nodes);
                let (before, room) = (slab.page_count(), slab.page_count() * of_page);
                let has_room = nodes == 1 && all.len() < room;
                let object = slab.insert_on(&group, NodeId::new(node as u16), make(number));
                all.push((number, node, object.expect("no limit")));
                let is_right = !has_room || slab.page_count() == before;
                assert!(is_right, "a page is mapped, and others have room");
            }
        } else if !all.is_empty() {
            let (number, _, object) = all.swap_remove(rng.random_range(0..all.len()));
            match rng.random() {
                true => drop(object),
                false => assert!(object.into_inner() == make(number), "moved out"),
            }
        }
        let is_it = |it: &(u64, usize, KmemBox<T>)| *it.2 == make(it.0);
        assert!(all.iter().all(is_it), "objects of {} bytes", size_of::<T>());
        assert_eq!(group.live(), all.len() as u64 * each, "live");
        let least = all.len().div_ceil(of_page);
        let pages: BTreeSet<(usize, usize)> = (all.iter())
            .map(|(_, node, it)| {
                let at = std::ptr::from_ref::<T>(it).addr() / PAGE;
                (*node, at)
            })
            .collect();
        // An object of nothing lies anywhere in its page, and large pages are several of the system's.
        let most = pages.len() + nodes;
        let has = slab.page_count();
        assert!(
            (least..=most).contains(&has),
            "{has} pages, {least} to {most}"
        );
    }
    drop(all);
    let has = slab.page_count();
    assert!(has <= nodes, "{has} empty pages are kept");
    assert_eq!(group.live(), 0, "live at the end");
}

/// A vector of any type grows and shrinks: what it is charged for are its whole pages, and those that
/// nobody has touched are on no node. While it grows it looks up all but the last of its pages itself.
fn vector_of<T: Clone + PartialEq + std::fmt::Debug>(
    rng: &mut Xoshiro256PlusPlus,
    page: usize,
    make: fn(u64) -> T,
) {
    let size = size_of::<T>();
    let nodes = rng.random_range(1..3);
    let table = Arc::new(NodeTable::new(page));
    let builder = Runtime::builder().batch(0).nodes(nodes);
    let runtime = builder.node_of(Arc::clone(&table)).build();
    let runtime = runtime.expect("a configuration that holds");
    let group = runtime.root();
    let mut vec = KmemVec::<T>::new_in(&group);
    let mut items: Vec<T> = Vec::new();
    let mut touched = 0;
    let of_machine = page.max(PAGE);
    // Else pages lie somewhere once they have been there for a while.
    let lie_at_once = rng.random_bool(0.7);
    if lie_at_once {
        table.set(0..usize::MAX, NodeId::new(0));
    }
    for number in 0..VECTOR_STEPS {
        let many = match rng.random_range(0..5) {
            0 => (LOOKED_UP + 6) * of_machine / size.max(64),
            _ => pick(rng, &[1, 3, 200]).min(4 * PAGE / size.max(64)),
        };
        let way = rng.random_range(0..6);
        match way {
            0 | 1 => {
                for _ in 0..many {
                    vec.push(make(number)).expect("no limit");
                    items.push(make(number));
                }
            }
            2 => {
                let more = vec![make(number); many];
                vec.extend_from_slice(&more).expect("no limit");
                items.extend(more);
            }
            3 => {
                let keep = items.len() - many.min(items.len());
                vec.truncate(keep);
                items.truncate(keep);
            }
            4 => assert_eq!(vec.pop(), items.pop(), "the last one"),
            _ => {
                vec.shrink_to_fit();
                let whole = (items.len() * size).next_multiple_of(PAGE);
                assert_eq!(group.live(), whole as u64, "shrunk, {size} bytes each");
                touched = touched.min(whole);
            }
        }
        touched = touched.max((items.len() * size).next_multiple_of(PAGE));
        assert!(*vec == *items, "items of {size} bytes");
        let all = group.live() as usize;
        assert!(all.is_multiple_of(PAGE), "whole pages are charged");
        let capacity = all.checked_div(size).unwrap_or(usize::MAX);
        assert_eq!(vec.capacity(), capacity, "room for {size} bytes each");
        assert_eq!(vec.placement().bytes(), all as u64, "accounted");
        if way <= 2 && lie_at_once && nodes > 1 {
            let on_first = vec.placement().on_node(NodeId::new(0)) as usize;
            let least = (items.len() * size).saturating_sub((LOOKED_UP + 2) * of_machine);
            assert!(
                on_first >= least,
                "{on_first} bytes are looked up, {least} at least, pages of {page}"
            );
        }
        let start = vec.as_ptr().addr();
        table.set(start..start + all.max(1), NodeId::new(0));
        if all > 0 && rng.random() {
            vec.settle();
            let unplaced = vec.placement().unplaced() as usize;
            let known = if nodes == 1 { 0 } else { all - touched };
            assert_eq!(unplaced, known, "{size} bytes each, pages of {page}");
        }
    }
    // On one node nobody is asked where pages lie.
    let found = Placement::of(vec.as_ptr_range(), &**node_of(&group));
    let on_first = found.on_node(NodeId::new(0));
    assert!(
        nodes > 1 || on_first == found.bytes(),
        "one node: {found:?}"
    );
    drop(vec);
    assert_eq!(group.live(), 0, "live at the end");
    let asked = table.call_count();
    assert!(nodes > 1 || asked == 0, "{asked} look-ups on one node");
}

/// A table says of each page what was written down last, and keeps nothing of pages that are unmapped,
/// wherever they were.
fn a_table_forgets(rng: &mut Xoshiro256PlusPlus) {
    let (table, before) = (NodeTable::new(PAGE), own());
    for round in 0..TABLE_ROUNDS {
        // With pages between them that nobody has named.
        let pages = 2 * TABLE_PAGES * round..2 * TABLE_PAGES * round + TABLE_PAGES;
        let mut known = vec![PageNode::Unmapped; TABLE_PAGES];
        for _ in 0..TABLE_RANGES {
            let first = rng.random_range(0..TABLE_PAGES);
            let end = rng.random_range(first..=TABLE_PAGES);
            let node = PageNode::On(NodeId::new(rng.random_range(0..3)));
            let found = pick(rng, &[node, node, PageNode::Untouched, PageNode::Unmapped]);
            table.set(
                (pages.start + first) * PAGE..(pages.start + end) * PAGE,
                found,
            );
            known[first..end].fill(found);
        }
        let asked: Vec<usize> = pages.clone().map(|page| page * PAGE).collect();
        let mut found = vec![PageNode::Zero; TABLE_PAGES];
        table.look_up(&asked, &mut found);
        assert_eq!(found, known, "of pages of a table");
        table.remove(pages.start * PAGE..pages.end * PAGE);
    }
    let kept = own() - before;
    assert!(kept <= TABLE_MOST, "{kept} bytes of a table without pages");
}

/// Numbers as a file of the system has them.
fn list(rng: &mut Xoshiro256PlusPlus, numbers: &BTreeSet<u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number && rng.random_bool(0.8) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |(first, last): (u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

/// A machine as its files say: nodes that are there or may come, and the processors of each. What is
/// no list of rising numbers is no machine.
fn machine_of_files(rng: &mut Xoshiro256PlusPlus) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join("devices/system").join(path);
    let write = |path: String, text: &str| {
        let path = at(&path);
        let above = path.parent().expect("below a folder");
        std::fs::create_dir_all(above).expect("a folder");
        std::fs::write(path, format!("{text}\n")).expect("a file");
    };
    let mut online: BTreeSet<u16> = (0..8).filter(|_| rng.random_bool(0.3)).collect();
    online.insert(rng.random_range(0..8));
    let all: Vec<u16> = online.iter().copied().collect();
    let few: BTreeSet<u16> = (0..8).filter(|_| rng.random_bool(0.4)).collect();
    // A kernel can be built for more nodes than any machine has.
    let is_for_many = rng.random_bool(0.1);
    let possible = if is_for_many {
        (0..1_024).collect()
    } else {
        few.clone()
    };
    let nodes: BTreeSet<u16> = match is_for_many {
        true => online.clone(),
        false => few.union(&online).copied().collect(),
    };
    write(String::from("node/possible"), &list(rng, &possible));
    write(String::from("node/online"), &list(rng, &online));
    let many = rng.random_range(0..12);
    let owners: BTreeMap<u16, u16> = (0..many)
        .filter(|_| rng.random_bool(0.7))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|processor| (processor, pick(rng, &all)))
        .collect();
    for node in &nodes {
        let own = owners.iter().filter(|(_, of)| *of == node);
        let own: BTreeSet<u16> = own.map(|(processor, _)| *processor).collect();
        if online.contains(node) || rng.random() {
            write(format!("node/node{node}/cpulist"), &list(rng, &own));
        }
    }
    let is_told: bool = rng.random();
    let processors: Option<BTreeSet<u16>> = is_told.then(|| (0..many + 2).collect());
    if let Some(processors) = &processors {
        write(String::from("cpu/possible"), &list(rng, processors));
    }
    let machine = Topology::from_sysfs(folder.path()).expect("a machine");
    let known: Vec<NodeId> = nodes.iter().copied().map(NodeId::new).collect();
    assert_eq!(machine.nodes().collect::<Vec<_>>(), known, "nodes");
    let home = *online.first().expect("one is");
    let most = |of: &BTreeSet<u16>| of.last().map_or(0, |last| last + 1);
    let listed = owners.last_key_value().map_or(0, |(last, _)| last + 1);
    let count = listed.max(processors.as_ref().map_or(0, most)).max(1);
    assert_eq!(machine.processor_count(), usize::from(count), "processors");
    let of = |processor: u16| {
        let is_possible = |of: &BTreeSet<u16>| of.contains(&processor);
        let own = owners.get(&processor).copied();
        let is_home = processors.as_ref().is_some_and(is_possible) || count == 1;
        own.or(Some(home).filter(|_| is_home))
    };
    for processor in 0..count + 2 {
        let found = machine.node_of_processor(processor.into());
        let known = of(processor).filter(|_| processor < count).map(NodeId::new);
        assert_eq!(found, known, "the node of processor {processor}");
    }
    for node in 0..9 {
        let of_node = |processor| of(processor) == Some(node);
        let id = NodeId::new(node);
        let found = (machine.is_online(id), machine.has_processors(id));
        let known = (online.contains(&node), (0..count).any(of_node));
        assert_eq!(found, known, "(online, with processors): node {node}");
    }
    let wrong = pick(
        rng,
        &["3-1", "1,0", "0,0", "1-3,2", "a", "1,", "-1", "0-", " 0"],
    );
    let file = pick(rng, &["node/possible", "node/online", "cpu/possible"]);
    write(file.to_string(), wrong);
    match Topology::from_sysfs(folder.path()) {
        Err(TopologyError::Parse { path, text }) => {
            assert_eq!((path, text), (at(file), format!("{wrong}\n")), "no list");
        }
        read => panic!("{wrong:?} in {file} is no list: {read:?}"),
    }
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    a_table_forgets(rng);
    machine_of_files(rng);
    let page = pick(rng, &[PAGE / 4, PAGE, PAGE, PAGE, 4 * PAGE]);
    let mut world = World::new(rng.random_range(1..5), page);
    if rng.random() {
        // Each runtime has one.
        let of = |group: &Group| PerCpuAllocator::of(group).expect("a small chunk");
        let (one, other) = (of(&world.groups[0]), of(&world.groups[1]));
        drop(one.allocate_uncharged(Layout::new::<u64>()));
        assert_eq!(other.chunk_count(), 1, "the same allocator");
    }
    caches_give_room(&world);
    grow_by_what_is_needed();
    chunks_are_used(rng, &world.groups[0]);
    match rng.random_range(0..4) {
        0 => slab_of(rng, |_| ()),
        1 => slab_of(rng, |number| [number as u8; 40_000]),
        2 => slab_of(rng, |number| [number; 1_000]),
        _ => slab_of(rng, |number| [number as u8; 3]),
    }
    for _ in 0..3 {
        match rng.random_range(0..4) {
            0 => vector_of(rng, page, |_| ()),
            1 => vector_of(rng, page, |number| [number as u8; 3]),
            2 => vector_of(rng, page, |number| [number; 300]),
            _ => vector_of(rng, page, |number| [number; 650]),
        }
    }
    (0..STEPS).for_each(|_| world.step(rng));
    world.end();
}
