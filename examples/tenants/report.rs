//! The figures of the run, and whether the count adds up.

use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::HumanCount;
use memcg::{Bytes, Event, Freshness, Group, StatKey};
use memcg_report::table::{Cell, Column, Table};
use memcg_report::terminal::{self, State};
use serde::Serialize;

use crate::args::{Args, Policy};
use crate::job::Seen;
use crate::memory;
use crate::setup::Setup;

/// Resident memory is this near to what is charged, as a share of that.
const RSS_OFF_MAX: f64 = 0.15;

/// Tenants in the report without `--all`.
const SHOWN: usize = 10;

/// The whole report; sizes are bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    policy: Policy,
    threads: usize,
    seconds: f64,
    budget_bytes: u64,
    live_bytes: u64,
    stocked_bytes: u64,
    usage_bytes: u64,
    peak_bytes: u64,
    /// Bytes that resident memory has grown by since before the first entry; `None` where the
    /// system does not say.
    rss_growth_bytes: Option<u64>,
    /// Looks at all limits, and the most that one saw above a max.
    samples: u64,
    max_excess_bytes: u64,
    /// Refusals while credit was under way.
    refused_in_transit: u64,
    /// Charges that did not fit into the budget at first, and tenants that were reclaimed below
    /// their low.
    met_budget: u64,
    below_low: u64,
    requests_per_second: f64,
    #[serde(flatten)]
    sums: Sums,
    tenants: Vec<Row>,
    /// One line for each count that does not add up.
    pub(crate) faults: Vec<String>,
}

/// One tenant.
#[derive(Debug, Serialize)]
struct Row {
    tenant: String,
    #[serde(flatten)]
    sums: Sums,
    live: u64,
    peak: u64,
    /// `None`: no max of its own.
    max: Option<u64>,
    fair_share: u64,
    /// Of the requests in their order, hexadecimal: JSON's numbers are too short.
    digest: String,
}

/// Figures that add up over the tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sums {
    requests: u64,
    gets: u64,
    hits: u64,
    /// Charges that did not fit below the tenant's own max at first, and those that did not fit
    /// after all.
    met_max: u64,
    refused: u64,
    too_large: u64,
    evicted: u64,
    /// Of those, entries that made room for others.
    evicted_for_others: u64,
}

impl Sums {
    fn add(self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            gets: self.gets + other.gets,
            hits: self.hits + other.hits,
            met_max: self.met_max + other.met_max,
            refused: self.refused + other.refused,
            too_large: self.too_large + other.too_large,
            evicted: self.evicted + other.evicted,
            evicted_for_others: self.evicted_for_others + other.evicted_for_others,
        }
    }
}

impl Report {
    /// Reads all counters, checks them, then empties the caches and checks that nothing is left.
    pub(crate) fn gather(
        args: &Args,
        setup: &mut Setup,
        time: Duration,
        seen: &Seen,
        before: Option<u64>,
    ) -> Self {
        let growth = memory::resident()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        let root = setup.runtime.root();
        let counts = setup.runtime.counts();
        let tenants = rows(setup);
        let sums = tenants
            .iter()
            .fold(Sums::default(), |all, row| all.add(&row.sums));
        let mut report = Self {
            policy: args.policy,
            threads: args.threads().min(tenants.len()),
            seconds: time.as_secs_f64(),
            budget_bytes: root.max(),
            live_bytes: root.live(),
            stocked_bytes: root.memory().stocked(),
            usage_bytes: root.usage(),
            peak_bytes: root.peak(),
            rss_growth_bytes: growth,
            samples: seen.looks,
            max_excess_bytes: seen.excess,
            refused_in_transit: counts.refused_in_transit,
            met_budget: root.events().local().get(Event::Max),
            below_low: root.events().get(Event::Low),
            // A run can be too short for the clock, and JSON knows no infinity.
            requests_per_second: sums.requests as f64 / time.as_secs_f64().max(1e-9),
            sums,
            tenants,
            faults: close(setup),
        };
        if seen.excess > 0 {
            report
                .faults
                .push(format!("a sample saw {} above a max", Bytes(seen.excess)));
        }
        if args.is_main_job() {
            report.expect_main_job();
        }
        report
    }

