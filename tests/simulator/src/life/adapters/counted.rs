//! Values in containers whose own code panics, as they are made, cloned and dropped.
//!
//! Each value is counted. After each step there are as many as the containers have, and the group is
//! charged for what the containers say, whatever has panicked. All of it lives within one operation:
//! the twin has none of it.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use memcg::Group;
use memcg::kmem::NodeId;
use memcg_kmem::{
    KmemBox, KmemError, KmemSlab, KmemStore, KmemVec, NotStoredError, PerCpu, PerCpuAllocator,
    PerCpuBytes, PerCpuShape, StoreKey,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::super::Life;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::Op;

const STEPS: usize = 40;

const ON_PURPOSE: &str = "a value that panics on purpose";

/// Bytes of a processor: few objects fill a chunk.
const UNIT: usize = 16 << 10;

/// How many values there are, and when the next panic comes.
#[derive(Default)]
struct Tally {
    there: AtomicU64,
    /// Calls of a value's code until one panics, once. None below 0.
    left: AtomicI64,
}

impl Tally {
    fn tick(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            std::panic::panic_any(ON_PURPOSE);
        }
    }
}

/// A value that is counted.
struct Value(Arc<Tally>);

impl Value {
    fn new(tally: &Arc<Tally>) -> Value {
        tally.there.fetch_add(1, Ordering::SeqCst);
        Value(Arc::clone(tally))
    }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        self.0.tick();
        Value::new(&self.0)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.0.there.fetch_sub(1, Ordering::SeqCst);
        self.0.tick();
    }
}

/// Containers, and what there is beside them.
struct World<'a> {
    group: &'a Group,
    before: u64,
    nodes: u16,
    tally: Arc<Tally>,
    vec: KmemVec<Value>,
    slab: KmemSlab<Value>,
    boxes: Vec<KmemBox<Value>>,
    store: KmemStore,
    /// The strings of the store, and their lengths.
    keys: Vec<(StoreKey, usize)>,
    allocator: PerCpuAllocator,
    processors: Vec<PerCpu<Value>>,
    bytes: Vec<PerCpuBytes>,
}

/// Where the code of a value panics, the run goes on. True: it has.
fn panics(work: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else {
        return false;
    };
    if panic.downcast_ref::<&str>() != Some(&ON_PURPOSE) {
        resume_unwind(panic);
    }
    true
}

fn is_refusal(error: &KmemError) -> bool {
    matches!(error, KmemError::Charge(_))
}

fn stored<T, S>(stored: Result<S, NotStoredError<T>>) -> Option<S> {
    match stored {
        Ok(stored) => Some(stored),
        Err(unstored) => {
            let (value, error) = unstored.into_parts();
            drop(value);
            assert!(is_refusal(&error), "{error}");
            None
        }
    }
}

fn allocator_of(group: &Group) -> PerCpuAllocator {
    let made = PerCpuAllocator::new(group, PerCpuShape::new().with_unit(UNIT));
    made.expect("a small chunk")
}

