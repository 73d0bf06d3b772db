//! `quick_cache` 0.7: it can be resized, which evicts at once, and drops what it evicts outside of its locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memcg::{ChargeError, Group, Priority, Reclaim, ReclaimContext, Registration};
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use crate::entry::{self, Entry};
use crate::loads::Loads;

// ANCHOR: quick
#[derive(Clone)]
struct ByCharge;

impl Weighter<u64, Arc<Entry>> for ByCharge {
    fn weight(&self, _: &u64, entry: &Arc<Entry>) -> u64 {
        entry.weight()
    }
}

/// While a reclaimer runs, entries above this weight stay.
#[derive(Clone)]
struct Spared(Arc<AtomicU64>);

impl Lifecycle<u64, Arc<Entry>> for Spared {
    /// The evicted entries. They are dropped without a lock: wakers may run then.
    type RequestState = Vec<Arc<Entry>>;

    fn is_pinned(&self, _: &u64, entry: &Arc<Entry>) -> bool {
        entry.weight() > self.0.load(Ordering::Relaxed)
    }

    fn on_evict(&self, evicted: &mut Vec<Arc<Entry>>, _: u64, entry: Arc<Entry>) {
        evicted.push(entry);
    }
}

struct Inner {
    cache: Cache<u64, Arc<Entry>, ByCharge, DefaultHashBuilder, Spared>,
    spared: Spared,
    /// Its largest weight. The group's limits decide below that.
    capacity: u64,
    resizes: Mutex<()>,
}

impl Reclaim for Inner {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let _alone = self.resizes.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = entry::evict(want, self.cache.weight(), |want, spared| {
            self.spared.0.store(spared, Ordering::Relaxed);
            let before = self.cache.weight();
            // It keeps a byte of capacity: without any the library forgets its proportions.
            self.cache.set_capacity(before.saturating_sub(want).max(1));
            self.cache.set_capacity(self.capacity);
            before.saturating_sub(self.cache.weight())
        });
        self.spared.0.store(u64::MAX, Ordering::Relaxed);
        freed
    }
}

/// A cache in a group, which gives back what the group's relatives lack.
pub struct QuickCache {
    inner: Arc<Inner>,
    group: Group,
    loads: Loads,
    _registration: Registration,
}

impl QuickCache {
    /// Creates a cache of at most `capacity` bytes for about so many entries, charged to `group`.
    ///
    /// # Panics
    ///
    /// Never: all options are set.
    pub fn new(group: &Group, entries: usize, capacity: u64) -> Self {
        // One shard: no entry up to the capacity is larger than its shard, and none pays for another shard's entries.
        let mut options = OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(entries).weight_capacity(capacity);
        let options = options.build().expect("all options are set");
        let spared = Spared(Arc::new(AtomicU64::new(u64::MAX)));
        let cache = Cache::with_options(options, ByCharge, DefaultHashBuilder::default(), spared.clone());
        let inner = Arc::new(Inner { cache, spared, capacity, resizes: Mutex::new(()) });
        let registration = group.register_reclaimer(inner.clone(), Priority::NORMAL);
        QuickCache { inner, group: group.clone(), loads: Loads::default(), _registration: registration }
    }

    fn find(&self, key: u64) -> Option<Arc<Entry>> {
        self.inner.cache.get(&key)
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
                self.inner.cache.insert(key, Arc::clone(&entry));
                Ok(entry)
            },
        )
    }
}
// ANCHOR_END: quick

impl std::fmt::Debug for QuickCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuickCache").field("group", &self.group).finish_non_exhaustive()
    }
}
