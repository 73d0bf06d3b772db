//! The place of entries: a shelf for each tenant, or one for all of them. It gives way when it is asked to.
//!
//! Reclaim runs on the thread whose charge did not fit, in the middle of a request. A shelf's lock is the last that
//! any tenant takes, and no tenant charges while holding it: so no thread ever waits here for itself, and the tenant that is
//! being served can be asked like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Reclaim, ReclaimContext, Stat};
use parking_lot::Mutex;

use super::entry::{Entry, footprint};
use super::items::Own;
use super::lru::{Key, LruMap};

/// Far longer than a shelf is locked for. A tenant that holds it for longer is not running just now, and others may give.
const PATIENCE: Duration = Duration::from_micros(100);

/// Entries in the order of their last use, whichever tenant owns them.
pub(crate) struct Shelf {
    entries: Mutex<LruMap<Entry>>,
    /// The bytes that the entries are charged, to be read without the lock.
    bytes: AtomicU64,
    /// The owners' counts, by their numbers.
    owners: Arc<[Own]>,
    evictions: Stat,
}

/// An owner's part of a shelf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The bytes of all entries, counted anew from their blocks.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl Shelf {
    pub(crate) fn new(owners: Arc<[Own]>, evictions: Stat) -> Self {
        Self { entries: Mutex::new(LruMap::new()), bytes: AtomicU64::new(0), owners, evictions }
    }

    /// Looks at an entry, which is now the one used last.
    pub(crate) fn look<T>(&self, key: Key, look: impl FnOnce(&Entry) -> T) -> Option<T> {
        self.entries.lock().get(key).map(look)
    }

    /// Puts an entry under a key that has none.
    pub(crate) fn put(&self, key: Key, entry: Entry) {
        let mut entries = self.entries.lock();
        self.bytes.fetch_add(entry.charge.bytes(), Ordering::Relaxed);
        entries.put(key, entry);
    }

    pub(crate) fn pop(&self, key: Key) -> Option<Entry> {
        let entry = self.entries.lock().pop(key)?;
        self.bytes.fetch_sub(entry.charge.bytes(), Ordering::Relaxed);
        Some(entry)
    }

    /// The bytes that can be evicted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Evicts the oldest entries until `want` bytes are free; returns what is, nothing where others are busy here.
    pub(crate) fn evict(&self, want: u64, until: Instant, for_others: bool) -> u64 {
        let Some(mut entries) = self.entries.try_lock_until(until) else { return 0 };
        let mut freed = 0;
        while freed < want {
            let Some((key, entry)) = entries.pop_oldest() else { break };
            entry.charge.stat_add(self.evictions, 1);
            self.owners[key.owner as usize].evicted(for_others);
            freed += entry.free();
        }
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        freed
    }

    /// The part of each owner.
    pub(crate) fn tally(&self) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.owners.len()];
        for (key, entry) in self.entries.lock().iter() {
            let tally = &mut tallies[key.owner as usize];
            tally.bytes += footprint(entry.block.len());
            tally.entries += 1;
        }
        tallies
    }

    /// Drops every entry.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries.lock();
        while let Some((_, entry)) = entries.pop_oldest() {
            self.bytes.fetch_sub(entry.free(), Ordering::Relaxed);
        }
    }
}

impl Reclaim for Shelf {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let for_others = context.target() != context.group();
        // There is no other tenant to be asked for a group's own max.
        let until = if for_others { Instant::now() + PATIENCE } else { context.deadline() };
        self.evict(want, until, for_others)
    }

    fn reclaimable(&self) -> u64 {
        self.bytes()
    }
}
