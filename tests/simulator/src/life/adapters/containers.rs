//! Vectors, strings and objects on memory nodes, on a machine whose pages lie where the life says.

use std::sync::Arc;

use memcg::kmem::NodeId;
use memcg::{ChargeError, Freshness, Group, StatKey};
use memcg_kmem::{
    KmemBox, KmemSlab, KmemStore, KmemVec, PerCpuAllocator, PerCpuBytes, PerCpuShape, StoreKey,
};

use super::super::Life;
use super::super::values::{ACCOUNTED, NodeMemory};
use crate::denied;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::machine::{Machine, PAGE, refusal};
use crate::script::{Adapter, Op};
use crate::twin::Key;

const OF_A_KIND_MAX: usize = 12;
const VECTORS_MAX: usize = 4;

/// Strings of a turn, their length, and the bytes of the heap that may stay of them.
const OF_A_TURN: usize = 64;
const TURNED: usize = 500;
const LEFT_MAX: usize = 4_096;

/// Objects of a turn: more than one page has.
const OBJECTS: usize = 300;

/// A vector, and what is in it.
struct Vector {
    key: Key,
    vec: KmemVec<u64>,
    items: Vec<u64>,
    /// The most items of the pages that it has.
    touched: usize,
}

/// A string in the store.
struct Stored {
    key: Key,
    store_key: StoreKey,
    bytes: Vec<u8>,
}

/// Of so many bytes, so that one page of the system is a page of the slab.
type Row = [u64; 6];

struct InSlab {
    key: Key,
    object: KmemBox<Row>,
    row: Row,
}

/// Containers of a life. The pages of the store and the slab are made at the first use.
#[derive(Default)]
pub(super) struct Containers {
    pub(super) machine: Arc<Machine>,
    vectors: Vec<Vector>,
    store: Option<Arc<KmemStore>>,
    stored: Vec<Stored>,
    slab: Option<Arc<KmemSlab<Row>>>,
    in_slab: Vec<InSlab>,
    per_cpu: Option<PerCpuAllocator>,
    of_processors: Vec<(Key, PerCpuBytes)>,
    next: u64,
}

fn pick<T>(of: &[T], number: u8) -> Option<usize> {
    (!of.is_empty()).then(|| usize::from(number) % of.len())
}

impl Life {
    /// Makes a machine of the life's nodes, once.
    fn machine(&self) -> Arc<Machine> {
        let machine = &self.adapters.containers.machine;
        machine.has_nodes(self.setup.nodes.max(1));
        Arc::clone(machine)
    }

    fn is_one_node(&self) -> bool {
        self.setup.nodes <= 1
    }