impl<'a> World<'a> {
    fn new(group: &'a Group, nodes: usize) -> World<'a> {
        let tally = Arc::new(Tally::default());
        tally.left.store(-1, Ordering::SeqCst);
        World {
            group,
            before: group.live(),
            nodes: nodes as u16,
            tally,
            vec: KmemVec::new_in(group),
            slab: KmemSlab::new_in(group),
            boxes: Vec::new(),
            store: KmemStore::new_in(group),
            keys: Vec::new(),
            allocator: allocator_of(group),
            processors: Vec::new(),
            bytes: Vec::new(),
        }
    }

    fn has_objects(&self) -> bool {
        !self.processors.is_empty() || !self.bytes.is_empty()
    }

    /// In every second step something panics, if there is code of a value to do so.
    fn step(&mut self, rng: &mut Xoshiro256PlusPlus) -> Holds {
        let left = rng.random_range(-6..6);
        self.tally.left.store(left, Ordering::SeqCst);
        let done = self.act(rng, left);
        self.tally.left.store(-1, Ordering::SeqCst);
        done.and_then(|()| self.holds())
    }

    fn act(&mut self, rng: &mut Xoshiro256PlusPlus, left: i64) -> Holds {
        let many = rng.random_range(0..8);
        match rng.random_range(0..16) {
            13 | 14 => {
                let length = 500 * many;
                let node = NodeId::new(rng.random_range(0..self.nodes));
                match self.store.insert_on(self.group, node, &vec![7; length]) {
                    Ok(key) => self.keys.push((key, length)),
                    Err(error) => assert!(is_refusal(&error), "{error}"),
                }
            }
            15 => self.read_strings(rng)?,
            0 | 1 => {
                let value = Value::new(&self.tally);
                panics(|| _ = stored(self.vec.push(value)));
            }
            2 | 3 => self.extend(many, left)?,
            4 => {
                let (keeps, had) = (many, self.vec.len());
                panics(|| self.vec.truncate(keeps));
                ensure_eq!(self.vec.len(), had.min(keeps), "values that are kept");
            }
            5 => {
                let popped = self.vec.pop();
                panics(|| drop(popped));
                self.vec.shrink_to_fit();
            }
            6 => {
                let others = KmemVec::new_in(self.group);
                let vec = std::mem::replace(&mut self.vec, others);
                panics(|| drop(vec));
            }
            7 => {
                let node = NodeId::new(rng.random_range(0..self.nodes));
                let value = Value::new(&self.tally);
                let mut inserted = None;
                panics(|| inserted = stored(self.slab.insert_on(self.group, node, value)));
                self.boxes.extend(inserted);
            }
            8 if !self.boxes.is_empty() => {
                let object = self.boxes.swap_remove(many % self.boxes.len());
                panics(|| match left % 2 {
                    0 => drop(object),
                    _ => drop(object.into_inner()),
                });
            }
            8 => {
                // Its objects live on without it.
                self.slab = KmemSlab::new_in(self.group);
            }
            9 => self.make_for_processors(),
            10 => self.take_bytes(many),
            _ => self.end_of_processors(rng, many)?,
        }
        Ok(())
    }

    /// Where a clone panics those before it stay.
    fn extend(&mut self, many: usize, left: i64) -> Holds {
        let values: Vec<Value> = (0..many).map(|_| Value::new(&self.tally)).collect();
        let had = self.vec.len();
        let mut refused = false;
        let panicked = panics(|| {
            if let Err(error) = self.vec.extend_from_slice(&values) {
                assert!(is_refusal(&error), "{error}");
                refused = true;
            }
        });
        let expected = match (panicked, refused) {
            (true, _) => left as usize,
            (_, true) => 0,
            _ => many,
        };
        let found = self.vec.len() - had;
        panics(|| drop(values));
        ensure_eq!(found, expected, "values of {many} that were cloned");
        Ok(())
    }

    /// They are read by code that panics, and go. Then no page is kept for them.
    fn read_strings(&mut self, rng: &mut Xoshiro256PlusPlus) -> Holds {
        for (key, length) in std::mem::take(&mut self.keys) {
            let mut read = None;
            panics(|| {
                read = self.store.get(key, |bytes| {
                    self.tally.tick();
                    bytes.len()
                });
            });
            ensure!(
                read.is_none_or(|read| read == length),
                "{read:?} of {length}"
            );
            if rng.random_bool(0.3) {
                self.keys.push((key, length));
            } else {
                ensure!(self.store.remove(key), "a string of {length} is there");
            }
        }
        self.store.compact();
        let (left, mapped) = (self.keys.len(), self.store.mapped());
        ensure_eq!(self.store.len(), left, "strings");
        ensure!(left > 0 || mapped == 0, "{mapped} bytes are kept for none");
        Ok(())
    }

    fn make_for_processors(&mut self) {
        let mut made = None;
        panics(|| {
            let tally = &self.tally;
            let make = |_| {
                tally.tick();
                Value::new(tally)
            };
            match PerCpu::new_with_of(&self.allocator, self.group, make) {
                Ok(values) => made = Some(values),
                Err(error) => assert!(is_refusal(&error), "{error}"),
            }
        });
        self.processors.extend(made);
    }

    fn take_bytes(&mut self, many: usize) {
        let size = if many > 4 { 12 << 10 } else { 500 };
        let layout = Layout::from_size_align(size, 8).expect("small");
        match self.allocator.allocate(layout, self.group) {
            Ok(bytes) => self.bytes.push(bytes),
            Err(error) => assert!(is_refusal(&error), "{error}"),
        }
    }

    /// Of chunks that have nothing one stays, until that is asked for.
    fn end_of_processors(&mut self, rng: &mut Xoshiro256PlusPlus, many: usize) -> Holds {
        let before = self.allocator.chunk_count();
        if rng.random_bool(0.3) {
            let trimmed = self.allocator.trim();
            let after = self.allocator.chunk_count();
            ensure_eq!(before - after, trimmed, "chunks that are given back");
            ensure!(
                self.has_objects() || after == 0,
                "{after} chunks of no object are left"
            );
            return Ok(());
        }
        let had_objects = self.has_objects();
        if rng.random() && !self.processors.is_empty() {
            let values = self.processors.swap_remove(many % self.processors.len());
            panics(|| drop(values));
        } else if !self.bytes.is_empty() {
            drop(self.bytes.swap_remove(many % self.bytes.len()));
        }
        if had_objects && !self.has_objects() {
            let after = self.allocator.chunk_count();
            ensure_eq!(after, 1, "chunks that stay for the next object");
        }
        Ok(())
    }

    fn holds(&self) -> Holds {
        let of_processors: usize = self.processors.iter().map(|of| of.iter().len()).sum();
        let known = self.vec.len() + self.boxes.len() + of_processors;
        let found = self.tally.there.load(Ordering::SeqCst);
        ensure_eq!(found, known as u64, "values that there are");
        let processors = self.processors.iter().map(PerCpu::bytes);
        let of_processors: u64 = processors
            .chain(&self.bytes)
            .map(PerCpuBytes::charged)
            .sum();
        let strings = self.keys.iter();
        let strings = strings.map(|&(_, length)| KmemStore::object_bytes(length));
        let known = (self.vec.capacity() * size_of::<Value>()) as u64
            + self.boxes.len() as u64 * self.slab.object_bytes()
            + strings.sum::<u64>()
            + of_processors;
        let found = self.group.live() - self.before;
        ensure_eq!(found, known, "charged for containers of values");
        Ok(())
    }

    fn end(self) -> Holds {
        let World {
            group,
            before,
            tally,
            ..
        } = &self;
        let (group, before, tally) = (*group, *before, Arc::clone(tally));
        drop(self);
        let found = (tally.there.load(Ordering::SeqCst), group.live() - before);
        ensure_eq!(found, (0, 0), "values and bytes at the end");
        ensure_eq!(Arc::strong_count(&tally), 1, "who keeps a value");
        Ok(())
    }
}

fn live(group: &Group, nodes: usize, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut world = World::new(group, nodes);
    let lived = (0..STEPS).try_for_each(|_| world.step(&mut rng));
    lived.and_then(|()| world.end())
}

impl Life {
    pub(super) fn values_that_panic(&mut self, op: &Op, group: u8, seed: u64) {
        // What others charge meanwhile would be in the sums above.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        // A cache would give, or a victim.
        if self.had_caches || !self.hooks.is_empty() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        let nodes = self.setup.nodes.max(1);
        let lived = self.on(op, group, move |group| live(group, nodes, seed));
        self.settle_accounts();
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}
