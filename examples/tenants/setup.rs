//! From a scene and a policy to a service: its runtime, its tenants, their limits.

use std::sync::Arc;
use std::time::Duration;

use memcg::errors::{CreateError, LimitError};
use memcg::{BuildError, Bytes, Group, Limit, Limits, OnFull, Priority, Reclaim, Registration, Runtime};
use rand::SeedableRng;
use thiserror::Error;

use crate::args::Args;
use crate::cache::Cache;
use crate::clusters::{WITHOUT_FIGURES, name};
use crate::entry::scramble;
use crate::evictor::{Evictor, Places};
use crate::items::{Items, Own};
use crate::load::Random;
use crate::policy::{Policy, Promise};
use crate::report::Setting;
use crate::scene::{Candidate, Scene};
use crate::service::{Service, Tenant, Turn};
use crate::shelf::Shelf;
use crate::trace::TraceError;

/// Why there is no service.
#[derive(Debug, Error)]
pub(crate) enum SetupError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("{who} would fill a budget of {budget}, and the machine has {available} left; lower --budget")]
    Memory { who: &'static str, budget: Bytes, available: Bytes },
    #[error("the budget was not accepted: {0}")]
    Runtime(#[from] BuildError),
    #[error("tenant {name:?} was not accepted: {fault}")]
    Group { name: String, fault: CreateError },
    #[error("a limit was not accepted: {0}")]
    Limit(#[from] LimitError),
}

/// Grains of statistics that a thread counts before it tells: the kernel's figure. What is shown live is nearer to the
/// truth than with the crate's own, and beside a request it costs nothing.
const STAT_BATCH: u64 = 64;

/// The longest delay of a request: the worker that sleeps serves no other tenant meanwhile.
const DELAY_MAX: Duration = Duration::from_millis(50);

/// All that the workers need.
pub(crate) struct Setup {
    pub(crate) runtime: Runtime,
    pub(crate) items: Items,
    pub(crate) service: Service,
    /// The registrations of the shelves, which are asked for room.
    registrations: Vec<Registration>,
    /// The evictor that requests wait for.
    evictor: Option<Evictor>,
}

/// Under what the tenants stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    pub(crate) promise: Promise,
    /// The time that a request waits, where requests do.
    pub(crate) wait: Duration,
    /// The seed from which the requests are drawn.
    pub(crate) seed: u64,
}

impl Setup {
    pub(crate) fn new(args: &Args, scene: &Scene, rule: Rule) -> Result<Self, SetupError> {
        let max = if rule.policy == Policy::Unlimited { Limit::Unlimited } else { Limit::Bytes(scene.budget) };
        let mut builder = Runtime::builder().max(max).batch(args.batch()).stat_batch(STAT_BATCH);
        let items = Items::declare(&mut builder);
        let runtime = builder.audit(args.audit).delay_max(DELAY_MAX).build()?;
        let root = runtime.root();

        let groups: Vec<Group> =
            scene.candidates.iter().map(|candidate| candidate.group(&root)).collect::<Result<_, _>>()?;
        let holds = scene.candidates.iter().zip(&groups);
        let holds: Vec<u64> = holds.map(|(one, group)| group.max().min(one.demand).min(scene.budget)).collect();
        let shares = scene.fair_shares(&holds);

        let owners: Arc<[Own]> = groups.iter().map(|_| Own::default()).collect();
        let shelf = || Arc::new(Shelf::new(Arc::clone(&owners), items.evictions));
        let shelves: Vec<_> = match rule.policy {
            Policy::Shared => vec![shelf()],
            _ => groups.iter().map(|_| shelf()).collect(),
        };
        // The shelf of all is asked for the service, that of a tenant for the tenant and for the service.
        let asked_for = match rule.policy {
            Policy::Shared => std::slice::from_ref(&root),
            Policy::Static | Policy::Memcg => &groups,
            // No tenant is asked: the evictor sees to the requests that wait.
            Policy::Waiting | Policy::Unlimited => &[],
        };
        let registrations = asked_for.iter().zip(&shelves).map(|(group, shelf)| register(group, shelf)).collect();
        let mut tenants = Vec::with_capacity(groups.len());
        for (number, (candidate, group)) in scene.candidates.iter().zip(groups).enumerate() {
            let share = shares[number];
            limit(&group, candidate, share, rule)?;
            let entry_max = group.max().min(root.max());
            let shelf = Arc::clone(shelves.get(number).unwrap_or(&shelves[0]));
            let cache = Cache::new(group.clone(), shelf, number as u32, items, entry_max, candidate.sizes);
            let cache = if rule.policy == Policy::Waiting { cache.waiting(rule.wait) } else { cache };
            // A stream of each tenant's own: a tenant that is served before it, its requests are the same.
            let random = Random::seed_from_u64(scramble(scramble(rule.seed, u64::MAX), number as u64));
            tenants.push(Tenant::new(candidate, group, share, holds[number], Turn { cache, random, scanned: 0 }));
        }
        let service = Service { tenants, shelves, owners };
        let evictor = (rule.policy == Policy::Waiting).then(|| Evictor::new(Places::of(&service, root)));
        Ok(Self { runtime, items, service, registrations, evictor })
    }

    /// From here on no tenant is asked for room. Returns how many groups are asked all the same, which is none.
    pub(crate) fn unregister(&mut self) -> u64 {
        self.registrations.clear();
        self.evictor = None;
        let report = self.runtime.root().reclaim(Bytes(self.runtime.root().usage()));
        report.map_or(u64::MAX, |report| report.visited)
    }

    /// Every group with a max: the root and the tenants.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let tenants = self.service.tenants.iter().map(|tenant| tenant.group.clone());
        [self.runtime.root()].into_iter().chain(tenants).collect()
    }

    /// The tenants by what they may hold, the largest first.
    pub(crate) fn largest_first(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.service.tenants.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.service.tenants[index].holds));
        order
    }

    /// The report's words about all this.
    pub(crate) fn setting(&self, scene: &Scene, rule: Rule, threads: usize, batch: Bytes) -> Setting {
        let plan = scene.plan.as_ref();
        Setting {
            policy: rule.policy,
            promise: rule.promise,
            wait: (rule.policy == Policy::Waiting).then(|| OnFull::Wait(rule.wait).to_string()),
            threads,
            budget_bytes: scene.budget,
            batch_bytes: batch.as_u64(),
            scale: plan.map(|plan| plan.scale),
            part: plan.and_then(|plan| plan.part),
            left_out: if plan.is_some() { WITHOUT_FIGURES.map(name).to_vec() } else { Vec::new() },
        }
    }
}

