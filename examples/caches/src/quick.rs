//! `quick_cache` 0.7: it can be resized, which evicts at once, and drops what it evicts outside of its locks.

use std::sync::{Arc, Mutex, PoisonError};

use memcg::{ChargeError, Group, Priority, Reclaim, ReclaimContext, Registration};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::entry::Entry;

// ANCHOR: quick
#[derive(Clone)]
struct ByCharge;

impl Weighter<u64, Arc<Entry>> for ByCharge {
    fn weight(&self, _: &u64, entry: &Arc<Entry>) -> u64 {
        entry.weight()
    }
}

struct Inner {
    cache: Cache<u64, Arc<Entry>, ByCharge>,
    /// Its largest weight. The group's limits decide below that.
    capacity: u64,
    resizes: Mutex<()>,
}

impl Reclaim for Inner {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let _alone = self.resizes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.cache.weight();
        // Each shard keeps a byte of capacity: of a shard without any the library forgets the proportions.
        let least = self.cache.num_shards() as u64;
        self.cache.set_capacity(before.saturating_sub(want).max(least));
        self.cache.set_capacity(self.capacity);
        before.saturating_sub(self.cache.weight())
    }
}

/// A cache in a group, which gives back what the group's relatives lack.
pub struct QuickCache {
    inner: Arc<Inner>,
    group: Group,
    _registration: Registration,
}

impl QuickCache {
    /// Creates a cache of at most `capacity` bytes for about so many entries, charged to `group`.
    pub fn new(group: &Group, entries: usize, capacity: u64) -> Self {
        let cache = Cache::with_weighter(entries, capacity, ByCharge);
        let inner = Arc::new(Inner { cache, capacity, resizes: Mutex::new(()) });
        let registration = group.register_reclaimer(inner.clone(), Priority::NORMAL);
        QuickCache { inner, group: group.clone(), _registration: registration }
    }

    /// Returns an entry, and loads it where it is not there.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], where there is no room for it and nothing to evict.
    pub fn get(&self, key: u64, len: usize, load: impl FnOnce() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError> {
        if let Some(entry) = self.inner.cache.get(&key) {
            return Ok(entry);
        }
        // No lock of the cache is held: the charge may call its reclaimer.
        let entry = Entry::load(&self.group, len, load)?;
        self.inner.cache.insert(key, Arc::clone(&entry));
        Ok(entry)
    }
}
// ANCHOR_END: quick

impl std::fmt::Debug for QuickCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuickCache").field("group", &self.group).finish_non_exhaustive()
    }
}
