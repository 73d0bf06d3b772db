//! Reclaimers that take their time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{
    Bytes, Charge, Group, Reclaim, ReclaimContext, ReclaimPriority, ReclaimPromise, Registration,
};

use super::lock;

/// The answer of a cache when it is asked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Character {
    /// Sleeps, and frees what it holds.
    Sleeps,
    /// Sleeps, and frees nothing.
    Idles,
    /// Another thread frees, later.
    Later,
}

/// Answers that are due.
pub(crate) type Due = Arc<Mutex<Vec<(ReclaimPromise, Arc<Shelf>)>>>;

/// The memory of a cache.
pub(crate) struct Shelf {
    held: Mutex<Charge>,
}

impl Shelf {
    pub(crate) fn evict(&self, want: u64) -> u64 {
        // Freed after the lock is given back: an uncharge may be long.
        let part = {
            let mut held = lock(&self.held);
            let part = want.min(held.bytes());
            held.split(Bytes(part)).expect("no more than there is")
        };
        part.bytes()
    }

    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.held).bytes()
    }
}

struct Reclaimer {
    shelf: Arc<Shelf>,
    character: Character,
    due: Due,
    /// The longest nap, in microseconds.
    nap_max: u64,
    /// Naps follow one another without a pattern, and without a lock.
    naps: AtomicU64,
}

impl Reclaim for Reclaimer {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        if self.character == Character::Later {
            lock(&self.due).push((context.promise(), Arc::clone(&self.shelf)));
            return 0;
        }
        let nap = self
            .naps
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(2_654_435_761)
            >> 8;
        std::thread::sleep(Duration::from_micros(1_000 + nap % self.nap_max));
        if self.character == Character::Idles {
            0
        } else {
            self.shelf.evict(want)
        }
    }

    fn reclaimable(&self) -> u64 {
        self.shelf.bytes()
    }
}

/// A cache, registered as long as it is there.
pub(crate) struct Cache {
    pub(crate) group: Group,
    pub(crate) character: Character,
    pub(crate) shelf: Arc<Shelf>,
    _registration: Registration,
}

impl Cache {
    pub(crate) fn new(group: &Group, character: Character, nap_max: u64, due: &Due) -> Self {
        let shelf = Arc::new(Shelf {
            held: Mutex::new(group.force_charge(0)),
        });
        let held = Arc::clone(&shelf);
        let due = Arc::clone(due);
        let naps = AtomicU64::new(nap_max);
        let reclaimer = Reclaimer {
            shelf: held,
            character,
            due,
            nap_max,
            naps,
        };
        let registration = group.register_reclaimer(Arc::new(reclaimer), ReclaimPriority::NORMAL);
        Self {
            group: group.clone(),
            character,
            shelf,
            _registration: registration,
        }
    }

    /// Charged without a lock: it may be this very cache that has to give.
    pub(crate) fn fill(&self, charge: Charge) {
        lock(&self.shelf.held)
            .merge(charge)
            .expect("of the same group");
    }
}
