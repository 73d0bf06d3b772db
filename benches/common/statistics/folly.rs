//! folly's `ThreadCachedInt`, one for each (group, item): a thread adds to an integer of its own
//! and pushes that to the shared one every so many adds; a full read locks and sums all threads.
//!
//! The integers know nothing of a tree, so an add goes up it, through the thread's own integers.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::shape::Shape;
use super::threads::Threads;
use super::{BATCH, Item, Statistics};

/// One integer of one thread. Only its thread writes.
#[derive(Default)]
struct Cached {
    value: AtomicI64,
    updates: AtomicU32,
}

pub(crate) struct Folly {
    shape: Shape,
    threads: Threads<Box<[Cached]>>,
    targets: Box<[AtomicI64]>,
    /// Readers that look at all threads exclude each other, and threads that come or go.
    access: Mutex<()>,
}

impl Folly {
    pub(crate) fn new(shape: Shape) -> Self {
        let targets = (0..shape.len() * Item::COUNT)
            .map(|_| AtomicI64::new(0))
            .collect();
        Folly {
            shape,
            threads: Threads::new(),
            targets,
            access: Mutex::new(()),
        }
    }

    /// `readFast`: without what threads have not pushed.
    pub(crate) fn read_fast(&self, group: usize, item: Item) -> i64 {
        self.targets[at(group, item)].load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn push(&self, at: usize, cached: &Cached) {
        self.targets[at].fetch_add(cached.value.load(Ordering::Relaxed), Ordering::Release);
        cached.value.store(0, Ordering::Release);
        cached.updates.store(0, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn integers(&self) -> Box<[Cached]> {
        let _access = self.access.lock();
        self.targets.iter().map(|_| Cached::default()).collect()
    }
}

#[inline(always)]
fn at(group: usize, item: Item) -> usize {
    group * Item::COUNT + item as usize
}

impl Statistics for Folly {
    #[inline(always)]
    fn add(&self, group: usize, item: Item, delta: i64) {
        let integers = self.threads.mine(|| self.integers());
        for group in self.shape.path(group) {
            let at = at(group, item);
            let cached = &integers[at];
            cached.value.store(
                cached.value.load(Ordering::Relaxed) + delta,
                Ordering::Relaxed,
            );
            let updates = cached.updates.load(Ordering::Relaxed) + 1;
            cached.updates.store(updates, Ordering::Relaxed);
            if u64::from(updates) > BATCH {
                self.push(at, cached);
            }
        }
    }

    /// `readFull`.
    fn read(&self, group: usize, item: Item) -> i64 {
        let at = at(group, item);
        let _access = self.access.lock();
        let pushed = self.targets[at].load(Ordering::Acquire);
        pushed
            + self
                .threads
                .all()
                .map(|integers| integers[at].value.load(Ordering::Acquire))
                .sum::<i64>()
    }

    fn flush(&self, _group: usize) {}
}