    /// The main job shows this, beyond a count that adds up.
    fn expect_main_job(&mut self) {
        let spared = self
            .tenants
            .iter()
            .filter(|row| row.max.is_some() && row.sums.met_max == 0);
        let spared: Vec<&str> = spared.map(|row| &*row.tenant).collect();
        if !spared.is_empty() || self.met_budget == 0 {
            self.faults.push(format!(
                "not the main job: {} charges met the budget, and no max of {spared:?} was met",
                self.met_budget
            ));
        }
        let off =
            |growth: u64| growth.abs_diff(self.live_bytes) as f64 / self.live_bytes.max(1) as f64;
        if let Some(growth) = self
            .rss_growth_bytes
            .filter(|&growth| off(growth) > RSS_OFF_MAX)
        {
            let growth = Bytes(growth);
            let live = Bytes(self.live_bytes);
            self.faults.push(format!(
                "resident memory grew by {growth}, too far from the {live} that are charged"
            ));
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a tree of numbers and texts has a JSON form")
    }

    /// The verdict, then the tenants that hold most.
    pub(crate) fn text(&self, all: bool) -> String {
        let columns = terminal::width();
        let paint = |(line, state): (String, State)| state.paint(&terminal::wrap(&line, columns));
        let verdict: Vec<String> = self.verdict().into_iter().map(paint).collect();
        let shown = if all { self.tenants.len() } else { SHOWN };
        let more = match self.tenants.len().saturating_sub(shown) {
            0 => String::new(),
            more => format!("\nand {more} tenants that hold less (--all)"),
        };
        format!(
            "{}\n\n{}{more}",
            verdict.join("\n"),
            self.table(shown).text(columns)
        )
    }

    /// The verdict on limits and counts, and the figures of the service.
    fn verdict(&self) -> Vec<(String, State)> {
        let false_refusals = match self.refused_in_transit {
            0 => "no false refusal".to_owned(),
            1 => "1 refusal beside credit under way".into(),
            refused => format!("{} refusals beside credit under way", HumanCount(refused)),
        };
        let groups = self.tenants.len() + 1;
        let samples = HumanCount(self.samples);
        let held = match self.faults.len() {
            0 => (
                format!(
                    "ok: {groups} groups held their limits ({samples} samples); {false_refusals}; sums add up."
                ),
                State::Good,
            ),
            faults => (
                format!("FAULTS: {faults} checks failed, a line each on stderr."),
                State::Bad,
            ),
        };
        let mut refused: Vec<&Row> = self
            .tenants
            .iter()
            .filter(|row| row.sums.refused > 0)
            .collect();
        refused.sort_by_key(|row| std::cmp::Reverse(row.sums.refused));
        let named = refused
            .iter()
            .take(3)
            .map(|row| format!("{} ({})", row.tenant, HumanCount(row.sums.refused)));
        let (refused, state) = match refused.len() {
            0 => ("no tenant was refused".to_owned(), State::Plain),
            _ => (
                format!("refused: {}", named.collect::<Vec<_>>().join(", ")),
                State::Tense,
            ),
        };
        let ratio = percent(self.sums.hits, self.sums.gets);
        let rate = HumanCount(self.requests_per_second as u64);
        let resident = self.rss_growth_bytes.map_or(String::new(), |growth| {
            format!(", resident for it {}", Bytes(growth))
        });
        vec![
            held,
            (
                format!("Hit ratio {ratio:.2} %, {rate} requests/s; {refused}."),
                state,
            ),
            (
                format!(
                    "Charged {} of {}{resident}.",
                    Bytes(self.live_bytes),
                    Bytes(self.budget_bytes)
                ),
                State::Plain,
            ),
        ]
    }

    /// The tenants that hold most, those that hold more before.
    fn table(&self, shown: usize) -> Table {
        let mut table = Table::new([
            Column::words("tenant"),
            Column::figures("hit ratio"),
            Column::figures("cached"),
            Column::figures("max"),
            Column::figures("met max").leaves(2),
            Column::figures("evicted").leaves(3),
            Column::figures("for others").leaves(5),
            Column::figures("refused").leaves(1),
            Column::figures("requests").leaves(4),
            Column::words("state"),
        ]);
        let mut rows: Vec<_> = self.tenants.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.live));
        rows.into_iter()
            .take(shown)
            .for_each(|row| table.add(row.cells()));
        table
    }
}

