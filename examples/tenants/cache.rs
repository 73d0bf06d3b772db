//! A tenant's cache, whose entries own the charge for what they take.
//!
//! Charged before the bytes are allocated, freed before they are uncharged: there are never more
//! bytes than charge. Nothing is locked while a charge is made: what must go for it may be this
//! cache's own.

use std::mem;
use std::sync::Arc;

use memcg::{Bytes, Group, RuntimeBuilder, StatKey, Unit};

use crate::entry::{Block, Entry, footprint, scramble};
use crate::load::{Operation, Request, Sizes};
use crate::shelf::{Key, Shelf};

/// Items that tenants count in the statistics of their groups. The bytes of the entries are
/// [`StatKey::FILE`]: what is cached can be had again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    pub(crate) gets: StatKey,
    pub(crate) hits: StatKey,
    pub(crate) evictions: StatKey,
}

/// A cache of real bytes.
pub(crate) struct Cache {
    pub(crate) group: Group,
    pub(crate) items: Items,
    /// The entries, perhaps between those of others.
    pub(crate) shelf: Arc<Shelf>,
    /// The tenant's number. It makes this cache's bytes differ from those of all others.
    pub(crate) owner: u32,
    /// The largest footprint that an empty service would take.
    pub(crate) entry_max: u64,
    pub(crate) sizes: Sizes,
    /// The version of the last write; wraps.
    pub(crate) version: u32,
    pub(crate) figures: Figures,
    /// Charges that were refused before the first request: the groups count them, too.
    pub(crate) refused_in_warm_up: u64,
}

/// Counts of a cache's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Of the requests in their order: the same where they were the same.
    pub(crate) digest: u64,
    /// Requests that look up.
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Entries not kept because their charges were refused.
    pub(crate) refused: u64,
    /// Entries not kept because no max would ever allow them.
    pub(crate) too_large: u64,
}

impl Items {
    pub(crate) fn declare(builder: &mut RuntimeBuilder) -> Self {
        let mut events = |name| builder.stat(name, Unit::Events);
        Self {
            gets: events("gets"),
            hits: events("hits"),
            evictions: events("evictions"),
        }
    }
}

impl Cache {
    /// Serves one request.
    ///
    /// # Panics
    ///
    /// A hit has other bytes than were put in.
    pub(crate) fn serve(&mut self, request: Request) {
        let key = request.key;
        self.figures.requests += 1;
        self.figures.digest = scramble(self.figures.digest ^ key, request.operation as u64);
        match request.operation {
            Operation::Get => {
                if !self.hit(key) {
                    self.fill(key);
                }
            }
            Operation::Write => {
                self.version = self.version.wrapping_add(1).max(1);
                self.shelf.remove(self.key(key));
                self.insert(key, self.version);
            }
            Operation::Delete => self.shelf.remove(self.key(key)),
        }
    }

    /// Brings the version of a key that the service's clients load on a miss; returns what its
    /// entry takes.
    pub(crate) fn fill(&mut self, key: u64) -> u64 {
        self.insert(key, 0)
    }

    /// Counts anew: a warm-up offers entries that no request has asked for.
    pub(crate) fn forget_warm_up(&mut self) {
        self.refused_in_warm_up += mem::take(&mut self.figures).refused;
    }

    fn key(&self, number: u64) -> Key {
        Key {
            owner: self.owner,
            number,
        }
    }

    /// Looks up and checks the bytes.
    fn hit(&mut self, key: u64) -> bool {
        self.figures.gets += 1;
        self.group.stat_add(self.items.gets, 1);
        let found = self
            .shelf
            .look(self.key(key), |entry| entry.holds(key, self.owner.into()));
        assert_ne!(
            found,
            Some(false),
            "{}: the entry of key {key} does not hold its own bytes",
            self.group.path()
        );
        self.figures.hits += u64::from(found.is_some());
        self.group.stat_add(self.items.hits, found.is_some().into());
        found.is_some()
    }

    /// Puts an entry under a key that has none, where there is room; returns what it takes or would
    /// take.
    fn insert(&mut self, key: u64, version: u32) -> u64 {
        let size = self.sizes.block(key, version);
        let want = footprint(size);
        // Evicting for what can never fit would empty the cache for nothing.
        if want > self.entry_max {
            self.figures.too_large += 1;
            return want;
        }
        match self.group.charge(Bytes(want)) {
            // Without memory the charge goes back as it is dropped.
            Ok(charge) => {
                if let Some(block) = Block::fill(key, version, self.owner.into(), size) {
                    charge.stat_add(StatKey::FILE, want.cast_signed());
                    self.shelf.put(
                        self.key(key),
                        Entry {
                            charge,
                            block,
                            version,
                        },
                    );
                }
            }
            Err(_) => self.figures.refused += 1,
        }
        want
    }
}