    pub(super) fn step_containers(&mut self, op: &Op, adapter: &Adapter) {
        self.machine();
        match *adapter {
            Adapter::Pages(group, capacity) => self.new_pages(op, group, capacity.into()),
            Adapter::PushPages(number, items) => self.push_pages(op, number, items),
            Adapter::PopPages(number, items) => self.with_pages(op, number, move |vector| {
                for _ in 0..items {
                    let popped = vector.vec.pop();
                    assert_eq!(popped, vector.items.pop(), "the last item");
                }
            }),
            Adapter::CutPages(number, items) => self.with_pages(op, number, move |vector| {
                vector.vec.truncate(items.into());
                vector.items.truncate(items.into());
            }),
            Adapter::ExtendPages(number, items) => self.extend_pages(op, number, items),
            Adapter::ShrinkPages(number) => self.with_pages(op, number, |vector| {
                vector.vec.shrink_to_fit();
                let whole = (vector.items.len() * 8).next_multiple_of(PAGE);
                assert_eq!(vector.vec.capacity() * 8, whole, "shrunk");
                vector.touched = vector.touched.min(vector.vec.capacity());
            }),
            Adapter::SettlePages(number, anew) => self.settle_pages(op, number, anew),
            Adapter::DropPages(number) => {
                if let Some(at) = pick(&self.adapters.containers.vectors, number) {
                    let vector = self.adapters.containers.vectors.swap_remove(at);
                    self.twin.release(vector.key);
                    self.actor(op).run(move || drop(vector));
                }
            }
            Adapter::Store(group, length, node) => self.store(op, group, length.into(), node),
            Adapter::Remove(number) => {
                if let Some(at) = pick(&self.adapters.containers.stored, number) {
                    self.remove(op, at);
                }
            }
            Adapter::Compact => {
                if let Some(store) = self.adapters.containers.store.clone() {
                    self.actor(op).run(move || {
                        let before = store.mapped();
                        let done = store.compact();
                        assert_eq!(before - store.mapped(), done.freed, "of {done:?}");
                    });
                }
            }
            Adapter::TurnOver(group) => self.turn_over(op, group),
            Adapter::Slab(group, node) => self.put_into_slab(op, group, node),
            Adapter::DropSlab(number) => {
                if let Some(at) = pick(&self.adapters.containers.in_slab, number) {
                    let InSlab { key, object, row } =
                        self.adapters.containers.in_slab.swap_remove(at);
                    assert_eq!(*object, row, "an object of the slab");
                    self.twin.release(key);
                    self.actor(op).run(move || drop(object));
                }
            }
            Adapter::PerCpu(group, bytes) => self.per_cpu(op, group, bytes.into()),
            Adapter::DropPerCpu(number) => {
                if let Some(at) = pick(&self.adapters.containers.of_processors, number) {
                    let (key, bytes) = self.adapters.containers.of_processors.swap_remove(at);
                    self.twin.release(key);
                    self.actor(op).run(move || drop(bytes));
                }
            }
            Adapter::MovePages(by, are_reported) => {
                self.machine().move_pages(by.into());
                if are_reported {
                    self.report_moves(op);
                }
            }
            _ => unreachable!("an operation on containers"),
        }
        self.settle_accounts();
    }

    // === Vectors ===

    fn new_pages(&mut self, op: &Op, group: u8, capacity: usize) {
        let room = self.adapters.containers.vectors.len() < VECTORS_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let bytes = (capacity * 8).next_multiple_of(PAGE) as u64;
        let ask = self.ask_plain(group, bytes);
        let made = self.on(op, group, move |group| {
            KmemVec::with_capacity_in(capacity, group).map_err(refusal)
        });
        if let Some(vec) = self.agree(ask, made) {
            let key = self.twin.hold(group, 0, bytes);
            let vector = Vector {
                key,
                vec,
                items: Vec::new(),
                touched: 0,
            };
            self.take_pages_back(self.adapters.containers.vectors.len(), vector);
        }
    }

    fn with_pages(&mut self, op: &Op, number: u8, job: impl FnOnce(&mut Vector) + Send + 'static) {
        let Some(at) = pick(&self.adapters.containers.vectors, number) else {
            return;
        };
        let mut vector = self.adapters.containers.vectors.remove(at);
        let vector = self.actor(op).run(move || {
            job(&mut vector);
            vector
        });
        self.take_pages_back(at, vector);
    }

    /// Its charge is what it has room for, and all of that is in its account.
    fn take_pages_back(&mut self, at: usize, vector: Vector) {
        let bytes = vector.vec.capacity() as u64 * 8;
        assert_eq!(vector.vec.placement().bytes(), bytes, "accounted");
        assert!(*vector.vec == *vector.items, "items of a vector in pages");
        self.twin.set(vector.key, bytes);
        self.adapters.containers.vectors.insert(at, vector);
    }