impl Row {
    fn cells(&self) -> [Cell; 10] {
        let count = |number: u64| Cell::from(HumanCount(number).to_string());
        let Sums {
            requests,
            gets,
            hits,
            met_max,
            refused,
            evicted,
            evicted_for_others,
            ..
        } = self.sums;
        // The worst that happened to the tenant.
        let state = match (refused, met_max) {
            (1.., _) => Cell::new("refused", State::Bad),
            (_, 1..) => Cell::new("at max", State::Tense),
            _ => Cell::new("ok", State::Good),
        };
        [
            Cell::from(&*self.tenant),
            Cell::from(if gets == 0 {
                "-".to_string()
            } else {
                format!("{:.4}", hits as f64 / gets as f64)
            }),
            Cell::from(Bytes(self.live).to_string()),
            Cell::from(
                self.max
                    .map_or_else(|| "max".to_string(), |max| Bytes(max).to_string()),
            ),
            count(met_max),
            count(evicted),
            count(evicted_for_others),
            count(refused),
            count(requests),
            state,
        ]
    }
}

fn rows(setup: &Setup) -> Vec<Row> {
    let row = |(number, tenant): (usize, &crate::service::Tenant)| {
        let figures = tenant.turn.lock().cache.figures;
        let evictions = &setup.service.evictions[number];
        let max = tenant.group.max();
        Row {
            tenant: tenant.name.clone(),
            sums: Sums {
                requests: figures.requests,
                gets: figures.gets,
                hits: figures.hits,
                met_max: tenant.group.events().local().get(Event::Max),
                refused: figures.refused,
                too_large: figures.too_large,
                evicted: evictions.all.load(Ordering::Relaxed),
                evicted_for_others: evictions.for_others.load(Ordering::Relaxed),
            },
            live: tenant.group.live(),
            peak: tenant.group.peak(),
            max: (max != u64::MAX).then_some(max),
            fair_share: tenant.share,
            digest: format!("{:016x}", figures.digest),
        }
    };
    setup.service.tenants.iter().enumerate().map(row).collect()
}

/// Checks what must hold when no thread charges any more; empties the caches.
pub(crate) fn close(setup: &mut Setup) -> Vec<String> {
    let root = setup.runtime.root();
    let rows = rows(setup);
    let mut faults: Vec<String> = setup
        .runtime
        .verify()
        .faults()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut expect = |group: &str, what: &str, expected: u64, found: u64| {
        if expected != found {
            faults.push(format!(
                "{group}, {what}: expected {expected}, found {found}"
            ));
        }
    };
    let items = setup.items;
    let mut cached = vec![0; rows.len()];
    for tallies in setup.service.shelves.iter().map(|shelf| shelf.tally()) {
        cached
            .iter_mut()
            .zip(tallies)
            .for_each(|(sum, bytes)| *sum += bytes);
    }
    let mut all = [0; 4];
    for ((row, tenant), cached) in rows.iter().zip(&setup.service.tenants).zip(cached) {
        expect(
            &row.tenant,
            "live beside the cache's own sum",
            cached,
            row.live,
        );
        let own = [cached, row.sums.gets, row.sums.hits, row.sums.evicted];
        let figures = statistics(
            &tenant.group,
            [StatKey::FILE, items.gets, items.hits, items.evictions],
        );
        for ((name, own), found) in ["bytes", "gets", "hits", "evictions"]
            .into_iter()
            .zip(own)
            .zip(figures)
        {
            expect(&row.tenant, name, own, found);
        }
        all = std::array::from_fn(|at| all[at] + own[at]);
        if row.peak > row.max.unwrap_or(u64::MAX) {
            expect(
                &row.tenant,
                "peak above max",
                row.max.unwrap_or(u64::MAX),
                row.peak,
            );
        }
    }
    let figures = statistics(
        &root,
        [StatKey::FILE, items.gets, items.hits, items.evictions],
    );
    figures
        .into_iter()
        .zip(all)
        .for_each(|(found, sum)| expect("the service", "a sum of statistics", sum, found));
    let refused = setup
        .service
        .sum(|cache| cache.figures.refused + cache.refused_in_warm_up);
    expect(
        "the service",
        "refused beside what the caches were told",
        refused,
        root.events().get(Event::Oom),
    );
    setup.unregister();
    setup.service.shelves.iter().for_each(|shelf| shelf.clear());
    setup.runtime.settle();
    root.memory().drain();
    expect(
        "the service",
        "usage when every cache is empty",
        0,
        root.usage(),
    );
    expect(
        "the service",
        "bytes when every cache is empty",
        0,
        statistics(&root, [StatKey::FILE])[0],
    );
    faults
}

fn statistics<const N: usize>(group: &Group, items: [StatKey; N]) -> [u64; N] {
    let exact = group.read(Freshness::Exact);
    items.map(|item| exact.get(item).cast_unsigned())
}

/// A part of the whole, 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64 * 100.0
    }
}
