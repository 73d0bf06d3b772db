//! A cache that is one charge: what eviction itself costs is not what these rows are about.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Charge, Group, Reclaim, ReclaimContext};
use parking_lot::Mutex;

pub(crate) struct Cache {
    group: Group,
    charge: Mutex<Charge>,
    /// The bytes evicted since the last refill.
    evicted: AtomicU64,
}

impl Cache {
    pub(crate) fn new(group: &Group, bytes: u64) -> Self {
        let charge = group.charge(Bytes(bytes)).expect("room in the tree");
        Cache {
            group: group.clone(),
            charge: Mutex::new(charge),
            evicted: AtomicU64::new(0),
        }
    }

    pub(crate) fn evict(&self, want: u64) -> u64 {
        let freed = self.charge.lock().shrink(Bytes(want));
        self.evicted.fetch_add(freed, Ordering::Relaxed);
        freed
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.charge.lock().bytes()
    }

    /// Charge again what was evicted.
    pub(crate) fn refill(&self) {
        let evicted = self.evicted.swap(0, Ordering::Relaxed);
        self.put(
            self.group
                .charge(Bytes(evicted))
                .expect("as much was freed"),
        );
    }

    pub(crate) fn put(&self, charge: Charge) {
        self.charge.lock().merge(charge).expect("of one group");
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        self.evict(want)
    }

    fn reclaimable(&self) -> u64 {
        self.bytes()
    }
}