    fn push_pages(&mut self, op: &Op, number: u8, items: u16) {
        let Some(at) = pick(&self.adapters.containers.vectors, number) else {
            return;
        };
        let mut vector = self.adapters.containers.vectors.remove(at);
        let group = self.twin.of(vector.key).group;
        let had = vector.vec.capacity() as u64 * 8;
        let mut ask = self.ask_plain(group, 0);
        let first = self.adapters.containers.next;
        self.adapters.containers.next += u64::from(items);
        let (vector, refused) = self.actor(op).run(move || {
            let mut refused = None;
            for item in first..first + u64::from(items) {
                match vector.vec.push(item) {
                    Ok(()) => vector.items.push(item),
                    Err(unstored) => {
                        let (value, error) = unstored.into_parts();
                        assert_eq!(value, item, "it comes back");
                        refused = Some(refusal(error));
                        break;
                    }
                }
            }
            vector.touched = vector.touched.max(vector.items.len());
            (vector, refused)
        });
        let has = vector.vec.capacity() as u64 * 8;
        let key = vector.key;
        let grown = has - had;
        if grown > 0 {
            ask.bytes = grown;
            self.agree(ask, Ok(()));
        }
        self.twin.set(key, has);
        if let Some(error) = refused {
            // By what it needs, after the attempt to double.
            ask.bytes = PAGE as u64;
            self.agree::<()>(ask, Err(error));
        }
        self.take_pages_back(at, vector);
    }

    fn extend_pages(&mut self, op: &Op, number: u8, items: u16) {
        let Some(at) = pick(&self.adapters.containers.vectors, number) else {
            return;
        };
        let mut vector = self.adapters.containers.vectors.remove(at);
        let group = self.twin.of(vector.key).group;
        let had = vector.vec.capacity();
        let whole = (vector.items.len() + usize::from(items)).max(had) * 8;
        let needed = (whole.next_multiple_of(PAGE) - had * 8) as u64;
        let mut ask = self.ask_plain(group, needed);
        let first = self.adapters.containers.next;
        self.adapters.containers.next += u64::from(items);
        let (vector, found) = self.actor(op).run(move || {
            let more: Vec<u64> = (first..first + u64::from(items)).collect();
            let found = vector.vec.extend_from_slice(&more).map_err(refusal);
            if found.is_ok() {
                vector.items.extend(more);
            }
            vector.touched = vector.touched.max(vector.items.len());
            (vector, found)
        });
        // It doubles where there is room for that.
        let grown = (vector.vec.capacity() - had) as u64 * 8;
        assert!(found.is_err() || grown >= needed, "grown by {grown} bytes");
        if found.is_ok() {
            ask.bytes = grown;
        }
        if grown > 0 || found.is_err() {
            self.agree(ask, found);
        }
        self.take_pages_back(at, vector);
    }

    fn settle_pages(&mut self, op: &Op, number: u8, anew: bool) {
        let is_one_node = self.is_one_node();
        let machine = self.machine();
        let nodes = self.setup.nodes.max(1);
        self.with_pages(op, number, move |vector| {
            // A page that nobody had touched has no node at its first look-up; and a vector that has
            // moved looks pages up where they were not before.
            for _ in 0..3 {
                if anew {
                    vector.vec.relocate();
                } else {
                    vector.vec.settle();
                }
            }
            let placement = vector.vec.placement();
            let all = vector.vec.capacity() * 8;
            if is_one_node {
                assert_eq!(placement.on_node(NodeId::new(0)), all as u64, "of one node");
                return;
            }
            let touched = (vector.touched * 8).next_multiple_of(PAGE);
            let unplaced = (all - touched) as u64;
            assert_eq!(placement.unplaced(), unplaced, "pages that nobody touched");
            if !anew {
                return;
            }
            let start = vector.vec.as_slice().as_ptr().addr();
            let mut on = vec![0_u64; nodes];
            for page in (start..start + touched).step_by(PAGE) {
                on[machine.node(page).expect("it was looked up")] += PAGE as u64;
            }
            for (node, bytes) in on.into_iter().enumerate() {
                let found = placement.on_node(NodeId::new(node as u16));
                assert_eq!(found, bytes, "on node {node}, where its pages lie");
            }
        });
    }

