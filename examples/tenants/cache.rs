//! An LRU cache whose entries own the charge for what they take.
//!
//! Charged before the bytes are allocated, freed before they are uncharged: there are never more
//! bytes than charge, but for the one block that a worker has just written to replace another. A
//! refusal is taken to the service, which makes room or does not.

use memcg::{Bytes, Charge, ChargeError, Group, Stat};
use thiserror::Error;

use crate::entry::{Block, Entry, footprint};
use crate::items::{GROWING, Items};
use crate::load::{Operation, Request, Sizes};
use crate::lru::LruMap;

/// A cache of real bytes.
pub(crate) struct Cache {
    pub(crate) group: Group,
    items: Items,
    /// Entries by key, the one used longest ago first to go.
    entries: LruMap<Entry>,
    /// The largest footprint that an empty service would take.
    entry_max: u64,
    /// `None` where each request brings its size.
    sizes: Option<Sizes>,
    /// Makes this cache's bytes differ from those of all others.
    salt: u64,
    /// The version of the last write; wraps.
    version: u32,
    pub(crate) figures: Figures,
}

/// What happened to a cache's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Requests that look up.
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Charges that were refused, retries included: by the tenant's own max, and by the service's.
    pub(crate) refused_by_tenant: u64,
    pub(crate) refused_by_service: u64,
    /// Entries that had to go for others.
    pub(crate) evicted: u64,
    /// Entries not kept, or not changed, because no max would ever allow them.
    pub(crate) too_large: u64,
    /// The same for want of anything to evict.
    pub(crate) passed_through: u64,
}

/// Who makes room for a refused charge: `true` when it is worth another try.
pub(crate) trait MakeRoom {
    fn make_room(&self, cache: &mut Cache, refused: &ChargeError) -> bool;
}

/// A hit returned other bytes than were put in.
#[derive(Debug, Error)]
#[error("{path}: the entry of key {key} ({}) does not hold its own bytes", Bytes(*bytes))]
pub(crate) struct Corrupt {
    path: String,
    key: u64,
    bytes: u64,
}

impl Figures {
    /// In the order of [`Items::growing`].
    pub(crate) fn growing(&self) -> [u64; GROWING] {
        [self.gets, self.hits, self.evicted]
    }
}

impl Cache {
    /// An empty cache; `entry_max` is the lowest max that holds for `group`.
    pub(crate) fn new(group: Group, items: Items, entry_max: u64, sizes: Option<Sizes>, salt: u64) -> Self {
        let (entries, figures) = (LruMap::new(), Figures::default());
        Self { group, items, entries, entry_max, sizes, salt, version: 0, figures }
    }

    /// What all entries take, counted anew from their blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| footprint(entry.block.len())).sum()
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Serves one request.
    pub(crate) fn serve(&mut self, request: Request, service: &impl MakeRoom) -> Result<(), Corrupt> {
        let key = request.key;
        self.figures.requests += 1;
        match request.operation {
            Operation::Get => {
                if !self.hit(key, None)? {
                    self.fill(key, service);
                }
            }
            Operation::Fetch(size) => {
                if !self.hit(key, Some(size))? {
                    self.write(key, 0, size, service);
                }
            }
            Operation::Write => {
                self.version = self.version.wrapping_add(1).max(1);
                self.write(key, self.version, self.block(key, self.version), service);
            }
            Operation::Prepend => self.prepend(key, service),
            Operation::Delete => {
                self.remove(key);
            }
        }
        Ok(())
    }

    /// Brings the version of a key that the service's clients load on a miss.
    pub(crate) fn fill(&mut self, key: u64, service: &impl MakeRoom) {
        self.write(key, 0, self.block(key, 0), service);
    }

    fn block(&self, key: u64, version: u32) -> u64 {
        self.sizes.map_or(0, |sizes| sizes.block(key, version))
    }

    /// Looks up and checks the bytes; an entry of another size than asked for is no hit.
    fn hit(&mut self, key: u64, size: Option<u64>) -> Result<bool, Corrupt> {
        self.figures.gets += 1;
        self.group.stat_add(self.items.gets, 1);
        let Some(entry) = self.entries.get(key) else { return Ok(false) };
        let bytes = entry.block.len();
        if !entry.holds(key, self.salt) {
            return Err(Corrupt { path: self.group.path(), key, bytes });
        }
        let hit = size.is_none_or(|size| size == bytes);
        self.figures.hits += u64::from(hit);
        self.group.stat_add(self.items.hits, hit.into());
        Ok(hit)
    }

