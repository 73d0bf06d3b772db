//! The result of the run, and the check of the count.

use std::sync::Arc;

use memcg::{Bytes, Event, Freshness, Group};
use serde::Serialize;

use crate::agree::Agreement;
use crate::cache::Cache;
use crate::exact;
use crate::items::{Exact, Items, Own};
use crate::live::Looks;
use crate::memory;
use crate::policy::{Policy, Promise};
use crate::probe::Probe;
use crate::sampler::Samples;
use crate::service::{Service, Tenant};
use crate::setup::Setup;
use crate::shelf::Tally;
use crate::waits::WaitTimes;
use crate::work::Done;

/// Resident memory is this near to what is charged, as a share of that.
const RSS_OFF_MAX: f64 = 0.15;

/// The whole report; sizes are bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) setting: Setting,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    /// Of the time for which requests were served.
    pub(crate) requests_per_second: f64,
    pub(crate) live_bytes: u64,
    pub(crate) stocked_bytes: u64,
    pub(crate) usage_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// Resident memory now, and before the first entry; `None` where the system does not say.
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) rss_before_bytes: Option<u64>,
    /// Nanoseconds of one charge and its drop at depth 4.
    pub(crate) charge_ns_stock: f64,
    pub(crate) charge_ns_no_stock: f64,
    pub(crate) charge_slices: usize,
    pub(crate) samples: u64,
    pub(crate) max_budget_excess_bytes: u64,
    pub(crate) drains: u64,
    pub(crate) drained_bytes: u64,
    pub(crate) barriers: u64,
    pub(crate) refused_in_transit: u64,
    pub(crate) barrier: String,
    pub(crate) audited: bool,
    pub(crate) verify_ok: bool,
    pub(crate) statistics: Statistics,
    /// Number of charges that did not fit into the budget at first, and of reclaims of a tenant below its low.
    pub(crate) met_budget: u64,
    pub(crate) below_low: u64,
    /// Number of charges that left a tenant above its high.
    pub(crate) above_high: u64,
    /// `None`: no tenant waited.
    pub(crate) wait_times: Option<WaitTimes>,
    /// Tenants that did not meet their max, and whether the service met its own.
    pub(crate) unmet: Vec<String>,
    pub(crate) tenants: Vec<Row>,
    /// One line for each count that does not add up.
    pub(crate) faults: Vec<String>,
}

/// The statistics of the groups, and their checks.
#[derive(Debug, Serialize)]
pub(crate) struct Statistics {
    #[serde(flatten)]
    pub(crate) exact: Exact,
    /// Times that all groups were read live.
    pub(crate) looks: u64,
    #[serde(flatten)]
    pub(crate) agreement: Agreement,
    /// Number of times that a tenant gathered the threads' counts.
    pub(crate) flushes: u64,
}

/// The settings of the run.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) policy: Policy,
    #[serde(flatten)]
    pub(crate) promise: Promise,
    /// The wait of a request for which there is no room; `None`: it does not wait.
    pub(crate) wait: Option<String>,
    pub(crate) threads: usize,
    pub(crate) budget_bytes: u64,
    pub(crate) batch_bytes: u64,
    /// The factor by which the clusters were cut down; `None` without them.
    pub(crate) scale: Option<f64>,
    pub(crate) part: Option<f64>,
    /// Clusters without figures.
    pub(crate) left_out: Vec<String>,
}

/// One tenant.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) tenant: String,
    #[serde(flatten)]
    pub(crate) sums: Sums,
    pub(crate) live: u64,
    pub(crate) peak: u64,
    /// `None`: no max of its own.
    pub(crate) max: Option<u64>,
    pub(crate) fair_share: u64,
    /// Of the requests in their order, hexadecimal: JSON's numbers are too short.
    pub(crate) digest: String,
    /// The bytes of the cache's entries, by its own sum: `live`, to the byte.
    pub(crate) cache_bytes: u64,
    pub(crate) statistics: Exact,
}

/// The figures that add up over the tenants.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sums {
    pub(crate) requests: u64,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Of the gets.
    pub(crate) hit_ratio: f64,
    /// Number of charges that did not fit below the tenant's own max at first.
    pub(crate) met_max: u64,
    /// Charges that did not fit after all, whatever max was met; a tenant that waits did not fit before.
    pub(crate) refused: u64,
    /// Requests that waited for room, and of those, how many in vain.
    pub(crate) waited: u64,
    pub(crate) timed_out: u64,
    /// Requests that were delayed above high, and how long in all.
    pub(crate) delayed: u64,
    pub(crate) delay_ms: u64,
    pub(crate) evicted: u64,
    /// Of those, entries that made room for others.
    pub(crate) evicted_for_others: u64,
    pub(crate) too_large: u64,
    pub(crate) passed_through: u64,
    pub(crate) entries: u64,
}

/// The measures of the run.
pub(crate) struct Measured {
    pub(crate) done: Done,
    pub(crate) samples: Samples,
    pub(crate) looks: Looks,
    pub(crate) rss_before: Option<u64>,
}

