//! The way in which clusters are cut down to the budget, and which max makes each of them meet it.
//!
//! * The *scale* shrinks all working sets by one factor, to twice the budget together.
//! * A tenant's max is a part of what its keys take, the same part for all, and all maxes together
//!   are an eighth more than the budget: so tenants meet their max, and all together the budget.
//! * A *fair share* is what a tenant may keep when the budget is full: its max, but no more than a
//!   level that is chosen so that the shares of all fill the budget. A small tenant's share is its
//!   max, so it gets there whatever the others do.
//!
//! If policies are compared, only those that mostly read are served, without a max. The scale is
//! such that all their entries together fit into a part of the budget, and what each could use is
//! as much more as fills what is promised.

use crate::clusters::{CLUSTERS, Cluster};
use crate::entry::footprint;

/// Working sets, all together, as a multiple of the budget.
const WORKING_SETS: f64 = 2.0;

/// The maxes of all tenants together, as a multiple of the budget.
const OVERCOMMIT: f64 = 1.125;

/// The same where policies are compared, but of all that the entries take.
const WORKING_SETS_COMPARED: f64 = 0.6;

/// Of its requests, the part that a tenant which mostly reads reads at least.
const GETS_MIN: f64 = 0.9;

/// Keys where the working set is not known.
const KEYS_UNKNOWN: u64 = 1_000;

/// Decimal: as the figures were published.
const MB: f64 = 1e6;

/// One cluster under a budget.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) cluster: &'static Cluster,
    pub(crate) keys: u64,
    /// `None`: no max of its own.
    pub(crate) max: Option<u64>,
    /// The most that it has use for.
    pub(crate) demand: u64,
}

/// The plan for the main job.
pub(crate) fn whole(budget: u64) -> Vec<Planned> {
    let budget = budget as f64;
    let published: f64 = CLUSTERS.iter().map(working_set).sum();
    let scale = WORKING_SETS * budget / published;
    let clusters: Vec<_> = CLUSTERS
        .iter()
        .map(|cluster| (cluster, keys(cluster, scale)))
        .collect();
    let all: f64 = clusters
        .iter()
        .map(|&(cluster, keys)| bytes(cluster, keys))
        .sum();
    let part = (OVERCOMMIT * budget / all).min(1.0);
    let tenant = |(cluster, keys)| {
        let max = (bytes(cluster, keys) * part) as u64;
        Planned {
            cluster,
            keys,
            max: Some(max),
            demand: max,
        }
    };
    clusters.into_iter().map(tenant).collect()
}

/// The plan for a comparison.
pub(crate) fn compared(budget: u64) -> Vec<Planned> {
    let reading = |cluster: &&Cluster| cluster.working_set_mb > 0 && gets(cluster) >= GETS_MIN;
    let clusters: Vec<_> = CLUSTERS.iter().filter(reading).collect();
    let unscaled: f64 = clusters
        .iter()
        .map(|cluster| bytes(cluster, keys(cluster, 1.0)))
        .sum();
    let scale = WORKING_SETS_COMPARED * budget as f64 / unscaled;
    let tenant = |cluster| {
        let keys = keys(cluster, scale);
        let working_set = bytes(cluster, keys) as u64;
        // A quarter more, for writes change their sizes.
        Planned {
            cluster,
            keys,
            max: None,
            demand: working_set + working_set / 4,
        }
    };
    clusters.into_iter().map(tenant).collect()
}

/// The share of the operations that only look up.
fn gets(cluster: &Cluster) -> f64 {
    let gets = cluster
        .operations
        .split(' ')
        .filter_map(|part| part.strip_prefix("get:"));
    gets.filter_map(|share| share.parse::<f64>().ok()).sum()
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

/// Bytes that all keys of a cluster take.
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
        // The bytes that each of the tenants from here on could have.
        let each = left / (rising.len() - index) as u64;
        if max > each {
            level = each;
            break;
        }
        left -= max;
    }
    maxes.iter().map(|&max| max.min(level)).collect()
}
