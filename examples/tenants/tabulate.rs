//! The result of a comparison: a row for each policy, and the verdict on the goals.

use std::time::Duration;

use memcg::Bytes;
use memcg_report::chart::{Axis, Chart, Series, Unit};
use memcg_report::page::Page;
use memcg_report::table::{Column, Table};
use memcg_report::terminal::{self, State};
use serde::Serialize;

use crate::args::Args;
use crate::clusters::{WITHOUT_FIGURES, name};
use crate::compare::{Counted, Outcome, REPEATS};
use crate::policy::{Policy, Promise};
use crate::print;
use crate::report::ratio;
use crate::scene::Scene;
use crate::waits::{WaitTimes, Waits};

/// Points of hit ratio that a tenant may lose to others under memcg.
const LOST_MAX: f64 = 2.0;

/// Points that tenants of one shared LRU lose at least, for the load to show anything.
const SHARED_LOST_MIN: f64 = 10.0;

/// Of the budget, in percent, what a tenant that is alone can use.
const USED_MIN: f64 = 95.0;

/// The settings of the comparison; sizes are bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    threads: usize,
    budget_bytes: u64,
    batch_bytes: u64,
    #[serde(flatten)]
    promise: Promise,
    seed: u64,
    repeats: u64,
    /// Of each run, all tenants together.
    requests: u64,
    scale: Option<f64>,
    left_out: Vec<String>,
    /// The tenants that do not flood, then those that do.
    tenants: Vec<String>,
    noisy: u16,
    /// The bytes of all entries of the former, and the bytes promised to them.
    working_sets_bytes: u64,
    low_bytes: u64,
}

/// The whole comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    #[serde(flatten)]
    setting: Setting,
    /// Alone, then under each policy.
    rows: Vec<Row>,
    goals: Vec<Goal>,
    /// One line for each count that does not add up.
    pub(crate) faults: Vec<String>,
}

/// One line of the table: ratios in percent, differences in points, a figure for each repeat.
#[derive(Debug, Serialize)]
struct Row {
    how: String,
    hit_ratio: Spread,
    lost: Spread,
    lost_by_worst: Spread,
    /// The tenant that lost most in any repeat.
    worst: String,
    noisy_hit_ratio: Spread,
    used_alone: Spread,
    /// Requests that waited for room, of them those in vain, and how long.
    waited: Spread,
    timed_out: Spread,
    wait_p50_us: Spread,
    wait_p99_us: Spread,
    peak_bytes: u64,
}

/// The repeats' figures: in the order of their size.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
struct Spread(Vec<f64>);

/// A goal, and the repeat that is furthest from it.
#[derive(Debug, Serialize)]
struct Goal {
    goal: String,
    found: f64,
    reached: bool,
}

impl Setting {
    pub(crate) fn of(args: &Args, scene: &Scene) -> Self {
        let calm: Vec<_> = scene.candidates.iter().filter(|candidate| !candidate.is_noisy()).collect();
        let demands: Vec<_> = calm.iter().map(|candidate| candidate.demand.min(scene.budget)).collect();
        let promised = scene.fair_shares(&demands).into_iter().take(calm.len());
        Self {
            threads: args.threads().min(scene.candidates.len()),
            budget_bytes: scene.budget,
            batch_bytes: args.batch().as_u64(),
            promise: args.promise(),
            seed: args.seed,
            repeats: REPEATS,
            requests: args.requests_compared(),
            scale: scene.plan.as_ref().map(|plan| plan.scale),
            left_out: if scene.plan.is_some() { WITHOUT_FIGURES.map(name).to_vec() } else { Vec::new() },
            tenants: calm.iter().map(|candidate| candidate.name.clone()).collect(),
            noisy: args.noisy(),
            working_sets_bytes: calm.iter().map(|candidate| candidate.working_set).sum(),
            low_bytes: promised.map(|share| args.promise().low.of(share)).sum(),
        }
    }
}

impl Comparison {
    pub(crate) fn new(setting: Setting) -> Self {
        let row = |how: String| Row {
            how,
            hit_ratio: Spread::default(),
            lost: Spread::default(),
            lost_by_worst: Spread::default(),
            worst: String::new(),
            noisy_hit_ratio: Spread::default(),
            used_alone: Spread::default(),
            waited: Spread::default(),
            timed_out: Spread::default(),
            wait_p50_us: Spread::default(),
            wait_p99_us: Spread::default(),
            peak_bytes: 0,
        };
        let rows = ["alone".to_string()].into_iter().chain(Policy::ALL.map(|policy| policy.to_string()));
        Self { setting, rows: rows.map(row).collect(), goals: Vec::new(), faults: Vec::new() }
    }