impl Report {
    /// Reads all counters, checks them, then empties the caches and checks that nothing is left.
    pub(crate) fn gather(setting: Setting, setup: &mut Setup, probe: &Probe, mut measured: Measured) -> Self {
        let Setup { runtime, service, items, .. } = setup;
        let rss_bytes = memory::resident();
        let root = runtime.root();
        let (verdict, probed, counts) = (runtime.verify(), probe.runtime.verify(), runtime.counts());
        let Looks { looks, mut agreement } = measured.looks;
        exact::check_within(&mut agreement, runtime, service);
        let tenants = rows(service, *items);
        let sums = Sums::total(&tenants);
        let exact = items.of(&root.read(Freshness::Exact));
        exact::check(&mut agreement, &tenants, exact);
        let mut faults = check(&root, service, &tenants, sums);
        faults.extend(verdict.faults().iter().chain(probed.faults()).map(ToString::to_string));
        if measured.samples.excess > 0 {
            faults.push(format!("a sample saw {} above a max", Bytes(measured.samples.excess)));
        }
        let mut report = Self {
            setting,
            seconds: measured.done.seconds,
            sums,
            // A run can be too short for the clock, and JSON knows no infinity.
            requests_per_second: sums.requests as f64 / measured.done.seconds.max(1e-9),
            live_bytes: root.live(),
            stocked_bytes: root.memory().stocked(),
            usage_bytes: root.usage(),
            peak_bytes: root.peak(),
            rss_bytes,
            rss_before_bytes: measured.rss_before,
            charge_ns_stock: measured.done.costs.stock(),
            charge_ns_no_stock: measured.done.costs.no_stock(),
            charge_slices: measured.done.costs.slices(),
            samples: measured.samples.samples,
            max_budget_excess_bytes: measured.samples.excess,
            drains: counts.drains,
            drained_bytes: counts.drained,
            barriers: counts.barriers,
            refused_in_transit: counts.refused_in_transit,
            barrier: format!("{:?}", runtime.barrier()),
            audited: verdict.audited(),
            statistics: Statistics { exact, looks, agreement, flushes: runtime.counts().flushes },
            verify_ok: verdict.is_ok() && probed.is_ok(),
            met_budget: root.events().local().get(Event::Max),
            below_low: root.events().get(Event::Low),
            above_high: root.events().get(Event::High),
            wait_times: service.waits().times(),
            unmet: unmet(&root, &tenants),
            tenants,
            faults,
        };
        report.faults.extend(empty(setup, &mut report.statistics.agreement));
        report.faults.extend(report.statistics.agreement.faults());
        report
    }

    /// The growth of resident memory since before the first entry.
    pub(crate) fn rss_growth_bytes(&self) -> Option<u64> {
        Some(self.rss_bytes?.saturating_sub(self.rss_before_bytes?))
    }

    /// Checks the purpose of the main job, beyond a count that adds up.
    pub(crate) fn expect_main_job(&mut self) {
        if !self.unmet.is_empty() {
            self.faults.push(format!("not the main job, for these met no max: {}", self.unmet.join(", ")));
        }
        if let Some(growth) = self.rss_growth_bytes().filter(|growth| off(*growth, self.live_bytes) > RSS_OFF_MAX) {
            let (growth, live) = (Bytes(growth), Bytes(self.live_bytes));
            self.faults.push(format!("resident memory grew by {growth}, too far from the {live} that are charged"));
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a tree of numbers and texts has a JSON form")
    }
}

/// The distance of a number from the other, as a share of that.
fn off(found: u64, expected: u64) -> f64 {
    ratio(found.abs_diff(expected), expected)
}

/// Checks all that must hold when no thread charges any more.
fn check(root: &Group, service: &Service, rows: &[Row], sums: Sums) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |what: &str, group: &str, expected: u64, found: u64| {
        if expected != found {
            faults.push(format!("{group}, {what}: expected {expected}, found {found}"));
        }
    };
    for row in rows {
        expect("live beside the cache's own sum", &row.tenant, row.cache_bytes, row.live);
    }
    let bytes = rows.iter().map(|row| row.cache_bytes).sum();
    expect("live beside the caches' own sums", "the service", bytes, root.live());
    let events = root.events();
    let refused = sums.refused + service.refused_in_warm_up();
    expect("refused beside what the caches were told", "the service", refused, events.get(Event::Oom));
    let met = sums.met_max + root.events().local().get(Event::Max);
    expect("events beside those of its tenants and its own", "the service", met, events.get(Event::Max));
    for group in service.tenants.iter().map(|tenant| &tenant.group).chain([root]) {
        if group.peak() > group.max() {
            faults.push(format!("{}: the peak of {} is above the max of {}", group.path(), group.peak(), group.max()));
        }
    }
    faults
}

