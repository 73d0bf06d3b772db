//! What the run came to, for people and for programs, and whether the count adds up.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanCount;
use memcg::{Bytes, PageCounter};
use serde::Serialize;

use crate::replay::Tenant;

/// The whole report; sizes are bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    tenants: Vec<Row>,
    totals: Totals,
    /// One line for each count that does not add up.
    pub(crate) faults: Vec<String>,
}

/// One tenant.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    requests: u64,
    hits: u64,
    hit_ratio: f64,
    live: u64,
    peak: u64,
    refused: u64,
    evicted: u64,
    passed_through: u64,
}

/// All tenants together.
#[derive(Debug, Serialize)]
struct Totals {
    threads: usize,
    seconds: f64,
    requests: u64,
    hits: u64,
    hit_ratio: f64,
    requests_per_second: f64,
    budget: u64,
    usage: u64,
    live: u64,
    peak: u64,
    stocked: u64,
    refused: u64,
    evicted: u64,
    passed_through: u64,
    drains: u64,
    drained: u64,
    barriers: u64,
    refused_in_transit: u64,
    barrier: String,
    audited: bool,
    verify_ok: bool,
}

impl Report {
    /// Reads all counters, checks them, then empties the caches and checks that nothing is left.
    pub(crate) fn gather(root: &PageCounter, mut tenants: Vec<Tenant>, threads: usize, elapsed: Duration) -> Self {
        let verdict = root.verify();
        let mut faults = check(root, &tenants);
        faults.extend(verdict.faults().iter().map(ToString::to_string));
        let rows: Vec<_> = tenants.iter().map(Row::of).collect();
        let mut totals = Totals::of(root, &rows, threads, elapsed);
        totals.audited = verdict.audited();
        settle(root, &mut tenants, &mut faults);
        totals.verify_ok = verdict.is_ok() && faults.is_empty();
        Self { tenants: rows, totals, faults }
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a tree of numbers and texts has a JSON form")
    }

    /// For people: a row for each tenant, then the totals.
    pub(crate) fn table(&self) -> String {
        let header =
            ["tenant", "requests", "hits", "hit ratio", "live", "peak", "refused", "evicted", "passed through"];
        let mut tenants = Table::new();
        tenants.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
        for row in &self.tenants {
            tenants.add_row(row.cells());
        }
        let mut totals = Table::new();
        totals.load_style(presets::UTF8_FULL_CONDENSED).add_rows(self.totals.lines());
        for table in [&mut tenants, &mut totals] {
            table.column_iter_mut().skip(1).for_each(|column| {
                column.set_cell_alignment(CellAlignment::Right);
            });
        }
        format!("{tenants}\n{totals}")
    }
}

/// What must hold when no thread charges any more.
fn check(root: &PageCounter, tenants: &[Tenant]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |what: String, expected: u64, found: u64| {
        if expected != found {
            faults.push(format!("{what}: expected {expected}, found {found}"));
        }
    };
    for Tenant { name, cache, .. } in tenants {
        expect(format!("{name}, live beside the cache's bytes"), cache.bytes(), cache.counter().live());
    }
    let bytes = tenants.iter().map(|tenant| tenant.cache.bytes()).sum();
    expect("all tenants, live beside the caches' bytes".to_string(), bytes, root.live());
    expect("uncharges of too much".to_string(), 0, root.counts().underflows);
    if root.peak() > root.max() {
        faults.push(format!("the peak of {} is above the budget of {}", root.peak(), root.max()));
    }
    faults
}

/// Empties the caches: every byte charged is uncharged then, and all credit goes back.
fn settle(root: &PageCounter, tenants: &mut [Tenant], faults: &mut Vec<String>) {
    for tenant in tenants {
        tenant.cache.clear();
    }
    root.drain();
    if root.usage() > 0 {
        faults.push(format!("{} are still charged when every cache is empty", Bytes(root.usage())));
    }
}

impl Row {
    fn of(tenant: &Tenant) -> Self {
        let counter = tenant.cache.counter();
        let figures = tenant.cache.figures;
        Self {
            name: tenant.name.clone(),
            requests: figures.requests,
            hits: figures.hits,
            hit_ratio: ratio(figures.hits, figures.requests),
            live: counter.live(),
            peak: counter.peak(),
            refused: figures.refused,
            evicted: figures.evicted,
            passed_through: figures.passed_through,
        }
    }

    fn cells(&self) -> [String; 9] {
        [
            self.name.clone(),
            count(self.requests),
            count(self.hits),
            format!("{:.4}", self.hit_ratio),
            Bytes(self.live).to_string(),
            Bytes(self.peak).to_string(),
            count(self.refused),
            count(self.evicted),
            count(self.passed_through),
        ]
    }
}

impl Totals {
    fn of(root: &PageCounter, rows: &[Row], threads: usize, elapsed: Duration) -> Self {
        let sum = |field: fn(&Row) -> u64| rows.iter().map(field).sum::<u64>();
        let (requests, hits) = (sum(|row| row.requests), sum(|row| row.hits));
        let seconds = elapsed.as_secs_f64();
        let counts = root.counts();
        Self {
            threads,
            seconds,
            requests,
            hits,
            hit_ratio: ratio(hits, requests),
            // A run can be too short for the clock, and JSON knows no infinity.
            requests_per_second: requests as f64 / seconds.max(1e-9),
            budget: root.max(),
            usage: root.usage(),
            live: root.live(),
            peak: root.peak(),
            stocked: root.stocked(),
            refused: sum(|row| row.refused),
            evicted: sum(|row| row.evicted),
            passed_through: sum(|row| row.passed_through),
            drains: counts.drains,
            drained: counts.drained,
            barriers: counts.barriers,
            refused_in_transit: counts.refused_in_transit,
            barrier: format!("{:?}", root.barrier()),
            audited: false,
            verify_ok: false,
        }
    }

    fn lines(&self) -> Vec<[String; 2]> {
        let verify = match (self.verify_ok, self.audited) {
            (true, true) => "ok, audited",
            (true, false) => "ok, without audit",
            (false, _) => "FAULTS",
        };
        [
            ("threads", self.threads.to_string()),
            ("seconds", format!("{:.3}", self.seconds)),
            ("requests", count(self.requests)),
            ("requests/s", count(self.requests_per_second as u64)),
            ("hit ratio", format!("{:.4}", self.hit_ratio)),
            ("budget", Bytes(self.budget).to_string()),
            ("usage", Bytes(self.usage).to_string()),
            ("live", Bytes(self.live).to_string()),
            ("peak", Bytes(self.peak).to_string()),
            ("stocked", Bytes(self.stocked).to_string()),
            ("drains", format!("{}, {} units", count(self.drains), count(self.drained))),
            ("barriers", format!("{}, {}", count(self.barriers), self.barrier)),
            ("verify", verify.to_string()),
        ]
        .map(|(name, value)| [name.to_string(), value])
        .into()
    }
}

/// A share of the whole, 0 of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A number with separated thousands.
fn count(number: u64) -> String {
    HumanCount(number).to_string()
}
