//! A tenant's cache, whose entries own the charge for what they take.
//!
//! Charged before the bytes are allocated, freed before they are uncharged: there are never more
//! bytes than charge, but for the one block that a worker has just written to replace another. Nothing
//! is locked while a charge is made: what must go for it may be this cache's own.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memcg::expert::Inspect as _;
use memcg::{Bytes, Charge, ChargeError, Group, OnFull};
use thiserror::Error;

use crate::entry::{Block, Entry, footprint, scramble};
use crate::items::Items;
use crate::load::{Operation, Request, Sizes};
use crate::lru::Key;
use crate::shelf::Shelf;
use crate::waits::Waits;

/// A cache of real bytes.
pub(crate) struct Cache {
    pub(crate) group: Group,
    items: Items,
    /// The entries, perhaps between those of others.
    shelf: Arc<Shelf>,
    /// The tenant's number.
    owner: u32,
    /// The largest footprint that an empty service would take.
    entry_max: u64,
    /// `None` where each request brings its size.
    sizes: Option<Sizes>,
    /// The time that a request waits for an entry's room; `None`: where there is none it passes by at once.
    wait: Option<Duration>,
    pub(crate) waits: Waits,
    /// The price of what was charged above high, not paid yet.
    owed: Duration,
    /// Makes this cache's bytes differ from those of all others.
    salt: u64,
    /// The version of the last write; wraps.
    version: u32,
    pub(crate) figures: Figures,
    /// Charges that were refused before the first request: the groups count them, too.
    pub(crate) refused_in_warm_up: u64,
}

/// The outcomes of a cache's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Of the requests in their order: the same where they were the same.
    pub(crate) digest: u64,
    /// Requests that look up.
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Charges that were refused. One that then waits in vain is refused once more.
    pub(crate) refused: u64,
    /// Requests that were delayed above high, and how long in all.
    pub(crate) delayed: u64,
    pub(crate) delay: Duration,
    /// Entries not kept, or not changed, because no max would ever allow them.
    pub(crate) too_large: u64,
    /// The same for want of anything to evict.
    pub(crate) passed_through: u64,
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
    /// Counts a refusal.
    fn admitted<T>(&mut self, charged: Result<T, ChargeError>) -> Option<T> {
        self.refused += u64::from(charged.is_err());
        charged.ok()
    }
}

impl Cache {
    /// A cache of the tenant `owner`, without entries; `entry_max` is the lowest max that holds for `group`.
    pub(crate) fn new(
        group: Group,
        shelf: Arc<Shelf>,
        owner: u32,
        items: Items,
        entry_max: u64,
        sizes: Option<Sizes>,
    ) -> Self {
        let (version, figures, waits) = (0, Figures::default(), Waits::default());
        Self {
            group,
            items,
            shelf,
            owner,
            entry_max,
            sizes,
            wait: None,
            waits,
            owed: Duration::ZERO,
            salt: owner.into(),
            version,
            figures,
            refused_in_warm_up: 0,
        }
    }

    /// Has requests wait, for so long at most.
    pub(crate) fn waiting(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// The time that the tenant has to be slow now. A tenant that is must hold no lock: the others go on.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = mem::take(&mut self.owed);
        self.figures.delayed += u64::from(!delay.is_zero());
        self.figures.delay += delay;
        delay
    }

    /// Serves one request.
    pub(crate) fn serve(&mut self, request: Request) -> Result<(), Corrupt> {
        let key = request.key;
        self.figures.requests += 1;
        self.figures.digest = scramble(self.figures.digest ^ key, request.operation.code());
        match request.operation {
            Operation::Get => {
                if !self.hit(key, None)? {
                    self.fill(key);
                }
            }
            Operation::Fetch(size) => {
                if !self.hit(key, Some(size))? {
                    self.write(key, 0, size);
                }
            }
            Operation::Write => {
                self.version = self.version.wrapping_add(1).max(1);
                self.write(key, self.version, self.block(key, self.version));
            }
            Operation::Prepend => self.prepend(key),
            Operation::Delete => {
                self.remove(key);
            }
        }
        Ok(())
    }

    /// Brings the version of a key that the service's clients load on a miss; returns what its entry takes.
    pub(crate) fn fill(&mut self, key: u64) -> u64 {
        let size = self.block(key, 0);
        self.write(key, 0, size);
        footprint(size)
    }

    /// Counts anew: a warm-up offers entries that no request has asked for.
    pub(crate) fn forget_warm_up(&mut self) {
        self.refused_in_warm_up += mem::take(&mut self.figures).refused;
        self.waits = Waits::default();
    }

    fn key(&self, number: u64) -> Key {
        Key { owner: self.owner, number }
    }

