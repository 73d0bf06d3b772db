//! Containers of `memcg-kmem` that threads share: vectors that go from thread to thread, a store of
//! strings, a slab of objects, memory of processors, and pages that move meanwhile.
//!
//! Each holds what was put into it, whichever thread looks; and at rest the statistics of nodes are
//! what the containers account.

use std::alloc::Layout;
use std::sync::Arc;

use memcg::kmem::NodeId;
use memcg::{Freshness, Group, StatKey};
use memcg_kmem::{
    KmemBox, KmemSlab, KmemStore, KmemVec, PerCpuAllocator, PerCpuBytes, PerCpuShape, StoreKey,
};

use super::{Bag, World, lock};
use crate::holds::ensure_eq;
use crate::machine::{Machine, PAGE, refusal};
use crate::script::Adapter;

type Row = [u64; 6];

/// What all threads of a run share.
pub(super) struct Containers {
    machine: Arc<Machine>,
    vectors: Bag<(KmemVec<u64>, Vec<u64>)>,
    store: KmemStore,
    strings: Bag<(Group, StoreKey, Vec<u8>)>,
    slab: Arc<KmemSlab<Row>>,
    objects: Bag<(Group, KmemBox<Row>, Row)>,
    per_cpu: Option<PerCpuAllocator>,
    of_processors: Bag<PerCpuBytes>,
}

impl Containers {
    /// The pages are the root's.
    pub(super) fn new(root: &Group, machine: Arc<Machine>) -> Self {
        let shape = PerCpuShape::new().with_unit(16 << 10);
        Containers {
            machine,
            vectors: Bag::new(),
            store: KmemStore::new_in(root),
            strings: Bag::new(),
            slab: Arc::new(KmemSlab::new_in(root)),
            objects: Bag::new(),
            per_cpu: PerCpuAllocator::new(root, shape).ok(),
            of_processors: Bag::new(),
        }
    }

    /// The bytes that containers hold of each group.
    pub(super) fn held(&self) -> Vec<(Group, u64)> {
        let mut held = Vec::new();
        for (vector, _) in lock(&self.vectors.0).iter() {
            held.push((vector.group(), vector.capacity() as u64 * 8));
        }
        for (group, _, bytes) in lock(&self.strings.0).iter() {
            held.push((group.clone(), KmemStore::object_bytes(bytes.len())));
        }
        for (group, ..) in lock(&self.objects.0).iter() {
            held.push((group.clone(), self.slab.object_bytes()));
        }
        for bytes in lock(&self.of_processors.0).iter() {
            held.extend(bytes.group().map(|group| (group, bytes.charged())));
        }
        held
    }

    /// Each container has what was put into it, and its statistics say so.
    pub(super) fn hold(&self, root: &Group) -> Result<(), String> {
        let strings = lock(&self.strings.0);
        ensure_eq!(self.store.len(), strings.len(), "strings");
        for (_, key, bytes) in strings.iter() {
            let is_it = self.store.get(*key, |found| found == bytes);
            ensure_eq!(is_it, Some(true), "a string of {}", bytes.len());
        }
        let objects = lock(&self.objects.0);
        for (_, object, row) in objects.iter() {
            ensure_eq!(**object, *row, "an object of the slab");
        }
        let bytes = objects.len() as u64 * self.slab.object_bytes();
        let found = root.numa_stat(StatKey::SLAB, Freshness::Exact).sum();
        ensure_eq!(found, bytes as i64, "objects of the slab");
        let processors = lock(&self.of_processors.0);
        let bytes: u64 = processors.iter().map(PerCpuBytes::charged).sum();
        let found = root.numa_stat(StatKey::PERCPU, Freshness::Exact).sum();
        ensure_eq!(found, bytes as i64, "memory of processors");
        Ok(())
    }

    /// All that is in them goes, and then they do.
    pub(super) fn end(self) {
        drop(self.vectors.take_all());
        for (_, key, bytes) in self.strings.take_all() {
            self.remove(key, &bytes);
        }
        drop(self.objects.take_all());
        drop(self.of_processors.take_all());
    }

    fn remove(&self, key: StoreKey, bytes: &[u8]) {
        let is_it = self.store.get(key, |found| found == bytes);
        assert_eq!(is_it, Some(true), "a string of {}", bytes.len());
        assert!(self.store.remove(key), "it was there");
        let gone = self.store.get(key, <[u8]>::len);
        assert_eq!((gone, self.store.remove(key)), (None, false), "it is gone");
    }
}