    // === Strings ===

    fn store(&mut self, op: &Op, group: u8, length: usize, node: u8) {
        let room = self.adapters.containers.stored.len() < OF_A_KIND_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let store = match &self.adapters.containers.store {
            Some(store) => Arc::clone(store),
            None => {
                let store = Arc::new(self.on(op, group, KmemStore::new_in));
                self.adapters.containers.store.insert(store).clone()
            }
        };
        self.adapters.containers.next += 1;
        let first = self.adapters.containers.next as u8;
        let bytes: Vec<u8> = (0..length).map(|at| first.wrapping_add(at as u8)).collect();
        let charged = KmemStore::object_bytes(length);
        let ask = self.ask_plain(group, charged);
        let node = NodeId::new(u16::from(node) % 3);
        let of_call = bytes.clone();
        let found = self.on(op, group, move |group| {
            store.insert_on(group, node, &of_call).map_err(refusal)
        });
        if let Some(store_key) = self.agree(ask, found) {
            let key = self.twin.hold(group, 0, charged);
            self.adapters.containers.stored.push(Stored {
                key,
                store_key,
                bytes,
            });
        }
    }

    fn remove(&mut self, op: &Op, at: usize) {
        let Stored {
            key,
            store_key,
            bytes,
        } = self.adapters.containers.stored.swap_remove(at);
        self.twin.release(key);
        let store = self.adapters.containers.store.clone();
        self.actor(op).run(move || {
            let store = store.expect("it has the string");
            let is_it = store.get(store_key, |found| found == bytes);
            assert_eq!(is_it, Some(true), "a string of {}", bytes.len());
            assert!(store.remove(store_key), "it was there");
            let gone = store.get(store_key, <[u8]>::len);
            assert_eq!((gone, store.remove(store_key)), (None, false), "it is gone");
        });
    }

    /// Strings come, every second one goes, and as many come in their place: that maps no page. All
    /// of them go, and the tables are as large as after the first time.
    fn turn_over(&mut self, op: &Op, group: u8) {
        let Some(store) = self.adapters.containers.store.clone() else {
            return;
        };
        let Some(group) = self.group(group) else {
            return;
        };
        let all = OF_A_TURN as u64 * KmemStore::object_bytes(TURNED);
        let waits = self.waiting().next().is_some() || self.adapters_wait();
        if waits || !self.shared.is_quiet() || self.twin.admits(group, 0, all, None).is_err() {
            return;
        }
        let turn = move |group: &Group, store: &KmemStore| {
            let put = || {
                let string = [7; TURNED];
                store
                    .insert_on(group, NodeId::new(0), &string)
                    .map_err(refusal)
            };
            let mut keys = (0..OF_A_TURN)
                .map(|_| put())
                .collect::<Result<Vec<_>, _>>()?;
            let before = store.mapped();
            let mut number = 0;
            keys.retain(|&key| {
                number += 1;
                number % 2 == 0 || !store.remove(key)
            });
            while keys.len() < OF_A_TURN {
                keys.push(put()?);
            }
            assert!(store.mapped() <= before, "pages for what has room");
            let are_there = keys.into_iter().all(|key| store.remove(key));
            assert!(are_there, "strings of a turn");
            Ok::<(), ChargeError>(())
        };
        let of_turn = Arc::clone(&store);
        let first = self.on(op, group, move |group| turn(group, &of_turn));
        assert!(first.is_ok(), "{first:?}, and there is room");
        self.settle_accounts();
        self.turn_slab_over(op, group);
        self.turn_processors_over(op);
        let before = denied::in_use();
        self.on(op, group, move |group| {
            (0..8).for_each(|_| turn(group, &store).expect("there is room"));
        });
        self.settle_accounts();
        self.hold(move |_| {
            let left = denied::in_use().saturating_sub(before);
            ensure!(
                left <= LEFT_MAX,
                "{left} bytes are left of strings that came and went"
            );
            Ok(())
        });
    }

