//! The tenants under their budget, and who gives way when it is full.
//!
//! A refusal by a tenant's own max evicts the tenant's own oldest entries. A refusal by the service
//! does the same while the tenant holds more than its fair share; a tenant below it takes from the
//! one that holds most above its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memcg::{ChargeError, Group, Refusal};
use parking_lot::Mutex;

use crate::cache::{Cache, Corrupt, MakeRoom};
use crate::items::Own;
use crate::load::{Load, Operation, Random, Request};
use crate::scene::Candidate;
use crate::shelf::Shelf;
use crate::trace::Lookup;

/// Requests of a trace that are served at once: few enough that all tenants compete for the budget, many enough that
/// two workers on one trace do not spend their time waiting for each other.
pub(crate) const BURST: usize = 64;

/// Bytes of a value that a tenant that floods looks up: a page.
const SCANNED: u64 = 4096;

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// The group of the cache, to be read without a lock.
    pub(crate) group: Group,
    /// What it may keep when the budget is full.
    pub(crate) share: u64,
    /// The most that it may hold, or has use for.
    pub(crate) holds: u64,
    pub(crate) source: Source,
    /// Requests of a trace that have been served.
    served: AtomicUsize,
    pub(crate) turn: Mutex<Turn>,
}

/// What it takes to serve a tenant: in one worker's hands at a time.
pub(crate) struct Turn {
    pub(crate) cache: Cache,
    /// The tenant's own, so that its requests do not depend on who else is served.
    pub(crate) random: Random,
    /// Keys that have been scanned.
    pub(crate) scanned: u64,
}

/// Where a tenant's requests come from.
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
    /// What the caches have counted, by tenant.
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

    /// Whether its trace is at its end; nothing else has one.
    pub(crate) fn is_done(&self) -> bool {
        match &self.source {
            Source::Trace { lookups, endless: false } => self.served.load(Ordering::Relaxed) == lookups.len(),
            _ => false,
        }
    }

    /// How many requests it sends at once, of at most so many and before its end.
    pub(crate) fn burst(&self, most: usize) -> usize {
        if matches!(self.source, Source::Trace { .. }) { most.min(BURST) } else { most.min(1) }
    }
}

impl Service {
    /// Serves a tenant's next requests, at most so many; returns how many that were, 0 at the end of a trace.
    pub(crate) fn serve(&self, index: usize, most: usize) -> Result<usize, Corrupt> {
        let tenant = &self.tenants[index];
        let (seat, most) = (Seat { service: self, index }, tenant.burst(most));
        let mut turn = tenant.turn.lock();
        let Turn { cache, random, scanned } = &mut *turn;
        let served = match &tenant.source {
            Source::Cluster { load, .. } => {
                cache.serve(load.draw(random), &seat)?;
                1
            }
            Source::Trace { lookups, endless } => {
                // Relaxed: written in the tenant's turn; who reads it without is told later.
                let before = tenant.served.load(Ordering::Relaxed);
                let left = if *endless { usize::MAX } else { lookups.len() - before };
                let burst = most.min(left);
                for at in before..before + burst {
                    let Lookup { key, size } = lookups[at % lookups.len()];
                    cache.serve(Request { key, operation: Operation::Fetch(size) }, &seat)?;
                }
                tenant.served.fetch_add(burst, Ordering::Relaxed);
                burst
            }
            Source::Scan => {
                *scanned += 1;
                cache.serve(Request { key: *scanned, operation: Operation::Fetch(SCANNED) }, &seat)?;
                1
            }
        };
        self.owners[index].show(cache.figures.gets, cache.figures.hits);
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
            filled += turn.cache.fill(key, &Seat { service: self, index });
            if turn.cache.figures.refused_by_tenant > 0 || filled > tenant.holds {
                return;
            }
        }
    }

    /// Whether every trace is at its end, and nobody sends anything else.
    pub(crate) fn is_done(&self) -> bool {
        self.tenants.iter().all(Tenant::is_done)
    }

    /// Evicts from the tenant that holds most above its fair share, `asker` aside; returns the bytes that are free.
    fn evict_elsewhere(&self, asker: usize, want: u64) -> u64 {
        let mut passed = vec![asker];
        while let Some(most) = self.most_above(&passed) {
            match self.shelf(most).evict(want, true) {
                0 => passed.push(most),
                freed => return freed,
            }
        }
        0
    }

    /// Who holds most above its fair share, of all but these; `None`: nobody holds more.
    fn most_above(&self, passed: &[usize]) -> Option<usize> {
        let above = |index: usize| self.tenants[index].group.usage().saturating_sub(self.tenants[index].share);
        let rest = (0..self.tenants.len()).filter(|index| !passed.contains(index)).map(|index| (above(index), index));
        rest.max().filter(|&(above, _)| above > 0).map(|(_, most)| most)
    }

    /// Where a tenant's entries lie.
    fn shelf(&self, index: usize) -> &Shelf {
        self.shelves.get(index).unwrap_or(&self.shelves[0])
    }
}

/// A tenant's place in the service, for as long as it is served.
struct Seat<'a> {
    service: &'a Service,
    index: usize,
}

impl MakeRoom for Seat<'_> {
    fn make_room(&self, cache: &mut Cache, error: &ChargeError) -> bool {
        let ChargeError::Limit(refusal) = error else { return false };
        let (want, own) = (short(refusal), self.service.shelf(self.index));
        if *refusal.group() == cache.group {
            cache.figures.refused_by_tenant += 1;
            return own.evict(want, false) > 0;
        }
        cache.figures.refused_by_service += 1;
        let above = cache.group.usage() > self.service.tenants[self.index].share;
        let elsewhere = |want| self.service.shelves.len() > 1 && self.service.evict_elsewhere(self.index, want) > 0;
        (above && own.evict(want, false) > 0) || elsewhere(want) || own.evict(want, false) > 0
    }
}

/// Bytes that must go for the charge to fit, as things stood when it was refused.
fn short(refusal: &Refusal) -> u64 {
    refusal.usage().saturating_add(refusal.requested()).saturating_sub(refusal.max()).max(1)
}