    fn block(&self, key: u64, version: u32) -> u64 {
        self.sizes.map_or(0, |sizes| sizes.block(key, version))
    }

    /// Looks up and checks the bytes; an entry of another size than asked for is no hit.
    fn hit(&mut self, key: u64, size: Option<u64>) -> Result<bool, Corrupt> {
        self.figures.gets += 1;
        self.group.stat_add(self.items.gets, 1);
        let found = self.shelf.look(self.key(key), |entry| (entry.block.len(), entry.holds(key, self.salt)));
        let Some((bytes, holds)) = found else { return Ok(false) };
        if !holds {
            return Err(Corrupt { path: self.group.path(), key, bytes });
        }
        let hit = size.is_none_or(|size| size == bytes);
        self.figures.hits += u64::from(hit);
        self.group.stat_add(self.items.hits, hit.into());
        Ok(hit)
    }

    /// Puts a block of `size` bytes under the key, or leaves what is there.
    fn write(&mut self, key: u64, version: u32, size: u64) {
        let want = footprint(size);
        // Evicting for what can never fit would empty the cache for nothing.
        if want > self.entry_max {
            self.figures.too_large += 1;
            return;
        }
        // Out of the list: room for an entry is not made by evicting itself.
        let kept = match self.shelf.pop(self.key(key)) {
            Some(entry) => self.rewrite(key, entry, version, size),
            None => self.insert(key, version, size),
        };
        if !kept {
            self.figures.passed_through += 1;
        }
    }

    fn charge(&mut self, bytes: u64) -> Option<Charge> {
        let charged = self.group.try_charge_with(Bytes(bytes), OnFull::Reclaim);
        let Some(charge) = self.figures.admitted(charged) else { return self.wait(bytes) };
        self.owed += self.group.high_delay(Bytes(bytes));
        Some(charge)
    }

    /// Adds to an entry's charge. While it waits, it has what it had: others have enough to give.
    fn grow(&mut self, charge: &mut Charge, bytes: u64) -> bool {
        self.charge(bytes).is_some_and(|more| charge.merge(more).is_ok())
    }

    /// Stands in line for what was refused, where requests do.
    fn wait(&mut self, bytes: u64) -> Option<Charge> {
        let (time, start) = (self.wait?, Instant::now());
        let charged = self.group.try_charge_with(Bytes(bytes), OnFull::Wait(time));
        self.waits.add(start.elapsed(), matches!(charged, Err(ChargeError::TimedOut { .. })));
        self.figures.admitted(charged)
    }

    fn insert(&mut self, key: u64, version: u32, size: u64) -> bool {
        let Some(charge) = self.charge(footprint(size)) else { return false };
        // Without memory the charge goes back as it is dropped.
        let Some(block) = Block::fill(key, version, self.salt, size) else { return false };
        let entry = Entry { charge, block, version };
        entry.recount(0);
        self.shelf.put(self.key(key), entry);
        true
    }

    /// Resizes the charge, then replaces the block; a refusal keeps the old entry.
    fn rewrite(&mut self, key: u64, mut entry: Entry, version: u32, size: u64) -> bool {
        let (old, want) = (entry.charge.bytes(), footprint(size));
        let admitted = want <= old || self.grow(&mut entry.charge, want - old);
        let block = if admitted { Block::fill(key, version, self.salt, size) } else { None };
        let kept = block.is_some();
        if let Some(block) = block {
            (entry.block, entry.version) = (block, version);
        }
        // Unused bytes go back: of a smaller block now, of one that got no memory again.
        let unused = entry.charge.bytes() - footprint(entry.block.len());
        entry.charge.shrink(Bytes(unused));
        entry.recount(old);
        self.shelf.put(self.key(key), entry);
        kept
    }

    /// Grows the entry at its front.
    fn prepend(&mut self, key: u64) {
        let Some(mut entry) = self.shelf.pop(self.key(key)) else { return };
        let growth = self.sizes.map_or(0, |sizes| sizes.growth(key, entry.block.len() as u32));
        let size = entry.block.len() + growth;
        let old = entry.charge.bytes();
        let more = footprint(size) - old;
        if footprint(size) > self.entry_max {
            self.figures.too_large += 1;
        } else if more > 0 && !self.grow(&mut entry.charge, more) {
            self.figures.passed_through += 1;
        } else if let Some(block) = Block::fill(key, entry.version, self.salt, size) {
            entry.block = block;
        } else {
            entry.charge.shrink(Bytes(more));
            self.figures.passed_through += 1;
        }
        entry.recount(old);
        self.shelf.put(self.key(key), entry);
    }

    fn remove(&mut self, key: u64) {
        self.shelf.pop(self.key(key)).map(Entry::free);
    }
}
