//! `moka` 0.12: it can neither be resized nor evict some bytes, so the reclaimer removes entries in an order of its own,
//! the oldest first. What moka removes it drops later: after its pending tasks have run, and then at an epoch of its
//! tables. So the map has only a reference that keeps nothing, and a table beside it has the entries.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memcg::{ChargeError, Group, Priority, Reclaim, ReclaimContext, Registration};
use moka::notification::RemovalCause;
use moka::sync::Cache;

use crate::entry::{self, Entry};
use crate::loads::Loads;

// ANCHOR: moka
/// The entries that moka has, in the order in which they came.
#[derive(Default)]
struct Entries {
    by_key: HashMap<u64, Arc<Entry>>,
    /// It may have keys that moka has evicted since.
    order: VecDeque<u64>,
}

#[derive(Default)]
struct Table(Mutex<Entries>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, key: u64, entry: Arc<Entry>) {
        let replaced = {
            let mut entries = self.lock();
            if entries.order.len() > 2 * entries.by_key.len() + 64 {
                let Entries { by_key, order } = &mut *entries;
                order.retain(|key| by_key.contains_key(key));
            }
            entries.order.push_back(key);
            entries.by_key.insert(key, entry)
        };
        // A drop may run wakers, so it has no lock.
        drop(replaced);
    }

    fn weight(&self) -> u64 {
        self.lock().by_key.values().map(|entry| entry.weight()).sum()
    }

    /// Takes out the oldest entry that is not above this weight.
    fn oldest(&self, spared: u64) -> Option<(u64, Arc<Entry>)> {
        let mut entries = self.lock();
        let Entries { by_key, order } = &mut *entries;
        while order.front().is_some_and(|key| !by_key.contains_key(key)) {
            order.pop_front();
        }
        let is_light = |key: &u64| by_key.get(key).is_some_and(|entry| entry.weight() <= spared);
        let key = order.iter().position(is_light).and_then(|at| order.remove(at))?;
        by_key.remove(&key).map(|entry| (key, entry))
    }

    /// Moka has evicted this entry, unless another one has the key by now.
    fn forget(&self, key: u64, evicted: &Weak<Entry>) {
        let forgotten = {
            let mut entries = self.lock();
            let is_same = entries.by_key.get(&key).is_some_and(|entry| Arc::as_ptr(entry) == evicted.as_ptr());
            is_same.then(|| entries.by_key.remove(&key))
        };
        drop(forgotten);
    }
}

struct Inner {
    cache: Cache<u64, Weak<Entry>>,
    table: Arc<Table>,
}

impl Reclaim for Inner {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        entry::evict(want, self.table.weight(), |want, spared| {
            let mut freed = 0;
            while freed < want
                && let Some((key, entry)) = self.table.oldest(spared)
            {
                self.cache.invalidate(&key);
                freed += entry.weight();
            }
            freed
        })
    }
}

/// A cache in a group, which gives back what the group's relatives lack.
pub struct MokaCache {
    inner: Arc<Inner>,
    group: Group,
    loads: Loads,
    _registration: Registration,
}

impl MokaCache {
    /// Creates a cache of at most `capacity` bytes, charged to `group`.
    pub fn new(group: &Group, capacity: u64) -> Self {
        let table = Arc::new(Table::default());
        let evicted = Arc::clone(&table);
        let weigh = |_: &u64, entry: &Weak<Entry>| {
            entry.upgrade().map_or(1, |entry| u32::try_from(entry.weight()).unwrap_or(u32::MAX))
        };
        let cache = Cache::builder()
            .max_capacity(capacity)
            .weigher(weigh)
            .eviction_listener(move |key, entry: Weak<Entry>, cause| {
                if cause != RemovalCause::Explicit {
                    evicted.forget(*key, &entry);
                }
            })
            .build();
        let inner = Arc::new(Inner { cache, table });
        let registration = group.register_reclaimer(inner.clone(), Priority::NORMAL);
        MokaCache { inner, group: group.clone(), loads: Loads::default(), _registration: registration }
    }

    fn find(&self, key: u64) -> Option<Arc<Entry>> {
        self.inner.cache.get(&key).and_then(|entry| entry.upgrade())
    }

    /// Returns an entry, and loads it where it is not there. Of threads that want it at once, one loads it.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], where there is no room for it and nothing to evict.
    pub fn get(&self, key: u64, len: usize, load: impl FnOnce() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError> {
        if let Some(entry) = self.find(key) {
            return Ok(entry);
        }
        // No lock of the cache is held: the charge may call its reclaimer.
        self.loads.load(
            key,
            || self.find(key),
            || {
                let entry = Entry::load(&self.group, len, load)?;
                self.inner.table.insert(key, Arc::clone(&entry));
                self.inner.cache.insert(key, Arc::downgrade(&entry));
                Ok(entry)
            },
        )
    }
}
// ANCHOR_END: moka

impl std::fmt::Debug for MokaCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MokaCache").field("group", &self.group).finish_non_exhaustive()
    }
}