    /// Takes in a repeat: each tenant alone, then all under each policy.
    pub(crate) fn add(&mut self, alone: &[Counted], outcomes: &[Outcome]) {
        let all = total(alone);
        self.rows[0].hit_ratio.add(all);
        for (row, outcome) in self.rows[1..].iter_mut().zip(outcomes) {
            let (calm, noisy) = outcome.tenants.split_at(alone.len());
            row.hit_ratio.add(total(calm));
            row.lost.add(all - total(calm));
            let lost = alone.iter().zip(calm).map(|(alone, together)| alone.percent() - together.percent());
            let worst = lost.enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
            let (worst, lost) = worst.unwrap_or_default();
            if row.lost_by_worst.last() < Some(lost) {
                row.worst.clone_from(&self.setting.tenants[worst]);
            }
            row.lost_by_worst.add(lost);
            row.noisy_hit_ratio.add(total(noisy));
            row.used_alone.add(outcome.used_alone * 100.0);
            row.add_waits(&outcome.waits);
            row.peak_bytes = row.peak_bytes.max(outcome.peak);
        }
        self.goals = self.goals();
    }

    fn goals(&self) -> Vec<Goal> {
        let row = |policy: Policy| &self.rows[1..][policy as usize];
        let lost = row(Policy::Memcg).lost_by_worst.last().unwrap_or(f64::INFINITY);
        let shared = row(Policy::Shared).lost.first().unwrap_or(0.0);
        let used = row(Policy::Memcg).used_alone.first().unwrap_or(0.0);
        let goal = |goal, found, reached| Goal { goal, found, reached };
        vec![
            goal(format!("memcg: no tenant loses more than {LOST_MAX} points"), lost, lost <= LOST_MAX),
            goal(
                format!("shared: all together lose {SHARED_LOST_MIN} points or more"),
                shared,
                shared >= SHARED_LOST_MIN,
            ),
            goal(format!("memcg: one alone uses {USED_MIN} % of the budget or more"), used, used >= USED_MIN),
        ]
    }

    /// For people: the verdict first.
    pub(crate) fn text(&self, columns: usize) -> String {
        let verdicts: Vec<_> =
            self.verdicts().map(|(line, state)| state.paint(&terminal::wrap(&line, columns))).collect();
        let [head, foot] = [self.head(), self.foot()].map(|words| terminal::wrap(&words, columns));
        format!("{}\n\n{}\n\n{foot}\n\n{head}", verdicts.join("\n"), self.rows().text(columns))
    }

    /// A line for each goal.
    fn verdicts(&self) -> impl Iterator<Item = (String, State)> {
        self.goals.iter().map(|Goal { goal, found, reached }| match reached {
            true => (format!("{goal}: {found:.2}, ok"), State::Good),
            false => (format!("{goal}: {found:.2}, missed"), State::Bad),
        })
    }

    /// A row for each policy.
    pub(crate) fn rows(&self) -> Table {
        let mut table = Table::new([
            Column::words("policy"),
            Column::figures("hit ratio, %"),
            Column::figures("points lost"),
            Column::figures("by the worst"),
            Column::figures("one alone, %").leaves(1),
            Column::figures("noisy hits, %").leaves(4),
            Column::figures("waited: p50, p99").leaves(3),
            Column::figures("peak").leaves(2),
        ]);
        self.rows.iter().for_each(|row| table.add(row.cells()));
        table
    }

    /// A row for each policy and repeat, for programs; the repeats of a figure are in the order of their size.
    pub(crate) fn csv(&self) -> String {
        let heads = ["policy", "rank", "hit_ratio", "lost", "lost_by_worst", "used_alone", "waited", "peak_bytes"];
        let mut table = Table::new(heads.map(Column::words));
        for row in &self.rows {
            for rank in 0..row.hit_ratio.0.len() {
                let figure = |spread: &Spread| spread.0.get(rank).map_or_else(String::new, f64::to_string);
                table.add([
                    row.how.clone(),
                    rank.to_string(),
                    figure(&row.hit_ratio),
                    figure(&row.lost),
                    figure(&row.lost_by_worst),
                    figure(&row.used_alone),
                    figure(&row.waited),
                    row.peak_bytes.to_string(),
                ]);
            }
        }
        table.csv()
    }

    /// The policies side by side.
    pub(crate) fn chart(&self) -> Chart {
        let bars = |name: &str, figure: fn(&Row) -> f64, range: fn(&Row) -> Option<(f64, f64)>| {
            self.rows.iter().enumerate().fold(Series::bars(name, []), |bars, (at, row)| {
                let bars = bars.at(at as f64, figure(row));
                range(row).map_or(bars.clone(), |(least, most)| bars.ranging(least, most))
            })
        };
        let most = |row: &Row| 100.0 - row.lost_by_worst.median().unwrap_or(0.0);
        let axis = Axis::new("").unit(Unit::Percent).from(0.0).to(100.0);
        Chart::new("Hit ratio by policy, beside tenants that flood")
            .note(format!("median of {} seeds, lines from the least to the most", self.setting.repeats))
            .x(Axis::new("").categories(self.rows.iter().map(|row| row.how.clone())))
            .y(axis)
            .with(bars("all tenants", |row| row.hit_ratio.median().unwrap_or(0.0), |row| row.hit_ratio.range()))
            .with(bars("the tenant that loses most, of 100 % alone", most, |_| None))
    }

