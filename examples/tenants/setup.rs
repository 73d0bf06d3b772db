//! From the command line to a service: its runtime, its tenants, how often each is asked.

use std::sync::atomic::AtomicUsize;

use memcg::{BuildError, Bytes, CreateError, Group, Limit, Limits, Runtime};
use parking_lot::Mutex;
use rand_distr::weighted::WeightedAliasIndex;
use thiserror::Error;

use crate::args::Args;
use crate::cache::Cache;
use crate::clusters::{CLUSTERS, WITHOUT_FIGURES, name};
use crate::items::{Items, Own};
use crate::load::{Load, Sizes};
use crate::memory;
use crate::plan::{Plan, Planned, fair_shares};
use crate::report::Setting;
use crate::service::{BURST, Service, Source, Tenant};
use crate::trace::{Trace, TraceError};

/// Why there is no service.
#[derive(Debug, Error)]
pub(crate) enum SetupError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("the clusters would fill a budget of {budget}, and the machine has {available} left")]
    Memory { budget: Bytes, available: Bytes },
    #[error("the budget was not accepted: {0}")]
    Runtime(#[from] BuildError),
    #[error("tenant {name:?} was not accepted: {fault}")]
    Group { name: String, fault: CreateError },
}

/// Grains of statistics that a thread counts before it tells: the kernel's figure. What is shown live is nearer to the
/// truth than with the crate's own, and beside a request it costs nothing.
const STAT_BATCH: u64 = 64;

/// All that the workers need.
pub(crate) struct Setup {
    pub(crate) runtime: Runtime,
    pub(crate) items: Items,
    pub(crate) service: Service,
    /// Draws a tenant as often as its requests arrive.
    pub(crate) arrivals: WeightedAliasIndex<f64>,
    plan: Option<Plan>,
}

/// A tenant to be.
struct Candidate {
    name: String,
    max: Limit,
    sizes: Option<Sizes>,
    source: Source,
    /// How often it is drawn.
    weight: f64,
}

impl Setup {
    pub(crate) fn new(args: &Args) -> Result<Self, SetupError> {
        if let Some(available) = memory::available().map(Bytes).filter(|&left| args.clusters() && left < args.budget) {
            return Err(SetupError::Memory { budget: args.budget, available });
        }
        let traces = traces(args)?;
        let budget = args.budget.as_u64();
        let mut builder = Runtime::builder().max(Limit::Bytes(budget)).batch(args.batch()).stat_batch(STAT_BATCH);
        let items = Items::declare(&mut builder);
        let runtime = builder.audit(args.audit).build()?;

        // Traces take their part of the budget as any other tenant does.
        let of_clusters = CLUSTERS.len() as u128 * u128::from(budget) / (CLUSTERS.len() + traces.len()) as u128;
        let plan = args.clusters().then(|| Plan::new(of_clusters as u64));
        let mut candidates: Vec<_> = plan.iter().flat_map(|plan| &plan.tenants).map(Candidate::cluster).collect();
        candidates.extend(traces.into_iter().map(|trace| Candidate::trace(trace, args.tenant_max)));
        let arrivals = WeightedAliasIndex::new(candidates.iter().map(|candidate| candidate.weight).collect());
        let arrivals = arrivals.expect("there is a tenant, and weights are above 0");

        let mut tenants = Vec::with_capacity(candidates.len());
        for (salt, candidate) in candidates.into_iter().enumerate() {
            tenants.push(candidate.tenant(&runtime.root(), items, salt as u64)?);
        }
        let maxes: Vec<_> = tenants.iter().map(|tenant| tenant.group.max().min(budget)).collect();
        for (tenant, share) in tenants.iter_mut().zip(fair_shares(budget, &maxes)) {
            tenant.share = share;
        }
        Ok(Self { runtime, items, service: Service { tenants }, arrivals, plan })
    }

    /// Every group with a max: the root and the tenants.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let tenants = self.service.tenants.iter().map(|tenant| tenant.group.clone());
        [self.runtime.root()].into_iter().chain(tenants).collect()
    }

    /// The tenants by their max, the largest first.
    pub(crate) fn largest_first(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.service.tenants.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.service.tenants[index].group.max()));
        order
    }

    /// How many requests there will be, where that is known: in all traces, or in all.
    pub(crate) fn requests(&self, cap: Option<u64>) -> Option<u64> {
        let of_traces = self.service.tenants.iter().map(|tenant| match &tenant.source {
            Source::Trace { lookups, .. } => Some(lookups.len() as u64),
            Source::Cluster { .. } => None,
        });
        let of_traces: Option<u64> = of_traces.sum();
        match (of_traces, cap) {
            (Some(all), Some(cap)) => Some(all.min(cap)),
            (all, cap) => all.or(cap),
        }
    }

    /// What the report says about all this.
    pub(crate) fn setting(&self, threads: usize, batch: Bytes) -> Setting {
        let left_out = if self.plan.is_some() { WITHOUT_FIGURES.map(name).to_vec() } else { Vec::new() };
        Setting {
            threads,
            budget_bytes: self.runtime.root().max(),
            batch_bytes: batch.as_u64(),
            scale: self.plan.as_ref().map(|plan| plan.scale),
            part: self.plan.as_ref().map(|plan| plan.part),
            left_out,
        }
    }
}

impl Candidate {
    fn cluster(planned: &Planned) -> Self {
        let &Planned { cluster, keys, max } = planned;
        Self {
            name: cluster.name(),
            max: Limit::Bytes(max),
            sizes: Some(Sizes::new(cluster)),
            source: Source::Cluster { load: Load::new(cluster, keys), keys },
            weight: cluster.rate_kqps,
        }
    }

    /// A trace says nothing about its rate: the mean of the clusters'.
    fn trace(trace: Trace, max: Limit) -> Self {
        let rates: f64 = CLUSTERS.iter().map(|cluster| cluster.rate_kqps).sum();
        Self {
            name: trace.name,
            max,
            sizes: None,
            source: Source::Trace { lookups: trace.lookups, served: AtomicUsize::new(0) },
            weight: rates / CLUSTERS.len() as f64 / BURST as f64,
        }
    }

    fn tenant(self, root: &Group, items: Items, salt: u64) -> Result<Tenant, SetupError> {
        let Self { name, max, sizes, source, .. } = self;
        let group = match root.create(&name, Limits::new().max(max)) {
            Ok(group) => group,
            Err(fault) => return Err(SetupError::Group { name, fault }),
        };
        let entry_max = group.max().min(root.max());
        let cache = Mutex::new(Cache::new(group.clone(), items, entry_max, sizes, salt));
        Ok(Tenant { name, group, share: 0, source, cache, own: Own::default() })
    }
}

/// The traces named on the command line.
fn traces(args: &Args) -> Result<Vec<Trace>, TraceError> {
    let mut traces: Vec<Trace> = Vec::with_capacity(args.traces.len());
    for path in &args.traces {
        let mut trace = Trace::read(path, args.requests)?;
        let of_traces = traces.iter().filter(|other| other.file_name == trace.file_name).count();
        let of_clusters =
            CLUSTERS.iter().filter(|cluster| args.clusters() && cluster.name() == trace.file_name).count();
        let namesakes = of_traces + of_clusters;
        if namesakes > 0 {
            trace.name = format!("{}#{}", trace.name, namesakes + 1);
        }
        traces.push(trace);
    }
    Ok(traces)
}