    /// Many objects come and go: the slab keeps one page more at most.
    fn turn_slab_over(&mut self, op: &Op, group: usize) {
        let Some(slab) = self.adapters.containers.slab.clone() else {
            return;
        };
        let all = OBJECTS as u64 * slab.object_bytes();
        if self.twin.admits(group, 0, all, None).is_err() {
            return;
        }
        self.on(op, group, move |group| {
            let before = slab.page_count();
            let put = |_| slab.insert_on(group, NodeId::new(0), [7; 6]);
            let objects: Vec<_> = (0..OBJECTS).map_while(|number| put(number).ok()).collect();
            assert_eq!(objects.len(), OBJECTS, "there is room");
            drop(objects);
            let after = slab.page_count();
            assert!(after <= before + 1, "{after} pages, and {before} before");
        });
        self.settle_accounts();
    }

    /// Memory of processors comes and goes by the chunk: the allocator keeps one chunk more at most.
    fn turn_processors_over(&self, op: &Op) {
        let Some(allocator) = self.adapters.containers.per_cpu.clone() else {
            return;
        };
        self.actor(op).run(move || {
            let before = allocator.chunk_count();
            // Of no group, and so as many as it takes.
            let layout = std::alloc::Layout::from_size_align(8 << 10, 8).expect("small");
            let mut all = Vec::new();
            while allocator.chunk_count() < before + 3 {
                all.push(allocator.allocate_uncharged(layout).expect("a small chunk"));
            }
            drop(all);
            let after = allocator.chunk_count();
            assert!(after <= before + 1, "{after} chunks, and {before} before");
        });
    }

    // === Objects ===

    fn put_into_slab(&mut self, op: &Op, group: u8, node: u8) {
        let room = self.adapters.containers.in_slab.len() < OF_A_KIND_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let slab = match &self.adapters.containers.slab {
            Some(slab) => Arc::clone(slab),
            None => {
                let slab = Arc::new(self.on(op, group, KmemSlab::new_in));
                self.adapters.containers.slab.insert(slab).clone()
            }
        };
        let bytes = slab.object_bytes();
        self.adapters.containers.next += 1;
        let row = [self.adapters.containers.next; 6];
        let ask = self.ask_plain(group, bytes);
        let node = NodeId::new(u16::from(node) % 3);
        let found = self.on(op, group, move |group| {
            slab.insert_on(group, node, row).map_err(|unstored| {
                let (value, error) = unstored.into_parts();
                assert_eq!(value, row, "it comes back");
                refusal(error)
            })
        });
        if let Some(object) = self.agree(ask, found) {
            let key = self.twin.hold(group, 0, bytes);
            let it = InSlab { key, object, row };
            self.adapters.containers.in_slab.push(it);
        }
    }

    fn per_cpu(&mut self, op: &Op, group: u8, bytes: usize) {
        let room = self.adapters.containers.of_processors.len() < OF_A_KIND_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let allocator = match &self.adapters.containers.per_cpu {
            Some(allocator) => allocator.clone(),
            None => {
                let made = self.on(op, group, |group| {
                    PerCpuAllocator::new(group, PerCpuShape::new().with_unit(16 << 10))
                });
                let made = made.expect("a small chunk");
                self.adapters.containers.per_cpu.insert(made).clone()
            }
        };
        // What the layout takes is what the allocator says of one that no group pays for.
        let layout = std::alloc::Layout::from_size_align(bytes, 8).expect("small");
        let mut ask = self.ask_plain(group, 0);
        let found = self.on(op, group, move |group| {
            allocator.allocate(layout, group).map_err(refusal)
        });
        ask.bytes = match &found {
            Ok(made) => made.charged(),
            Err(error) => error.requested(),
        };
        let least = bytes as u64;
        assert!(ask.bytes >= least, "{} bytes for {least}", ask.bytes);
        let charged = ask.bytes;
        if let Some(made) = self.agree(ask, found) {
            assert_eq!(made.placement().bytes(), charged, "accounted");
            let key = self.twin.hold(group, 0, charged);
            self.adapters.containers.of_processors.push((key, made));
        }
    }

