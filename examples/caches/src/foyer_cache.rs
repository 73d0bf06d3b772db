//! `foyer` 0.22, its memory cache: it can be resized, which evicts in a thread for each shard and waits for them. It does not
//! evict what a reader has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use foyer::{Cache, CacheBuilder};
use memcg::{ChargeError, Group, Priority, Reclaim, ReclaimContext, Registration};

use crate::entry::{self, Entry, LIGHT};
use crate::loads::Loads;

// ANCHOR: foyer
struct Inner {
    cache: Cache<u64, Arc<Entry>>,
    /// Its largest weight. The group's limits decide below that.
    capacity: usize,
    resizes: Mutex<()>,
    /// The weights of heavier entries, of which some may be gone.
    heavy: Mutex<HashMap<u64, u64>>,
}

impl Inner {
    fn keep(&self, key: u64, entry: &Arc<Entry>) {
        if entry.weight() > LIGHT {
            self.heavy.lock().unwrap_or_else(PoisonError::into_inner).insert(key, entry.weight());
        }
        self.cache.insert(key, Arc::clone(entry));
    }

    /// The keys of entries above this weight.
    fn above(&self, weight: u64) -> Vec<u64> {
        let mut heavy = self.heavy.lock().unwrap_or_else(PoisonError::into_inner);
        heavy.retain(|key, _| self.cache.contains(key));
        heavy.iter().filter(|(_, of)| **of > weight).map(|(key, _)| *key).collect()
    }
}

impl Reclaim for Inner {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let _alone = self.resizes.lock().unwrap_or_else(PoisonError::into_inner);
        entry::evict(want, self.cache.usage() as u64, |want, spared| {
            let spared: Vec<_> = self.above(spared).iter().filter_map(|key| self.cache.get(key)).collect();
            let before = self.cache.usage();
            let smaller = before.saturating_sub(usize::try_from(want).unwrap_or(usize::MAX)).max(1);
            // An error leaves entries where they are: then less is freed, and the next reclaimer is asked for more.
            let resized = self.cache.resize(smaller).and_then(|()| self.cache.resize(self.capacity));
            drop(spared);
            if resized.is_err() { 0 } else { before.saturating_sub(self.cache.usage()) as u64 }
        })
    }
}

/// A cache in a group, which gives back what the group's relatives lack.
pub struct FoyerCache {
    inner: Arc<Inner>,
    group: Group,
    loads: Loads,
    _registration: Registration,
}

impl FoyerCache {
    /// Creates a cache of at most `capacity` bytes, charged to `group`.
    pub fn new(group: &Group, capacity: usize) -> Self {
        // One shard: no entry up to the capacity is larger than its shard, and a resize starts one thread.
        let weigh = |_: &u64, entry: &Arc<Entry>| usize::try_from(entry.weight()).unwrap_or(usize::MAX);
        let cache = CacheBuilder::new(capacity).with_shards(1).with_weighter(weigh).build();
        let inner = Arc::new(Inner { cache, capacity, resizes: Mutex::new(()), heavy: Mutex::default() });
        let registration = group.register_reclaimer(inner.clone(), Priority::NORMAL);
        FoyerCache { inner, group: group.clone(), loads: Loads::default(), _registration: registration }
    }

    fn find(&self, key: u64) -> Option<Arc<Entry>> {
        self.inner.cache.get(&key).map(|entry| Arc::clone(entry.value()))
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
                self.inner.keep(key, &entry);
                Ok(entry)
            },
        )
    }
}
// ANCHOR_END: foyer

impl std::fmt::Debug for FoyerCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FoyerCache").field("group", &self.group).finish_non_exhaustive()
    }
}
