//! The place of entries: a shelf for each tenant, or one for all of them. It gives way when it is
//! asked to.
//!
//! Reclaim runs on the thread whose charge did not fit, in the middle of a request. A shelf's lock
//! is the last that any tenant takes, and no tenant charges while holding it: so no thread ever
//! waits here for itself, and the tenant that is being served can be asked like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use memcg::{Reclaim, ReclaimContext, StatKey};
use parking_lot::Mutex;

use crate::entry::{Entry, footprint};

/// Far longer than a shelf is locked for. A tenant that holds it for longer is not running just
/// now, and others may give.
const PATIENCE: Duration = Duration::from_micros(100);

/// The key of an entry: several owners may lie on one shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) owner: u32,
    pub(crate) number: u64,
}

/// Entries in the order of their last use, whichever tenant owns them.
pub(crate) struct Shelf {
    entries: Mutex<LruCache<Key, Entry>>,
    /// Bytes that the entries are charged, to be read without the lock.
    bytes: AtomicU64,
    /// The owners' counts, by their numbers.
    owners: Arc<[Evictions]>,
    evictions: StatKey,
}

/// The entries of an owner that had to go, and those of them that made room for others.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    pub(crate) all: AtomicU64,
    pub(crate) for_others: AtomicU64,
}

impl Shelf {
    pub(crate) fn new(owners: Arc<[Evictions]>, evictions: StatKey) -> Self {
        Self {
            entries: Mutex::new(LruCache::unbounded()),
            bytes: AtomicU64::new(0),
            owners,
            evictions,
        }
    }

    /// Looks at an entry, which is now the one used last.
    pub(crate) fn look<T>(&self, key: Key, look: impl FnOnce(&Entry) -> T) -> Option<T> {
        self.entries.lock().get(&key).map(look)
    }

    /// Puts an entry under a key that has none.
    pub(crate) fn put(&self, key: Key, entry: Entry) {
        let mut entries = self.entries.lock();
        self.bytes
            .fetch_add(entry.charge.bytes(), Ordering::Relaxed);
        entries.put(key, entry);
    }

    /// Drops the entry of a key, if there is one.
    pub(crate) fn remove(&self, key: Key) {
        let removed = self.entries.lock().pop(&key);
        if let Some(entry) = removed {
            self.bytes.fetch_sub(entry.free(), Ordering::Relaxed);
        }
    }

    /// Bytes that each owner's entries take, counted anew from their blocks.
    pub(crate) fn tally(&self) -> Vec<u64> {
        let mut tallies = vec![0; self.owners.len()];
        self.entries
            .lock()
            .iter()
            .for_each(|(key, entry)| tallies[key.owner as usize] += footprint(entry.block.len()));
        tallies
    }

    /// Drops every entry.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries.lock();
        while let Some((_, entry)) = entries.pop_lru() {
            self.bytes.fetch_sub(entry.free(), Ordering::Relaxed);
        }
    }
}

impl Reclaim for Shelf {
    /// Evicts the oldest entries until `want` bytes are free; returns what is, nothing where others
    /// are busy here.
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let for_others = context.target() != context.group();
        // There is no other tenant to be asked for a group's own max.
        let until = if for_others {
            Instant::now() + PATIENCE
        } else {
            context.deadline()
        };
        let Some(mut entries) = self.entries.try_lock_until(until) else {
            return 0;
        };
        let mut freed = 0;
        while freed < want {
            let Some((key, entry)) = entries.pop_lru() else {
                break;
            };
            entry.charge.stat_add(self.evictions, 1);
            let owner = &self.owners[key.owner as usize];
            owner.all.fetch_add(1, Ordering::Relaxed);
            owner
                .for_others
                .fetch_add(for_others.into(), Ordering::Relaxed);
            freed += entry.free();
        }
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
