//! The tenants under their budget: which is asked for what, and what it takes to serve them.

use std::sync::Arc;

use memcg::{Event, Group};
use parking_lot::Mutex;

use crate::cache::Cache;
use crate::load::{Load, Operation, Random, Request};
use crate::shelf::{Evictions, Shelf};

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// The group of the cache, to be read without a lock.
    pub(crate) group: Group,
    /// Bytes that it may keep when the budget is full.
    pub(crate) share: u64,
    /// The most that it may hold, or has use for.
    pub(crate) holds: u64,
    pub(crate) source: Source,
    pub(crate) turn: Mutex<Turn>,
}

/// State that serves a tenant: in one worker's hands at a time.
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
    /// Drawn, over this many keys.
    Cluster { load: Load, keys: u64 },
    /// One key after the other, each for the first time.
    Scan,
}

/// All tenants. Any worker serves any of them, so that charge and uncharge of an entry often happen
/// on two threads, as in a service that steals work.
pub(crate) struct Service {
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) shelves: Vec<Arc<Shelf>>,
    /// By tenant.
    pub(crate) evictions: Arc<[Evictions]>,
}

impl Service {
    /// Serves a tenant's next request.
    pub(crate) fn serve(&self, index: usize) {
        let tenant = &self.tenants[index];
        let mut turn = tenant.turn.lock();
        let Turn {
            cache,
            random,
            scanned,
        } = &mut *turn;
        cache.serve(match &tenant.source {
            Source::Cluster { load, .. } => load.draw(random),
            Source::Scan => {
                *scanned += 1;
                Request {
                    key: *scanned,
                    operation: Operation::Get,
                }
            }
        });
    }

    /// Fills a cluster's cache from its most wanted key on, until its max has refused one, or it
    /// holds all that it may.
    pub(crate) fn warm_up(&self, index: usize) {
        let tenant = &self.tenants[index];
        let Source::Cluster { keys, .. } = tenant.source else {
            return;
        };
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

    /// The tenants by what they may hold, the largest first.
    pub(crate) fn largest_first(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.tenants.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.tenants[index].holds));
        order
    }

    /// A figure of all tenants' caches.
    pub(crate) fn sum(&self, figure: fn(&Cache) -> u64) -> u64 {
        self.tenants
            .iter()
            .map(|tenant| figure(&tenant.turn.lock().cache))
            .sum()
    }
}