    /// Puts a block of `size` bytes under the key, or leaves what is there.
    fn write(&mut self, key: u64, version: u32, size: u64, service: &impl MakeRoom) {
        let want = footprint(size);
        // Evicting for what can never fit would empty the cache for nothing.
        if want > self.entry_max {
            self.figures.too_large += 1;
            return;
        }
        // Out of the list: room for an entry is not made by evicting itself.
        let kept = match self.entries.pop(key) {
            Some(entry) => self.rewrite(key, entry, version, size, service),
            None => self.insert(key, version, size, service),
        };
        if !kept {
            self.figures.passed_through += 1;
        }
    }

    fn insert(&mut self, key: u64, version: u32, size: u64, service: &impl MakeRoom) -> bool {
        let want = footprint(size);
        let charged = self.admit(service, |group| group.try_charge(want));
        let Some(charge) = charged else { return false };
        // Without memory the charge goes back as it is dropped.
        let Some(block) = Block::fill(key, version, self.salt, size) else { return false };
        recount(&charge, 0);
        self.entries.put(key, Entry { charge, block, version });
        true
    }

    /// Resizes the charge, then replaces the block; a refusal keeps the old entry.
    fn rewrite(&mut self, key: u64, mut entry: Entry, version: u32, size: u64, service: &impl MakeRoom) -> bool {
        let (old, want) = (entry.charge.bytes(), footprint(size));
        let admitted = want <= old || self.admit(service, |_| entry.charge.resize(want)).is_some();
        let block = if admitted { Block::fill(key, version, self.salt, size) } else { None };
        let kept = block.is_some();
        if let Some(block) = block {
            (entry.block, entry.version) = (block, version);
        }
        // What is not used goes back: of a smaller block now, of one that got no memory again.
        let unused = entry.charge.bytes() - footprint(entry.block.len());
        entry.charge.shrink(unused);
        recount(&entry.charge, old);
        self.entries.put(key, entry);
        kept
    }

    /// Grows the entry at its front.
    fn prepend(&mut self, key: u64, service: &impl MakeRoom) {
        let Some(mut entry) = self.entries.pop(key) else { return };
        let growth = self.sizes.map_or(0, |sizes| sizes.growth(key, entry.block.len() as u32));
        let size = entry.block.len() + growth;
        let old = entry.charge.bytes();
        let more = footprint(size) - old;
        if footprint(size) > self.entry_max {
            self.figures.too_large += 1;
        } else if more > 0 && self.admit(service, |_| entry.charge.try_grow(more)).is_none() {
            self.figures.passed_through += 1;
        } else if let Some(block) = Block::fill(key, entry.version, self.salt, size) {
            entry.block = block;
        } else {
            entry.charge.shrink(more);
            self.figures.passed_through += 1;
        }
        recount(&entry.charge, old);
        self.entries.put(key, entry);
    }

    /// Tries until it is admitted or nobody makes room any more.
    fn admit<T>(
        &mut self,
        service: &impl MakeRoom,
        mut attempt: impl FnMut(&Group) -> Result<T, ChargeError>,
    ) -> Option<T> {
        loop {
            match attempt(&self.group) {
                Ok(admitted) => return Some(admitted),
                Err(refused) if service.make_room(self, &refused) => {}
                Err(_) => return None,
            }
        }
    }

    /// Evicts the oldest entries until `want` bytes are free; returns what is.
    pub(crate) fn evict(&mut self, want: u64) -> u64 {
        let mut freed = 0;
        while freed < want {
            let Some(entry) = self.entries.pop_oldest() else { break };
            freed += free(entry);
            self.figures.evicted += 1;
            self.group.stat_add(self.items.evictions, 1);
        }
        freed
    }

    fn remove(&mut self, key: u64) {
        self.entries.pop(key).map(free);
    }

    /// Drops every entry.
    pub(crate) fn clear(&mut self) {
        while let Some(entry) = self.entries.pop_oldest() {
            free(entry);
        }
    }
}

/// Counts what an entry has come to take, after so much before.
fn recount(charge: &Charge, before: u64) {
    charge.stat_add(Stat::FILE, charge.bytes().cast_signed() - before.cast_signed());
}

/// Frees the block, then gives its charge back.
fn free(entry: Entry) -> u64 {
    let Entry { charge, block, .. } = entry;
    drop(block);
    let bytes = charge.bytes();
    charge.stat_add(Stat::FILE, -bytes.cast_signed());
    drop(charge);
    bytes
}