    /// The part that one tenant alone can use.
    fn alone(&self) -> Chart {
        let rows = &self.rows[1..];
        Chart::new("Of the budget, what one tenant alone can use")
            .x(Axis::new("").categories(rows.iter().map(|row| row.how.clone())))
            .y(Axis::new("").unit(Unit::Percent).from(0.0).to(100.0))
            .with(Series::bars("one alone", rows.iter().map(|row| row.used_alone.median().unwrap_or(0.0))))
    }

    /// A page of its own.
    pub(crate) fn page(&self) -> String {
        let page =
            self.verdicts().fold(Page::new("Policies side by side"), |page, (line, state)| page.line(&line, state));
        let page = page.chart(&self.chart()).chart(&self.alone()).table(&self.rows());
        let words = format!("{}\n{}", self.foot(), self.head());
        words.lines().fold(page, |page, line| page.line(line, State::Plain)).html()
    }

    fn head(&self) -> String {
        let Setting { budget_bytes, working_sets_bytes, low_bytes, requests, noisy, .. } = self.setting;
        let part = |bytes| ratio(bytes, budget_bytes) * 100.0;
        let clusters = match self.setting.scale {
            Some(scale) => {
                format!("{}\nWorking sets scaled by {scale:.6}.\n", print::source(&self.setting.left_out))
            }
            None => String::new(),
        };
        format!(
            "{clusters}Tenants: {}, whose entries take {}, {:.0} % of the budget of {}. Tenants that flood: \
             {noisy}.\nUnder memcg {:.0} % are protected by low limits ({} of the fair shares); soft limits at {}.\n\
             Each run: caches filled, {} requests, of which the first quarter does not count. {} repeats: median, \
             and least to most.\n",
            self.setting.tenants.len(),
            Bytes(working_sets_bytes),
            part(working_sets_bytes),
            Bytes(budget_bytes),
            part(low_bytes),
            self.setting.promise.low,
            self.setting.promise.soft,
            print::count(requests),
            self.setting.repeats,
        )
    }

    fn foot(&self) -> String {
        let worst = self.rows.iter().filter(|row| !row.worst.is_empty());
        let worst: Vec<_> = worst.map(|row| format!("{} under {}", row.worst, row.how)).collect();
        format!(
            "Alone: each tenant by itself in the whole budget, the same requests; points are lost against that, in \
             percent of the look-ups.\nThe worst: {}. One alone: live bytes of a tenant that floods, all others \
             idle.",
            worst.join(", "),
        )
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a tree of numbers and texts has a JSON form")
    }
}

impl Row {
    fn add_waits(&mut self, waits: &Waits) {
        self.waited.add(waits.waited() as f64);
        self.timed_out.add(waits.timed_out() as f64);
        if let Some(WaitTimes { p50_us, p99_us, .. }) = waits.times() {
            self.wait_p50_us.add(p50_us);
            self.wait_p99_us.add(p99_us);
        }
    }

    /// Medians: how many, and the time that half of them and all but a hundredth waited at most.
    fn waits(&self) -> String {
        let (Some(p50), Some(p99)) = (self.wait_p50_us.median(), self.wait_p99_us.median()) else {
            return "-".to_string();
        };
        let [waited, timed_out] = [&self.waited, &self.timed_out].map(|spread| spread.median().unwrap_or(0.0) as u64);
        let [p50, p99] = [p50, p99].map(|us| Duration::from_secs_f64(us / 1e6));
        let in_vain = if timed_out > 0 { format!(", {} in vain", print::count(timed_out)) } else { String::new() };
        format!("{}{in_vain}\n{p50:.1?}, {p99:.1?}", print::count(waited))
    }

    fn cells(&self) -> [String; 8] {
        [
            self.how.clone(),
            self.hit_ratio.cell(),
            self.lost.cell(),
            self.lost_by_worst.cell(),
            self.used_alone.cell(),
            self.noisy_hit_ratio.cell(),
            self.waits(),
            if self.peak_bytes == 0 { "-".to_string() } else { Bytes(self.peak_bytes).to_string() },
        ]
    }
}

impl Spread {
    fn add(&mut self, figure: f64) {
        let at = self.0.partition_point(|&other| other <= figure);
        self.0.insert(at, figure);
    }

    fn first(&self) -> Option<f64> {
        self.0.first().copied()
    }

    fn median(&self) -> Option<f64> {
        self.0.get(self.0.len() / 2).copied()
    }

    fn last(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// The least and the most.
    fn range(&self) -> Option<(f64, f64)> {
        self.first().zip(self.last())
    }

    /// The median, the least and the most.
    fn cell(&self) -> String {
        match (self.first(), self.median(), self.last()) {
            (Some(least), Some(median), Some(most)) => format!("{median:.2}\n{least:.2} to {most:.2}"),
            _ => "-".to_string(),
        }
    }
}

impl Counted {
    /// Hits among the look-ups.
    fn percent(&self) -> f64 {
        ratio(self.hits, self.gets) * 100.0
    }
}

/// Of all these tenants' look-ups those that hit, in percent.
fn total(tenants: &[Counted]) -> f64 {
    let sum = |figure: fn(&Counted) -> u64| tenants.iter().map(figure).sum();
    ratio(sum(|one| one.hits), sum(|one| one.gets)) * 100.0
}