/// Ends a service that no tenant is served by any more; returns what does not add up.
pub(crate) fn close(mut setup: Setup) -> Vec<String> {
    let Setup { runtime, service, items, .. } = &setup;
    let rows = rows(service, *items);
    let root = runtime.root();
    let mut faults = check(&root, service, &rows, Sums::total(&rows));
    let mut agreement = Agreement::default();
    exact::check(&mut agreement, &rows, items.of(&root.read(Freshness::Exact)));
    faults.extend(runtime.verify().faults().iter().map(ToString::to_string));
    faults.extend(empty(&mut setup, &mut agreement));
    faults.extend(agreement.faults());
    faults
}

/// Empties the caches: every byte charged is uncharged then, and all credit goes back.
fn empty(setup: &mut Setup, agreement: &mut Agreement) -> Vec<String> {
    let mut faults = Vec::new();
    let asked = setup.unregister();
    if asked > 0 {
        faults.push(format!("{asked} groups are asked for room when no tenant is registered"));
    }
    let Setup { runtime, service, .. } = setup;
    for shelf in &service.shelves {
        // Its place among the shelves, and one for each tenant whose entries lie there.
        let users = if service.shelves.len() == 1 { service.tenants.len() } else { 1 };
        let held = Arc::strong_count(shelf);
        if held > 1 + users {
            faults.push(format!("a shelf with {users} users is held {held} times when no tenant is registered"));
        }
    }
    service.shelves.iter().for_each(|shelf| shelf.clear());
    runtime.settle();
    runtime.root().memory().drain();
    exact::check_empty(agreement, runtime, service);
    let usage = runtime.root().usage();
    if usage > 0 {
        faults.push(format!("{} are still charged when every cache is empty", Bytes(usage)));
    }
    faults
}

/// A tenant that has a max and did not meet it.
fn unmet(root: &Group, tenants: &[Row]) -> Vec<String> {
    let spared = tenants.iter().filter(|row| row.max.is_some() && row.sums.met_max == 0);
    let mut unmet: Vec<_> = spared.map(|row| row.tenant.clone()).collect();
    if root.events().local().get(Event::Max) == 0 {
        unmet.push("the service".to_string());
    }
    unmet
}

/// All tenants, with what their caches hold.
pub(crate) fn rows(service: &Service, items: Items) -> Vec<Row> {
    let tallies: Vec<_> = service.shelves.iter().map(|shelf| shelf.tally()).collect();
    let row = |(owner, tenant)| {
        let on_shelves = tallies.iter().map(|tally| tally[owner]);
        let all = on_shelves.fold(Tally::default(), |all, one: Tally| Tally {
            bytes: all.bytes + one.bytes,
            entries: all.entries + one.entries,
        });
        Row::of(tenant, &service.owners[owner], all, items)
    };
    service.tenants.iter().enumerate().map(row).collect()
}

impl Row {
    fn of(tenant: &Tenant, own: &Own, tally: Tally, items: Items) -> Self {
        let group = &tenant.group;
        let (max, cache) = (group.max(), &tenant.turn.lock().cache);
        Self {
            tenant: tenant.name.clone(),
            digest: format!("{:016x}", cache.figures.digest),
            sums: Sums::of(cache, own, tally, group.events().local().get(Event::Max)),
            live: group.live(),
            peak: group.peak(),
            max: (max != u64::MAX).then_some(max),
            fair_share: tenant.share,
            cache_bytes: tally.bytes,
            statistics: items.of(&group.read(Freshness::Exact)),
        }
    }
}

impl Sums {
    fn of(cache: &Cache, own: &Own, tally: Tally, met_max: u64) -> Self {
        let Cache { figures, waits, .. } = cache;
        let (evicted, evicted_for_others) = own.evictions();
        Self {
            requests: figures.requests,
            gets: figures.gets,
            hits: figures.hits,
            hit_ratio: ratio(figures.hits, figures.gets),
            met_max,
            refused: figures.refused,
            waited: waits.waited(),
            timed_out: waits.timed_out(),
            delayed: figures.delayed,
            delay_ms: figures.delay.as_millis() as u64,
            evicted,
            evicted_for_others,
            too_large: figures.too_large,
            passed_through: figures.passed_through,
            entries: tally.entries,
        }
    }

    pub(crate) fn total(rows: &[Row]) -> Self {
        let sum = |field: fn(&Self) -> u64| rows.iter().map(|row| field(&row.sums)).sum::<u64>();
        let (gets, hits) = (sum(|row| row.gets), sum(|row| row.hits));
        Self {
            requests: sum(|row| row.requests),
            gets,
            hits,
            hit_ratio: ratio(hits, gets),
            met_max: sum(|row| row.met_max),
            refused: sum(|row| row.refused),
            waited: sum(|row| row.waited),
            timed_out: sum(|row| row.timed_out),
            delayed: sum(|row| row.delayed),
            delay_ms: sum(|row| row.delay_ms),
            evicted: sum(|row| row.evicted),
            evicted_for_others: sum(|row| row.evicted_for_others),
            too_large: sum(|row| row.too_large),
            passed_through: sum(|row| row.passed_through),
            entries: sum(|row| row.entries),
        }
    }
}

/// A share of the whole, 0 of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
