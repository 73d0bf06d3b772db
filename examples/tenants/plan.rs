//! How the clusters are cut down to the budget, and which max makes each of them meet it.
//!
//! * The *scale* shrinks all working sets by one factor, to twice the budget together.
//! * A tenant's max is a part of what its keys take, the same part for all, and all maxes together
//!   are an eighth more than the budget: so tenants meet their max, and all together the budget.
//! * A *fair share* is what a tenant may keep when the budget is full: its max, but no more than a
//!   level that is chosen so that the shares of all fill the budget. A small tenant's share is its
//!   max, so it gets there whatever the others do.

use crate::clusters::{CLUSTERS, Cluster};
use crate::entry::footprint;

/// Working sets, all together, as a multiple of the budget.
const WORKING_SETS: f64 = 2.0;

/// The maxes of all tenants together, as a multiple of the budget.
const OVERCOMMIT: f64 = 1.125;

/// Keys where the working set is not known.
const KEYS_UNKNOWN: u64 = 1_000;

/// Decimal: as the figures were published.
const MB: f64 = 1e6;

/// The clusters under a budget.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What all working sets were multiplied with.
    pub(crate) scale: f64,
    /// What part of its keys' bytes a tenant may hold.
    pub(crate) part: f64,
    pub(crate) tenants: Vec<Planned>,
}

/// One cluster under a budget.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) cluster: &'static Cluster,
    pub(crate) keys: u64,
    pub(crate) max: u64,
}

impl Plan {
    pub(crate) fn new(budget: u64) -> Self {
        let budget = budget as f64;
        let published: f64 = CLUSTERS.iter().map(working_set).sum();
        let scale = WORKING_SETS * budget / published;
        let keys = CLUSTERS.iter().map(|cluster| keys(cluster, scale));
        let bytes: Vec<f64> = CLUSTERS.iter().zip(keys.clone()).map(|(cluster, keys)| bytes(cluster, keys)).collect();
        let part = (OVERCOMMIT * budget / bytes.iter().sum::<f64>()).min(1.0);
        let tenants = CLUSTERS.iter().zip(keys).zip(bytes);
        let tenants =
            tenants.map(|((cluster, keys), bytes)| Planned { cluster, keys, max: (bytes * part) as u64 }).collect();
        Self { scale, part, tenants }
    }
}

fn working_set(cluster: &Cluster) -> f64 {
    f64::from(cluster.working_set_mb) * MB
}

fn keys(cluster: &Cluster, scale: f64) -> u64 {
    if cluster.working_set_mb == 0 {
        return KEYS_UNKNOWN;
    }
    let entry = f64::from(cluster.key_bytes + cluster.value_bytes);
    ((working_set(cluster) * scale / entry) as u64).max(1)
}

/// What all keys of a cluster take.
fn bytes(cluster: &Cluster, keys: u64) -> f64 {
    keys as f64 * footprint(u64::from(cluster.key_bytes + cluster.value_bytes)) as f64
}

/// The fair share of each tenant, given what each may hold at most.
pub(crate) fn fair_shares(budget: u64, maxes: &[u64]) -> Vec<u64> {
    let mut rising: Vec<u64> = maxes.to_vec();
    rising.sort_unstable();
    let mut left = budget;
    let mut level = u64::MAX;
    for (index, &max) in rising.iter().enumerate() {
        // What each of the tenants from here on could have.
        let each = left / (rising.len() - index) as u64;
        if max > each {
            level = each;
            break;
        }
        left -= max;
    }
    maxes.iter().map(|&max| max.min(level)).collect()
}
