//! The statistics when no tenant counts any more: to the last unit what the service has counted itself.

use memcg::{Freshness, Group, Runtime, Stat};

use crate::agree::{Agreement, Reading};
use crate::items::Exact;
use crate::report::Row;
use crate::service::Service;

/// Grains that may be missing: more than the threads leave behind, so that nothing is flushed for this.
const WITHIN: u64 = u64::MAX;

/// Reads what is published of every item, then everything: they may differ by what the first read said.
pub(crate) fn check_within(agreement: &mut Agreement, runtime: &Runtime, service: &Service) {
    let groups = groups(runtime, service);
    let published: Vec<_> = groups.iter().map(|(_, group)| group.read(Freshness::Within(WITHIN))).collect();
    for ((name, group), published) in groups.iter().zip(published) {
        let exact = group.read(Freshness::Exact);
        for item in runtime.items() {
            let now = exact.get(item.stat);
            let (live, max_error) = (published.get(item.stat), published.max_error_of(item.stat));
            agreement.live(name, item.name, Reading { before: now, live, max_error, after: now });
        }
    }
}

/// Compares the tenants' statistics with the service's own counts, and the root's with their sum.
pub(crate) fn check(agreement: &mut Agreement, rows: &[Row], root: Exact) {
    let mut sums = [0; 4];
    for row in rows {
        let Row { tenant, statistics, sums: own, cache_bytes, .. } = row;
        let own = [*cache_bytes, own.gets, own.hits, own.evicted].map(u64::cast_signed);
        for (((item, found), own), sum) in statistics.figures().into_iter().zip(own).zip(&mut sums) {
            agreement.exact(tenant, item, "its own count", own, found);
            *sum += found;
        }
    }
    for ((item, found), sum) in root.figures().into_iter().zip(sums) {
        agreement.exact("the service", item, "the sum over its tenants", sum, found);
    }
}

/// With no entry left no bytes are cached.
pub(crate) fn check_empty(agreement: &mut Agreement, runtime: &Runtime, service: &Service) {
    for (name, group) in groups(runtime, service) {
        agreement.exact(&name, "cached bytes", "empty caches", 0, group.read(Freshness::Exact).get(Stat::FILE));
    }
}

fn groups(runtime: &Runtime, service: &Service) -> Vec<(String, Group)> {
    let tenants = service.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.group.clone()));
    [("the service".to_string(), runtime.root())].into_iter().chain(tenants).collect()
}