    // === Pages that move ===

    /// All look up anew where their pages lie.
    fn report_moves(&mut self, op: &Op) {
        let of = &self.adapters.containers;
        let (store, slab, per_cpu) = (of.store.clone(), of.slab.clone(), of.per_cpu.clone());
        self.actor(op).run(move || {
            // A page that nobody had touched has no node at its first look-up.
            for _ in 0..2 {
                if let Some(store) = &store {
                    store.relocate();
                }
                if let Some(slab) = &slab {
                    slab.relocate();
                }
                if let Some(per_cpu) = &per_cpu {
                    per_cpu.migrated(0..usize::MAX);
                }
            }
        });
        for number in 0..self.adapters.containers.vectors.len() {
            self.settle_pages(op, number as u8, true);
        }
        self.strings_lie_where_their_pages_do();
    }

    fn strings_lie_where_their_pages_do(&self) {
        let of = &self.adapters.containers;
        let Some(store) = of.store.as_ref().filter(|_| !self.is_one_node()) else {
            return;
        };
        let mut on = vec![0_u64; self.setup.nodes];
        for string in &of.stored {
            let address = store.get(string.store_key, |bytes| bytes.as_ptr().addr());
            let node = of.machine.node(address.expect("it is there"));
            on[node.expect("it was looked up")] += self.held(string.key);
        }
        let placement = store.placement();
        for (node, bytes) in on.into_iter().enumerate() {
            let found = placement.on_node(NodeId::new(node as u16));
            assert_eq!(found, bytes, "strings on node {node}");
        }
        // Of a tree that is online all accounts are on the nodes of their objects.
        if self.twin.groups.iter().all(|group| group.online)
            && let Some(root) = self.handles[0].first()
        {
            let mut on = vec![0_u64; self.setup.nodes];
            for it in &of.in_slab {
                let address = std::ptr::from_ref::<Row>(&it.object).addr();
                on[of.machine.node(address).expect("it was looked up")] += self.held(it.key);
            }
            let stats = root.numa_stat(StatKey::SLAB, Freshness::Exact);
            for (node, bytes) in on.into_iter().enumerate() {
                let others = self.kmems_as(StatKey::SLAB);
                let places = others.filter_map(|it| it.places.get(&Some(node)));
                let bytes = bytes + places.sum::<u64>();
                let found = stats.get(NodeId::new(node as u16));
                assert_eq!(found, bytes as i64, "objects on node {node}");
            }
        }
    }

    /// The bytes of containers in the group and below, by their statistic.
    fn accounted(&self, top: usize, of: StatKey) -> u64 {
        let all = &self.adapters.containers;
        let mut keys: Vec<Key> = match of {
            StatKey::SLAB => all.in_slab.iter().map(|it| it.key).collect(),
            StatKey::PERCPU => all.of_processors.iter().map(|it| it.0).collect(),
            _ => {
                let vectors = all.vectors.iter().map(|it| it.key);
                vectors.chain(all.stored.iter().map(|it| it.key)).collect()
            }
        };
        keys.extend(self.kmems_as(of).map(|it| it.key));
        let held = keys.into_iter().map(|key| self.twin.of(key));
        held.filter(|held| self.twin.is_within(held.group, top))
            .map(|held| held.bytes)
            .sum()
    }

    /// Memory of no container, by what it is accounted as.
    fn kmems_as(&self, of: StatKey) -> impl Iterator<Item = &NodeMemory> {
        let is_it = move |it: &&NodeMemory| ACCOUNTED[it.item] == of;
        self.kmems.iter().filter(is_it)
    }

