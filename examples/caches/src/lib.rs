//! `quick_cache` 0.7 in a group: a recipe to copy. An entry keeps the charge that pays for it, and
//! a reclaimer evicts as many bytes as a charge elsewhere lacks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memcg::{ChargeError, Charged, Group, Reclaim, ReclaimContext, ReclaimPriority, Registration};
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

/// The bytes that a cache takes for an entry beside its content: the key, its place in tables and
/// lists.
pub const OVERHEAD: usize = 128;

/// The bytes of an entry, with the charge that pays for them.
#[derive(Debug)]
pub struct Entry(Charged<Vec<u8>>);

impl Entry {
    /// Charges an entry and then loads it. The caller holds no lock that its reclaimer takes.
    fn load(
        group: &Group,
        len: usize,
        load: impl FnOnce() -> Vec<u8>,
    ) -> Result<Arc<Entry>, ChargeError> {
        let mut charge = group.charge(OVERHEAD + len)?;
        let bytes = load();
        // The capacity may be larger than the length that was known.
        charge.grow((OVERHEAD + bytes.capacity()).saturating_sub(OVERHEAD + len))?;
        Ok(Arc::new(Entry(Charged::new(bytes, charge))))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns its weight in a cache: what it is charged.
    pub fn weight(&self) -> u64 {
        Charged::charge(&self.0).bytes()
    }
}

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

/// No entry up to this weight is spared: each costs less than a look at all.
const LIGHT: u64 = 64 << 10;

struct Inner {
    cache: Cache<u64, Arc<Entry>, ByCharge, DefaultHashBuilder, Spared>,
    spared: Spared,
    /// Its largest weight. The group's limits decide below that.
    capacity: u64,
    resizes: Mutex<()>,
}

impl Reclaim for Inner {
    /// Evicts `want` bytes, and no entry that is far heavier than that while lighter ones are
    /// enough.
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let _alone = self.resizes.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = self.cache.weight();
        let mut freed = 0;
        let mut spared = want.saturating_mul(4).max(LIGHT);
        loop {
            self.spared.0.store(spared, Ordering::Relaxed);
            let before = self.cache.weight();
            // It keeps a byte of capacity: without any the library forgets its proportions.
            self.cache
                .set_capacity(before.saturating_sub(want - freed).max(1));
            self.cache.set_capacity(self.capacity);
            freed += before.saturating_sub(self.cache.weight());
            if freed >= want || spared >= weight {
                break;
            }
            spared = spared.saturating_mul(16);
        }
        self.spared.0.store(u64::MAX, Ordering::Relaxed);
        freed
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
    ///
    /// # Panics
    ///
    /// Never: all options are set.
    pub fn new(group: &Group, entries: usize, capacity: u64) -> Self {
        // One shard: no entry up to the capacity is larger than its shard, and none pays for
        // another shard's entries.
        let mut options = OptionsBuilder::new();
        options
            .shards(1)
            .estimated_items_capacity(entries)
            .weight_capacity(capacity);
        let options = options.build().expect("all options are set");
        let spared = Spared(Arc::new(AtomicU64::new(u64::MAX)));
        let cache = Cache::with_options(
            options,
            ByCharge,
            DefaultHashBuilder::default(),
            spared.clone(),
        );
        let inner = Arc::new(Inner {
            cache,
            spared,
            capacity,
            resizes: Mutex::new(()),
        });
        let registration = group.register_reclaimer(inner.clone(), ReclaimPriority::NORMAL);
        QuickCache {
            inner,
            group: group.clone(),
            _registration: registration,
        }
    }

    /// Returns an entry, and loads it where it is not there. Of threads that want it at once, one
    /// loads it.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], where there is no room for it and nothing to evict. The charge may block:
    /// async code calls this on a thread for blocking work.
    pub fn get(
        &self,
        key: u64,
        len: usize,
        load: impl FnOnce() -> Vec<u8>,
    ) -> Result<Arc<Entry>, ChargeError> {
        // The library holds no lock while it loads: the charge may call the reclaimer.
        self.inner
            .cache
            .get_or_insert_with(&key, || Entry::load(&self.group, len, load))
    }
}

impl std::fmt::Debug for QuickCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuickCache")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
