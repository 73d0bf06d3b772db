//! From the scene to a service: the groups, their limits, their caches.

use std::sync::Arc;

use memcg::errors::{CreateError, LimitError};
use memcg::{
    BuildError, Bytes, Group, Limit, Limits, Reclaim, ReclaimPriority, Registration, Runtime,
};
use parking_lot::Mutex;
use rand::SeedableRng;
use thiserror::Error;

use crate::args::{Args, Policy};
use crate::cache::{Cache, Figures, Items};
use crate::entry::scramble;
use crate::load::Random;
use crate::scene::{Candidate, Scene};
use crate::service::{Service, Tenant, Turn};
use crate::shelf::{Evictions, Shelf};

/// The reason that there is no service.
#[derive(Debug, Error)]
pub(crate) enum SetupError {
    #[error(
        "the tenants would fill a budget of {budget}, and the machine has {available} left; lower --budget"
    )]
    Memory { budget: Bytes, available: Bytes },
    #[error("the budget was not accepted: {0}")]
    Runtime(#[from] BuildError),
    #[error("a tenant was not accepted: {0}")]
    Group(#[from] CreateError),
    #[error("a limit was not accepted: {0}")]
    Limit(#[from] LimitError),
}

/// Bytes that a thread charges in advance.
const BATCH: Bytes = Bytes(256 << 10);

/// Of the budget, the part that all threads may have charged in advance: a small budget is not
/// filled with credit.
const BATCH_PART: u64 = 1 << 10;

/// Grains of statistics that a thread counts before it tells: what is shown live is nearer to the
/// truth than with the crate's own, and beside a request it costs nothing.
const STAT_BATCH: u64 = 64;

/// All that the workers need.
pub(crate) struct Setup {
    pub(crate) runtime: Runtime,
    pub(crate) items: Items,
    pub(crate) service: Service,
    /// The registrations of the shelves, which are asked for room.
    registrations: Vec<Registration>,
}

impl Setup {
    pub(crate) fn new(
        args: &Args,
        scene: &Scene,
        policy: Policy,
        seed: u64,
    ) -> Result<Self, SetupError> {
        let batch = Bytes(BATCH.0.min(scene.budget / BATCH_PART));
        let mut builder = Runtime::builder()
            .max(Limit::Bytes(scene.budget))
            .batch(batch)
            .stat_batch(STAT_BATCH);
        let items = Items::declare(&mut builder);
        let runtime = builder.audit(true).build()?;
        let root = runtime.root();
        let create = |one: &Candidate| root.create(&one.name, Limits::new().max(one.max));
        let groups: Vec<Group> = scene
            .candidates
            .iter()
            .map(create)
            .collect::<Result<_, _>>()?;
        let holds = scene.candidates.iter().zip(&groups);
        let holds: Vec<u64> = holds
            .map(|(one, group)| group.max().min(one.demand).min(scene.budget))
            .collect();
        let shares = scene.fair_shares(&holds);

        let evictions: Arc<[Evictions]> = groups.iter().map(|_| Evictions::default()).collect();
        // The shelf of all is asked for the service, that of a tenant for the tenant and for the
        // service.
        let owners = if policy == Policy::Shared {
            std::slice::from_ref(&root)
        } else {
            &groups
        };
        let shelf = |_| Arc::new(Shelf::new(Arc::clone(&evictions), items.evictions));
        let shelves: Vec<Arc<Shelf>> = owners.iter().map(shelf).collect();
        let register = |(group, shelf): (&Group, &Arc<Shelf>)| {
            group.register_reclaimer(
                Arc::clone(shelf) as Arc<dyn Reclaim>,
                ReclaimPriority::NORMAL,
            )
        };
        let registrations = owners.iter().zip(&shelves).map(register).collect();
        let mut tenants = Vec::with_capacity(groups.len());
        for (number, (candidate, group)) in scene.candidates.iter().zip(groups).enumerate() {
            let share = shares[number];
            group.set_limits(limits(args, candidate, share, policy))?;
            let cache = Cache {
                group: group.clone(),
                items,
                shelf: Arc::clone(shelves.get(number).unwrap_or(&shelves[0])),
                owner: number as u32,
                entry_max: group.max().min(scene.budget),
                sizes: candidate.sizes,
                version: 0,
                figures: Figures::default(),
                refused_in_warm_up: 0,
            };
            // A stream of each tenant's own: a tenant that is served before it, its requests are
            // the same.
            let random = Random::seed_from_u64(scramble(scramble(seed, u64::MAX), number as u64));
            let name = candidate.name.clone();
            let source = candidate.source.clone();
            let turn = Mutex::new(Turn {
                cache,
                random,
                scanned: 0,
            });
            tenants.push(Tenant {
                name,
                group,
                share,
                holds: holds[number],
                source,
                turn,
            });
        }
        Ok(Self {
            runtime,
            items,
            service: Service {
                tenants,
                shelves,
                evictions,
            },
            registrations,
        })
    }

    /// From here on no tenant is asked for room.
    pub(crate) fn unregister(&mut self) {
        self.registrations.clear();
    }
}

/// The limits that the policy makes of a fair share.
fn limits(args: &Args, candidate: &Candidate, share: u64, policy: Policy) -> Limits {
    let part = |percent: u64| Limit::Bytes((u128::from(share) * u128::from(percent) / 100) as u64);
    match policy {
        Policy::Shared => Limits::new().max(Limit::Unlimited),
        Policy::Static => Limits::new().max(Limit::Bytes(share)),
        Policy::Shares if candidate.is_noisy() => Limits::new().share(1),
        // Weights: KiB of the fair share.
        Policy::Shares => {
            Limits::new().share(u32::try_from(share >> 10).unwrap_or(u32::MAX).max(1))
        }
        Policy::Memcg => {
            let low = if candidate.is_noisy() { 0 } else { args.low };
            Limits::new().low(part(low)).soft(part(args.soft))
        }
    }
}