impl Candidate {
    fn group(&self, root: &Group) -> Result<Group, SetupError> {
        let group = root.create(&self.name, Limits::new().max(self.max));
        group.map_err(|fault| SetupError::Group { name: self.name.clone(), fault })
    }
}

fn register(group: &Group, shelf: &Arc<Shelf>) -> Registration {
    group.register_reclaimer(Arc::clone(shelf) as Arc<dyn Reclaim>, Priority::NORMAL)
}

/// Sets the limits that the policy makes of a fair share.
fn limit(group: &Group, candidate: &Candidate, share: u64, rule: Rule) -> Result<(), LimitError> {
    let mut limits = Limits::new();
    if rule.policy == Policy::Memcg {
        limits = limits.high(Limit::Bytes(rule.promise.high.of(share)));
    }
    let limits = match rule.policy {
        Policy::Shared | Policy::Unlimited => limits.max(Limit::Unlimited),
        Policy::Static => limits.max(Limit::Bytes(share)),
        Policy::Memcg | Policy::Waiting => {
            let low = if candidate.is_noisy() { 0 } else { rule.promise.low.of(share) };
            limits.low(Limit::Bytes(low)).soft(Limit::Bytes(rule.promise.soft.of(share)))
        }
    };
    // Nothing is charged yet, so that nothing is above.
    group.set_limits(limits)?;
    Ok(())
}
