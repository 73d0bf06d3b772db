//! `foyer` 0.22, its memory cache: it can be resized, which evicts in a thread for each shard and waits for them.

use std::sync::{Arc, Mutex, PoisonError};

use foyer::{Cache, CacheBuilder};
use memcg::{ChargeError, Group, Priority, Reclaim, ReclaimContext, Registration};

use crate::entry::Entry;

/// A resize starts a thread for each.
const SHARDS: usize = 4;

// ANCHOR: foyer
struct Inner {
    cache: Cache<u64, Arc<Entry>>,
    /// Its largest weight. The group's limits decide below that.
    capacity: usize,
    resizes: Mutex<()>,
}

impl Reclaim for Inner {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let _alone = self.resizes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.cache.usage();
        let smaller = before.saturating_sub(usize::try_from(want).unwrap_or(usize::MAX)).max(SHARDS);
        // An error leaves entries where they are: then less is freed, and the next reclaimer is asked for more.
        let resized = self.cache.resize(smaller).and_then(|()| self.cache.resize(self.capacity));
        if resized.is_err() { 0 } else { before.saturating_sub(self.cache.usage()) as u64 }
    }
}

/// A cache in a group, which gives back what the group's relatives lack.
pub struct FoyerCache {
    inner: Arc<Inner>,
    group: Group,
    _registration: Registration,
}

impl FoyerCache {
    /// Creates a cache of at most `capacity` bytes, charged to `group`.
    pub fn new(group: &Group, capacity: usize) -> Self {
        let weigh = |_: &u64, entry: &Arc<Entry>| usize::try_from(entry.weight()).unwrap_or(usize::MAX);
        let cache = CacheBuilder::new(capacity).with_shards(SHARDS).with_weighter(weigh).build();
        let inner = Arc::new(Inner { cache, capacity, resizes: Mutex::new(()) });
        let registration = group.register_reclaimer(inner.clone(), Priority::NORMAL);
        FoyerCache { inner, group: group.clone(), _registration: registration }
    }

    /// Returns an entry, and loads it where it is not there.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], where there is no room for it and nothing to evict.
    pub fn get(&self, key: u64, len: usize, load: impl FnOnce() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError> {
        if let Some(entry) = self.inner.cache.get(&key) {
            return Ok(Arc::clone(entry.value()));
        }
        // No lock of the cache is held: the charge may call its reclaimer.
        let entry = Entry::load(&self.group, len, load)?;
        self.inner.cache.insert(key, Arc::clone(&entry));
        Ok(entry)
    }
}
// ANCHOR_END: foyer

impl std::fmt::Debug for FoyerCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FoyerCache").field("group", &self.group).finish_non_exhaustive()
    }
}
