//! The tenants: the clusters, the traces, those that flood. The same under each policy and in each run.

use std::collections::HashMap;

use memcg::{Bytes, Limit};
use rand_distr::weighted::WeightedAliasIndex;

use crate::args::Args;
use crate::clusters::CLUSTERS;
use crate::entry::footprint;
use crate::load::{Load, Sizes};
use crate::memory;
use crate::plan::{Plan, Planned, fair_shares, with_room};
use crate::policy::PROTECTED_PERCENT;
use crate::service::{BURST, Source};
use crate::setup::SetupError;
use crate::trace::{Lookup, Trace, TraceError};

/// Requests of one tenant that floods, as a multiple of those of all that do not.
const FLOOD: f64 = 8.0;

/// All tenants to be.
pub(crate) struct Scene {
    pub(crate) budget: u64,
    pub(crate) plan: Option<Plan>,
    pub(crate) candidates: Vec<Candidate>,
    /// Draws a tenant as often as its requests arrive.
    pub(crate) arrivals: WeightedAliasIndex<f64>,
}

/// A tenant to be.
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) max: Limit,
    /// The most that it has use for.
    pub(crate) demand: u64,
    /// The bytes of the entries of all its keys, where they are known.
    pub(crate) working_set: u64,
    pub(crate) sizes: Option<Sizes>,
    pub(crate) source: Source,
    /// The weight with which it is drawn.
    weight: f64,
}

impl Scene {
    pub(crate) fn new(args: &Args) -> Result<Self, SetupError> {
        let budget = args.budget();
        let who = if args.clusters() { Some("the clusters") } else { (args.noisy() > 0).then_some("the flood") };
        if let (Some(who), Some(available)) = (who, memory::available().map(Bytes).filter(|&left| left < budget)) {
            return Err(SetupError::Memory { who, budget, available });
        }
        let traces = traces(args)?;
        let budget = budget.as_u64();
        let mut candidates: Vec<Candidate> = Vec::new();
        let plan = args.clusters().then(|| {
            // Traces take their part of the budget as any other tenant does.
            let clusters = |all: usize| (all as u128 * u128::from(budget) / (all + traces.len()) as u128) as u64;
            match args.compare {
                true => Plan::compared(clusters(CLUSTERS.len())),
                false => Plan::new(clusters(CLUSTERS.len())),
            }
        });
        candidates.extend(plan.iter().flat_map(|plan| &plan.tenants).map(Candidate::cluster));
        candidates.extend(traces.into_iter().map(|trace| Candidate::trace(trace, args)));
        let calm: f64 = candidates.iter().map(Candidate::rate).sum();
        candidates.extend((1..=args.noisy()).map(|number| Candidate::scan(number, calm * FLOOD)));
        let arrivals = WeightedAliasIndex::new(candidates.iter().map(|candidate| candidate.weight).collect());
        let arrivals = arrivals.expect("there is a tenant, and weights are above 0");
        Ok(Self { budget, plan, candidates, arrivals })
    }

    /// Fair shares, given what each could hold. Those that flood share what the others are not promised.
    pub(crate) fn fair_shares(&self, holds: &[u64]) -> Vec<u64> {
        let calm = self.candidates.iter().filter(|candidate| !candidate.is_noisy()).count();
        let noisy = (self.candidates.len() - calm) as u64;
        let promised = match noisy {
            0 => self.budget,
            _ => (u128::from(self.budget) * u128::from(PROTECTED_PERCENT) / 100) as u64,
        };
        // Those that flood stand behind all others.
        let mut shares = fair_shares(promised, &holds[..calm]);
        shares.extend((0..noisy).map(|_| (self.budget - promised) / noisy));
        shares
    }

    /// The number of requests that there will be, where it is known: in all traces, or in all.
    pub(crate) fn requests(&self, cap: Option<u64>) -> Option<u64> {
        let of_traces = self.candidates.iter().map(|candidate| match &candidate.source {
            Source::Trace { lookups, endless: false } => Some(lookups.len() as u64),
            _ => None,
        });
        let of_traces: Option<u64> = of_traces.sum();
        match (of_traces, cap) {
            (Some(all), Some(cap)) => Some(all.min(cap)),
            (all, cap) => all.or(cap),
        }
    }
}

impl Candidate {
    fn cluster(planned: &Planned) -> Self {
        let &Planned { cluster, keys, max, demand, working_set } = planned;
        Self {
            name: cluster.name(),
            max: max.map_or(Limit::Unlimited, Limit::Bytes),
            demand,
            working_set,
            sizes: Some(Sizes::new(cluster)),
            source: Source::Cluster { load: Load::new(cluster, keys), keys },
            weight: cluster.rate_kqps,
        }
    }

    /// A trace says nothing about its rate: the mean of the clusters'.
    fn trace(trace: Trace, args: &Args) -> Self {
        let rates: f64 = CLUSTERS.iter().map(|cluster| cluster.rate_kqps).sum();
        let working_set = if args.compare { working_set(&trace.lookups) } else { u64::MAX };
        Self {
            name: trace.name,
            max: args.tenant_max,
            demand: with_room(working_set),
            working_set,
            sizes: None,
            source: Source::Trace { lookups: trace.lookups.into(), endless: args.compare },
            weight: rates / CLUSTERS.len() as f64 / BURST as f64,
        }
    }

    fn scan(number: u16, rate: f64) -> Self {
        Self {
            name: noisy(number),
            max: Limit::Unlimited,
            demand: u64::MAX,
            working_set: u64::MAX,
            sizes: None,
            source: Source::Scan,
            weight: rate,
        }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        matches!(self.source, Source::Scan)
    }

    /// Requests, as a multiple of the unit of all weights.
    fn rate(&self) -> f64 {
        match self.source {
            Source::Trace { .. } => self.weight * BURST as f64,
            _ => self.weight,
        }
    }
}

/// The name of a tenant that floods.
fn noisy(number: u16) -> String {
    format!("noisy{number}")
}

/// The bytes of the entries of all keys together, at their last size.
fn working_set(lookups: &[Lookup]) -> u64 {
    let sizes: HashMap<_, _> = lookups.iter().map(|lookup| (lookup.key, lookup.size)).collect();
    sizes.values().fold(0, |sum: u64, &size| sum.saturating_add(footprint(size)))
}

/// The traces named on the command line.
fn traces(args: &Args) -> Result<Vec<Trace>, TraceError> {
    let mut traces: Vec<Trace> = Vec::with_capacity(args.traces.len());
    for path in &args.traces {
        let mut trace = Trace::read(path, args.requests)?;
        let of_traces = traces.iter().filter(|other| other.file_name == trace.file_name).count();
        let of_clusters =
            CLUSTERS.iter().filter(|cluster| args.clusters() && cluster.name() == trace.file_name).count();
        let of_noisy = (1..=args.noisy()).filter(|&number| noisy(number) == trace.file_name).count();
        let namesakes = of_traces + of_clusters + of_noisy;
        if namesakes > 0 {
            trace.name = format!("{}#{}", trace.name, namesakes + 1);
        }
        traces.push(trace);
    }
    Ok(traces)
}