    pub(super) fn containers_hold(&self) -> Holds {
        let all = &self.adapters.containers;
        for (group, handles) in self.handles.iter().enumerate() {
            let Some(handle) = handles.first().filter(|_| self.twin.groups[group].online) else {
                continue;
            };
            for of in [StatKey::KERNEL, StatKey::SLAB, StatKey::PERCPU] {
                let found = handle.numa_stat(of, Freshness::Exact).sum();
                let known = self.accounted(group, of);
                ensure_eq!(found, known as i64, "{of:?} of {handle:?}");
            }
        }
        self.accounts_are_where_their_bytes_lie()?;
        if let Some(store) = &all.store {
            ensure_eq!(store.len(), all.stored.len(), "strings");
            let known: u64 = all.stored.iter().map(|it| self.held(it.key)).sum();
            ensure_eq!(store.placement().bytes(), known, "bytes of strings");
            ensure!(store.mapped() as u64 >= known, "pages of strings");
            for string in &all.stored {
                let is_it = store.get(string.store_key, |found| found == string.bytes);
                ensure_eq!(is_it, Some(true), "a string of {}", string.bytes.len());
            }
        }
        if let Some(slab) = &all.slab {
            let most = slab.page_count() * slab.objects_per_page();
            ensure!(most >= all.in_slab.len(), "pages of the slab");
        }
        for it in &all.in_slab {
            ensure_eq!(*it.object, it.row, "an object of the slab");
        }
        for (key, bytes) in &all.of_processors {
            let group = bytes.group();
            let known = self.ids[self.twin.of(*key).group];
            ensure_eq!(group.as_ref().map(Group::id), Some(known), "of processors");
        }
        Ok(())
    }

    /// The statistics of nodes are the sums of what containers say, in a tree that is online: an
    /// offline group leaves some of its own above.
    fn accounts_are_where_their_bytes_lie(&self) -> Holds {
        let all = &self.adapters.containers;
        let Some(root) = self.handles[0].first() else {
            return Ok(());
        };
        if !self.twin.groups.iter().all(|group| group.online) {
            return Ok(());
        }
        let stats = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
        for node in 0..self.setup.nodes.max(1) {
            let of = NodeId::new(node as u16);
            let kmems = self.kmems_as(StatKey::KERNEL);
            let places = kmems.filter_map(|it| it.places.get(&Some(node)));
            let vectors = all.vectors.iter().map(|it| it.vec.placement().on_node(of));
            let strings = all.store.as_ref().map(|it| it.placement().on_node(of));
            let known = places.sum::<u64>() + vectors.sum::<u64>() + strings.unwrap_or(0);
            ensure_eq!(stats.get(of), known as i64, "kernel memory on node {node}");
        }
        let stats = root.numa_stat(StatKey::PERCPU, Freshness::Exact);
        for node in 0..self.setup.nodes.max(1) {
            let of = NodeId::new(node as u16);
            let processors = all.of_processors.iter();
            let known: u64 = processors.map(|it| it.1.placement().on_node(of)).sum();
            ensure_eq!(stats.get(of), known as i64, "of processors on node {node}");
        }
        Ok(())
    }

    pub(super) fn end_containers(&mut self, op: &Op) {
        let of = std::mem::take(&mut self.adapters.containers);
        // The runtime has it, too.
        self.adapters.containers.machine = Arc::clone(&of.machine);
        let vectors = of.vectors.iter().map(|it| it.key);
        let objects = of.in_slab.iter().map(|it| it.key);
        let processors = of.of_processors.iter().map(|it| it.0);
        let strings = of.stored.iter().map(|it| it.key);
        for key in vectors.chain(objects).chain(processors).chain(strings) {
            self.twin.release(key);
        }
        // The store gives the bytes of its strings back itself.
        self.actor(op).run(move || drop(of));
        self.settle_accounts();
    }
}