impl World {
    pub(super) fn step_containers(&self, adapter: &Adapter) {
        let all = &self.containers;
        match *adapter {
            Adapter::Pages(group, capacity) if !all.vectors.is_full() => {
                let group = self.group(group);
                let bytes = (usize::from(capacity) * 8).next_multiple_of(PAGE) as u64;
                let made = self.ask(bytes, false, || {
                    KmemVec::with_capacity_in(capacity.into(), &group).map_err(refusal)
                });
                made.into_iter()
                    .for_each(|vector| all.vectors.put((vector, Vec::new())));
            }
            Adapter::PushPages(number, items) => self.push_pages(number, items.into()),
            Adapter::PopPages(number, items) => self.with_pages(number, |vector, known| {
                for _ in 0..items {
                    assert_eq!(vector.pop(), known.pop(), "the last item");
                }
            }),
            Adapter::CutPages(number, items) => self.with_pages(number, |vector, known| {
                vector.truncate(items.into());
                known.truncate(items.into());
            }),
            Adapter::ShrinkPages(number) => {
                self.with_pages(number, |vector, _| vector.shrink_to_fit());
            }
            Adapter::SettlePages(number, anew) => self.with_pages(number, |vector, _| {
                if anew {
                    vector.relocate();
                } else {
                    vector.settle();
                }
            }),
            Adapter::DropPages(number) => {
                if let Some((vector, _)) = all.vectors.take(number) {
                    let bytes = vector.capacity() as u64 * 8;
                    drop(vector);
                    self.asked.take_off(bytes);
                }
            }
            Adapter::Store(group, length, node) if !all.strings.is_full() => {
                let group = self.group(group);
                let bytes: Vec<u8> = (0..length).map(|at| node.wrapping_add(at as u8)).collect();
                let node = NodeId::new(u16::from(node) % 3);
                let charged = KmemStore::object_bytes(bytes.len());
                let made = self.ask(charged, false, || {
                    all.store.insert_on(&group, node, &bytes).map_err(refusal)
                });
                if let Some(key) = made {
                    all.strings.put((group, key, bytes));
                }
            }
            Adapter::Remove(number) => {
                if let Some((_, key, bytes)) = all.strings.take(number) {
                    all.remove(key, &bytes);
                    self.asked.take_off(KmemStore::object_bytes(bytes.len()));
                }
            }
            Adapter::Compact => _ = all.store.compact(),
            Adapter::Slab(group, node) if !all.objects.is_full() => {
                let group = self.group(group);
                let row = [self.asked.next(); 6];
                let node = NodeId::new(u16::from(node) % 3);
                let made = self.ask(all.slab.object_bytes(), false, || {
                    let made = all.slab.insert_on(&group, node, row);
                    made.map_err(|unstored| refusal(unstored.into_parts().1))
                });
                if let Some(object) = made {
                    all.objects.put((group, object, row));
                }
            }
            Adapter::DropSlab(number) => {
                if let Some((_, object, row)) = all.objects.take(number) {
                    assert_eq!(*object, row, "an object of the slab");
                    drop(object);
                    self.asked.take_off(all.slab.object_bytes());
                }
            }
            Adapter::PerCpu(group, bytes) if !all.of_processors.is_full() => {
                let Some(allocator) = &all.per_cpu else {
                    return;
                };
                let group = self.group(group);
                let layout = Layout::from_size_align(bytes.into(), 8).expect("small");
                // More than the parts of all processors, with what each is rounded up by.
                let most = (u64::from(bytes) + 64) * 64 + PAGE as u64;
                let made = self.ask(most, false, || {
                    allocator.allocate(layout, &group).map_err(refusal)
                });
                if let Some(made) = made {
                    self.asked.take_off(most - made.charged());
                    all.of_processors.put(made);
                }
            }
            Adapter::DropPerCpu(number) => {
                if let Some(made) = all.of_processors.take(number) {
                    let bytes = made.charged();
                    drop(made);
                    self.asked.take_off(bytes);
                }
            }
            Adapter::MovePages(by, are_reported) => {
                all.machine.move_pages(by.into());
                if are_reported {
                    all.store.relocate();
                    all.slab.relocate();
                    if let Some(allocator) = &all.per_cpu {
                        // It has accounts in hand, and gives back what ends meanwhile.
                        self.asked.moves(|| allocator.migrated(0..usize::MAX));
                    }
                }
            }
            // The others live on threads that take turns.
            _ => {}
        }
    }

    fn with_pages(&self, number: u8, work: impl FnOnce(&mut KmemVec<u64>, &mut Vec<u64>)) {
        let all = &self.containers;
        let Some((mut vector, mut known)) = all.vectors.take(number) else {
            return;
        };
        let before = vector.capacity() as u64 * 8;
        work(&mut vector, &mut known);
        let after = vector.capacity() as u64 * 8;
        assert!(*vector == *known, "items of a vector in pages");
        assert_eq!(vector.placement().bytes(), after, "accounted");
        self.asked.take_off(before - after);
        all.vectors.put((vector, known));
    }

    fn push_pages(&self, number: u8, items: usize) {
        let all = &self.containers;
        let Some((mut vector, mut known)) = all.vectors.take(number) else {
            return;
        };
        let before = vector.capacity() as u64 * 8;
        // It grows by twice of what it has.
        let most = (before + items as u64 * 8 + PAGE as u64) * 2;
        let more: Vec<u64> = (0..items).map(|_| self.asked.next()).collect();
        let made = self.ask(most, false, || {
            vector.extend_from_slice(&more).map_err(refusal)
        });
        let grown = vector.capacity() as u64 * 8 - before;
        if made.is_some() {
            known.extend(more);
            self.asked.take_off(most - grown);
        } else {
            assert_eq!(grown, 0, "a vector that was refused");
        }
        assert!(*vector == *known, "items of a vector in pages");
        all.vectors.put((vector, known));
    }
}
