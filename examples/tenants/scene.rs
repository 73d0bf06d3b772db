//! The tenants: the clusters, then those that flood. The same under each policy and in each run.

use memcg::{Bytes, Limit};
use rand_distr::weighted::WeightedAliasIndex;

use crate::args::Args;
use crate::load::{Load, Sizes};
use crate::memory;
use crate::plan::{self, Planned, fair_shares};
use crate::service::Source;
use crate::setup::SetupError;

/// Requests of one tenant that floods, as a multiple of those of all that do not.
const FLOOD: f64 = 8.0;

/// Bytes of what a tenant that floods looks up: a page.
const SCANNED: u64 = 4096;

/// Of the budget, in percent, what tenants may be promised while others flood; those get the rest.
const PROTECTED_PERCENT: u64 = 75;

/// All tenants to be.
pub(crate) struct Scene {
    pub(crate) budget: u64,
    /// Those that flood stand behind all others.
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
    pub(crate) sizes: Sizes,
    pub(crate) source: Source,
    /// The weight with which it is drawn.
    weight: f64,
}

impl Scene {
    pub(crate) fn new(args: &Args) -> Result<Self, SetupError> {
        let budget = args.budget();
        if let Some(available) = memory::available().map(Bytes).filter(|&left| left < budget) {
            return Err(SetupError::Memory { budget, available });
        }
        let budget = budget.as_u64();
        let plan = if args.compare {
            plan::compared(budget)
        } else {
            plan::whole(budget)
        };
        let mut candidates: Vec<Candidate> = plan.iter().map(Candidate::cluster).collect();
        let calm: f64 = candidates.iter().map(|candidate| candidate.weight).sum();
        candidates.extend((1..=args.noisy()).map(|number| Candidate::scan(number, calm * FLOOD)));
        let arrivals = WeightedAliasIndex::new(
            candidates
                .iter()
                .map(|candidate| candidate.weight)
                .collect(),
        );
        let arrivals = arrivals.expect("there is a tenant, and weights are above 0");
        Ok(Self {
            budget,
            candidates,
            arrivals,
        })
    }

    /// Tenants that do not flood.
    pub(crate) fn calm(&self) -> usize {
        self.candidates
            .iter()
            .filter(|candidate| !candidate.is_noisy())
            .count()
    }

    /// Fair shares, given what each could hold. Those that flood share what the others are not
    /// promised.
    pub(crate) fn fair_shares(&self, holds: &[u64]) -> Vec<u64> {
        let calm = self.calm();
        let noisy = (self.candidates.len() - calm) as u64;
        let promised = if noisy == 0 {
            self.budget
        } else {
            self.budget / 100 * PROTECTED_PERCENT
        };
        let mut shares = fair_shares(promised, &holds[..calm]);
        shares.extend((0..noisy).map(|_| (self.budget - promised) / noisy));
        shares
    }
}

impl Candidate {
    fn cluster(planned: &Planned) -> Self {
        let &Planned {
            cluster,
            keys,
            max,
            demand,
        } = planned;
        Self {
            name: cluster.name(),
            max: max.map_or(Limit::Unlimited, Limit::Bytes),
            demand,
            sizes: Sizes::new(cluster),
            source: Source::Cluster {
                load: Load::new(cluster, keys),
                keys,
            },
            weight: cluster.rate_kqps,
        }
    }

    fn scan(number: u16, weight: f64) -> Self {
        Self {
            name: format!("noisy{number}"),
            max: Limit::Unlimited,
            demand: u64::MAX,
            sizes: Sizes::fixed(SCANNED),
            source: Source::Scan,
            weight,
        }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        matches!(self.source, Source::Scan)
    }
}
