//! The tenants under their budget, and who gives way when it is full.
//!
//! A refusal by a tenant's own max evicts the tenant's own oldest entries. A refusal by the service
//! does the same while the tenant holds more than its fair share; a tenant below it takes from the
//! one that holds most above its own. Another tenant's cache is waited for a moment only: two tenants
//! that take from each other do not block each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memcg::{ChargeError, Group, Refusal};
use parking_lot::Mutex;

use crate::cache::{Cache, Corrupt, MakeRoom};
use crate::items::Own;
use crate::load::{Load, Operation, Random, Request};
use crate::trace::Lookup;

/// Requests of a trace that are served at once: few enough that all tenants compete for the budget, many enough that
/// two workers on one trace do not spend their time waiting for each other.
pub(crate) const BURST: usize = 64;

/// Far longer than a request takes. Whoever is busy for longer is not running just now.
const PATIENCE: Duration = Duration::from_micros(100);

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// The group of the cache, to be read without a lock.
    pub(crate) group: Group,
    /// What it may keep when the budget is full.
    pub(crate) share: u64,
    pub(crate) source: Source,
    pub(crate) cache: Mutex<Cache>,
    /// What the cache had counted when it was last served.
    pub(crate) own: Own,
}

/// Where a tenant's requests come from.
pub(crate) enum Source {
    /// Drawn, without end, over this many keys.
    Cluster { load: Load, keys: u64 },
    /// Read, in order.
    Trace { lookups: Vec<Lookup>, served: AtomicUsize },
}

/// All tenants. Each is in one worker's hands at a time; any worker serves any of them, so that charge and uncharge of
/// an entry often happen on two threads, as in a service that steals work.
pub(crate) struct Service {
    pub(crate) tenants: Vec<Tenant>,
}

impl Service {
    /// Serves a tenant's next requests, at most so many; returns how many that were, 0 at the end of a trace.
    pub(crate) fn serve(&self, index: usize, random: &mut Random, most: usize) -> Result<usize, Corrupt> {
        let tenant = &self.tenants[index];
        let seat = Seat { service: self, index };
        match &tenant.source {
            Source::Cluster { load, .. } => {
                let request = load.draw(random);
                let mut cache = tenant.cache.lock();
                cache.serve(request, &seat)?;
                tenant.own.show(cache.figures.growing());
                Ok(1)
            }
            Source::Trace { lookups, served } => {
                let mut cache = tenant.cache.lock();
                // Relaxed: written with the cache locked; who reads it without is told later.
                let rest = &lookups[served.load(Ordering::Relaxed)..];
                let burst = &rest[..rest.len().min(most).min(BURST)];
                for &Lookup { key, size } in burst {
                    cache.serve(Request { key, operation: Operation::Fetch(size) }, &seat)?;
                }
                tenant.own.show(cache.figures.growing());
                served.fetch_add(burst.len(), Ordering::Relaxed);
                Ok(burst.len())
            }
        }
    }

    /// Fills a cluster's cache from its most wanted key on, until its max has refused one.
    pub(crate) fn warm_up(&self, index: usize) {
        let tenant = &self.tenants[index];
        let Source::Cluster { keys, .. } = tenant.source else { return };
        let mut cache = tenant.cache.lock();
        for key in 1..=keys {
            cache.fill(key, &Seat { service: self, index });
            if cache.figures.refused_by_tenant > 0 {
                return;
            }
        }
    }

    /// Whether a tenant's trace is at its end; a cluster has none.
    pub(crate) fn is_done(&self, index: usize) -> bool {
        match &self.tenants[index].source {
            Source::Cluster { .. } => false,
            Source::Trace { lookups, served } => served.load(Ordering::Relaxed) == lookups.len(),
        }
    }

    /// Evicts from the tenant that holds most above its fair share, `asker` aside; returns the bytes that are free. A
    /// busy one is asked again, with patience, when all others have nothing to give.
    fn evict_elsewhere(&self, asker: usize, want: u64) -> u64 {
        for patience in [Duration::ZERO, PATIENCE] {
            let mut passed = vec![asker];
            while let Some(most) = self.most_above(&passed) {
                match self.tenants[most].cache.try_lock_for(patience).map(|mut cache| cache.evict(want)) {
                    Some(freed) if freed > 0 => return freed,
                    _ => passed.push(most),
                }
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
}

/// A tenant's place in the service, for as long as it is served.
struct Seat<'a> {
    service: &'a Service,
    index: usize,
}

impl MakeRoom for Seat<'_> {
    fn make_room(&self, cache: &mut Cache, error: &ChargeError) -> bool {
        let ChargeError::Limit(refusal) = error else { return false };
        let want = short(refusal);
        if *refusal.group() == cache.group {
            cache.figures.refused_by_tenant += 1;
            return cache.evict(want) > 0;
        }
        cache.figures.refused_by_service += 1;
        let above = cache.group.usage() > self.service.tenants[self.index].share;
        (above && cache.evict(want) > 0) || self.service.evict_elsewhere(self.index, want) > 0 || cache.evict(want) > 0
    }
}

/// Bytes that must go for the charge to fit, as things stood when it was refused.
fn short(refusal: &Refusal) -> u64 {
    refusal.usage().saturating_add(refusal.requested()).saturating_sub(refusal.max()).max(1)
}
