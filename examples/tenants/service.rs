//! The tenants under their budget: which is asked for what, and what it takes to serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use memcg::{Event, Group};
use parking_lot::Mutex;

use crate::cache::{Cache, Corrupt};
use crate::items::Own;
use crate::load::{Load, Operation, Random, Request};
use crate::scene::Candidate;
use crate::shelf::Shelf;
use crate::trace::Lookup;
use crate::waits::Waits;

/// Requests of a trace that are served at once: few enough that all tenants compete for the budget, many enough that
/// two workers on one trace do not spend their time waiting for each other.
pub(crate) const BURST: usize = 64;

/// Bytes of a value that a tenant that floods looks up: a page.
pub(crate) const SCANNED: u64 = 4096;

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// The group of the cache, to be read without a lock.
    pub(crate) group: Group,
    /// The bytes that it may keep when the budget is full.
    pub(crate) share: u64,
    /// The most that it may hold, or has use for.
    pub(crate) holds: u64,
    pub(crate) source: Source,
    /// Requests of a trace that have been served.
    served: AtomicUsize,
    pub(crate) turn: Mutex<Turn>,
}

/// The state that serves a tenant: in one worker's hands at a time.
pub(crate) struct Turn {
    pub(crate) cache: Cache,
    /// The tenant's own, so that its requests do not depend on the other tenants.
    pub(crate) random: Random,
    /// Keys that have been scanned.
    pub(crate) scanned: u64,
}

/// The source of a tenant's requests.
#[derive(Clone)]
pub(crate) enum Source {
    /// Drawn, without end, over this many keys.
    Cluster { load: Load, keys: u64 },
    /// Read, in order, once or again and again.
    Trace { lookups: Arc<[Lookup]>, endless: bool },
    /// One key after the other, each for the first time.
    Scan,
}

/// All tenants. Any worker serves any of them, so that charge and uncharge of an entry often happen on two threads, as
/// in a service that steals work.
pub(crate) struct Service {
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) shelves: Vec<Arc<Shelf>>,
    /// The counts of the caches, by tenant.
    pub(crate) owners: Arc<[Own]>,
}

impl Tenant {
    pub(crate) fn new(candidate: &Candidate, group: Group, share: u64, holds: u64, turn: Turn) -> Self {
        let (name, source) = (candidate.name.clone(), candidate.source.clone());
        Self { name, group, share, holds, source, served: AtomicUsize::new(0), turn: Mutex::new(turn) }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        matches!(self.source, Source::Scan)
    }

    /// True if its trace is at its end; nothing else has one.
    pub(crate) fn is_done(&self) -> bool {
        match &self.source {
            Source::Trace { lookups, endless: false } => self.served.load(Ordering::Relaxed) == lookups.len(),
            _ => false,
        }
    }

    /// The number of requests that it sends at once, of at most so many and before its end.
    pub(crate) fn burst(&self, most: usize) -> usize {
        if matches!(self.source, Source::Trace { .. }) { most.min(BURST) } else { most.min(1) }
    }
}

impl Service {
    /// Serves a tenant's next requests, at most so many; returns how many that were, 0 at the end of a trace.
    pub(crate) fn serve(&self, index: usize, most: usize) -> Result<usize, Corrupt> {
        let tenant = &self.tenants[index];
        let most = tenant.burst(most);
        let mut turn = tenant.turn.lock();
        let Turn { cache, random, scanned } = &mut *turn;
        let served = match &tenant.source {
            Source::Cluster { load, .. } => {
                cache.serve(load.draw(random))?;
                1
            }
            Source::Trace { lookups, endless } => {
                // Relaxed: written in the tenant's turn. A thread that reads it outside of the turn sees it later.
                let before = tenant.served.load(Ordering::Relaxed);
                let left = if *endless { usize::MAX } else { lookups.len() - before };
                let burst = most.min(left);
                for at in before..before + burst {
                    let Lookup { key, size } = lookups[at % lookups.len()];
                    cache.serve(Request { key, operation: Operation::Fetch(size) })?;
                }
                tenant.served.fetch_add(burst, Ordering::Relaxed);
                burst
            }
            Source::Scan => {
                *scanned += 1;
                cache.serve(Request { key: *scanned, operation: Operation::Fetch(SCANNED) })?;
                1
            }
        };
        self.owners[index].show(cache.figures.gets, cache.figures.hits);
        let delay = cache.delay();
        drop(turn);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        Ok(served)
    }

    /// Offers a tenant that floods so many bytes.
    pub(crate) fn flood(&self, index: usize, bytes: u64) -> Result<(), Corrupt> {
        (0..bytes.div_ceil(SCANNED)).try_for_each(|_| self.serve(index, 1).map(drop))
    }

    /// Fills a cluster's cache from its most wanted key on, until its max has refused one, or it holds all that it may.
    pub(crate) fn warm_up(&self, index: usize) {
        let tenant = &self.tenants[index];
        let Source::Cluster { keys, .. } = tenant.source else { return };
        let mut turn = tenant.turn.lock();
        let mut filled = 0;
        for key in 1..=keys {
            filled += turn.cache.fill(key);
            if tenant.group.events().local().get(Event::Max) > 0 || filled > tenant.holds {
                break;
            }
        }
        turn.cache.forget_warm_up();
    }

    /// Charges that were refused before the first request.
    pub(crate) fn refused_in_warm_up(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.turn.lock().cache.refused_in_warm_up).sum()
    }

    /// All tenants' waits.
    pub(crate) fn waits(&self) -> Waits {
        let mut all = Waits::default();
        self.tenants.iter().for_each(|tenant| all.append(&tenant.turn.lock().cache.waits));
        all
    }

    /// From here on they are counted anew.
    pub(crate) fn forget_waits(&self) {
        self.tenants.iter().for_each(|tenant| tenant.turn.lock().cache.waits = Waits::default());
    }

    /// True if every trace is at its end, and no tenant sends anything else.
    pub(crate) fn is_done(&self) -> bool {
        self.tenants.iter().all(Tenant::is_done)
    }
}
