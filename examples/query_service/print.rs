//! The outcomes as a table, as JSON and as a page.

use memcg::Bytes;
use memcg_report::chart::{Axis, Chart, Series, Unit};
use memcg_report::page::Page;
use memcg_report::table::{Cell, Column, Table};
use memcg_report::terminal::{self, State};
use serde::Serialize;

use crate::goals::Goal;
use crate::load::Tenant;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::scene::{ALONE, HEAVY_ALONE, PHASES, TOGETHER};

#[derive(Serialize)]
struct Report<'a> {
    goals: &'a [Goal],
    outcomes: &'a [Outcome],
}

pub(crate) fn json(outcomes: &[Outcome], goals: &[Goal]) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Report { goals, outcomes })
}

pub(crate) fn text(outcomes: &[Outcome], goals: &[Goal]) -> String {
    let columns = terminal::width(None);
    let mut lines: Vec<_> = verdicts(goals).map(|(line, state)| state.paint(&terminal::wrap(&line, columns))).collect();
    lines.extend([String::new(), table(outcomes).text(columns), String::new()]);
    lines.extend(foot(outcomes).into_iter().map(|line| terminal::wrap(&line, columns)));
    lines.join("\n")
}

pub(crate) fn page(outcomes: &[Outcome], goals: &[Goal]) -> String {
    let page = Page::new("Three tenants of a query service under one budget");
    let page = verdicts(goals).fold(page, |page, (line, state)| page.line(&line, state));
    let page = page.chart(&latencies(outcomes)).chart(&lost(outcomes)).table(&table(outcomes));
    let page = outcomes.iter().fold(page, |page, outcome| page.chart(&memory(outcome)));
    foot(outcomes).iter().fold(page, |page, line| page.line(line, State::Plain)).html()
}

fn verdicts(goals: &[Goal]) -> impl Iterator<Item = (String, State)> {
    goals.iter().map(|goal| {
        let (word, state) = match (goal.is_met, goal.is_of_time) {
            (true, _) => ("met:    ", State::Good),
            (false, true) => ("missed: ", State::Tense),
            (false, false) => ("FAILED: ", State::Bad),
        };
        (format!("  {word}{}", goal.text), state)
    })
}

pub(crate) fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new([
        Column::words("policy"),
        Column::figures("p50 ms").leaves(4),
        Column::figures("p99 ms"),
        Column::figures("alone ms").leaves(5),
        Column::figures("gold fails"),
        Column::figures("silver"),
        Column::figures("heavy"),
        Column::figures("heavy s"),
        Column::figures("spilled").leaves(2),
        Column::figures("reserved").leaves(3),
        Column::figures("resident").leaves(1),
    ]);
    for outcome in outcomes {
        let gold = |phase: usize| &outcome.phases[phase].tenants[Tenant::Gold as usize];
        let lost = |tenant| {
            let (lost, done) = (outcome.lost(tenant), outcome.done(tenant));
            Cell::new(format!("{lost}/{}", lost + done), if lost > 0 { State::Bad } else { State::Good })
        };
        // A process that was killed has no figures of the later phases.
        let time = |phase: usize, time: f64, digits: usize| match outcome.has_ended(phase) {
            true => Cell::from(format!("{time:.digits$}")),
            false => Cell::from("-"),
        };
        let reserved = outcome.phases.iter().map(|phase| phase.most_reserved_bytes).max().unwrap_or(0);
        let resident = mib(outcome.most_resident_bytes());
        table.add([
            Cell::from(outcome.policy.as_str()),
            time(TOGETHER, gold(TOGETHER).p50_ms, 0),
            time(TOGETHER, gold(TOGETHER).p99_ms, 0),
            time(ALONE, gold(ALONE).p99_ms, 0),
            lost(Tenant::Gold),
            lost(Tenant::Silver),
            lost(Tenant::Heavy),
            time(HEAVY_ALONE, outcome.phases[HEAVY_ALONE].seconds, 1),
            Cell::from(mib(outcome.spilled_bytes())),
            Cell::from(mib(reserved)),
            Cell::new(resident, if outcome.killed_in.is_some() { State::Bad } else { State::Good }),
        ]);
    }
    table
}

fn foot(outcomes: &[Outcome]) -> Vec<String> {
    let Some(any) = outcomes.first() else { return Vec::new() };
    let [memory, tables, kill] = [any.memory_bytes, any.table_bytes, any.kill_bytes].map(Bytes);
    let mut lines = vec![
        format!(
            "p50, p99: of gold beside silver and heavy; alone: gold's p99 alone. The tenants' columns: queries that \
                 fail, of all in five phases. heavy s: two clients of heavy alone, two queries each."
        ),
        format!(
            "The queries have {memory} together, beside tables of {tables}. spilled, reserved, resident in MiB; resident is \
                 beyond the tables."
        ),
    ];
    for outcome in outcomes {
        if let Some(phase) = &outcome.killed_in {
            let policy = &outcome.policy;
            lines.push(if outcome.is_in_container {
                format!("{policy}: the system kills the process in phase {phase:?}, beyond {kill}: exit code 137.")
            } else {
                format!(
                    "{policy}: resident passes {kill} in phase {phase:?}: a container's limit there would kill the process."
                )
            });
        }
        if outcome.policy == Policy::Split.name() {
            lines.push("split: each tenant has a third of the memory, also alone.".to_string());
        }
        if outcome.policy == Policy::Guard.name() {
            lines.push(
                "guard: Greedy, and the query that has run longest ends at nine tenths of the limit.".to_string(),
            );
        }
        if outcome.forced_bytes > 0 {
            let (policy, forced) = (&outcome.policy, Bytes(outcome.forced_bytes));
            lines.push(format!("{policy}: {forced} were charged above a max, by growths that cannot fail."));
        }
        for fault in &outcome.faults {
            lines.push(format!("{}: {fault}", outcome.policy));
        }
    }
    if !outcomes.iter().all(|outcome| outcome.is_lowered) {
        lines.push(
            "In the last phase the queries have a quarter less under ours; the other pools cannot be changed."
                .to_string(),
        );
    }
    lines
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

fn latencies(outcomes: &[Outcome]) -> Chart {
    let p99 = |phase: usize| {
        outcomes.iter().map(move |outcome| outcome.phases[phase].tenants[Tenant::Gold as usize].p99_ms * 1e6)
    };
    Chart::new("Gold: 99 of 100 queries take at most")
        .note("milliseconds from when the query was due; queries that fail are left out")
        .x(policies(outcomes))
        .y(Axis::new("").unit(Unit::Nanos).from(0.0))
        .with(Series::bars("alone", p99(ALONE)))
        .with(Series::bars("beside silver and heavy", p99(TOGETHER)))
}

fn lost(outcomes: &[Outcome]) -> Chart {
    let share = |tenant| {
        outcomes.iter().map(move |outcome| {
            let (lost, done) = (outcome.lost(tenant), outcome.done(tenant));
            100.0 * lost as f64 / (lost + done).max(1) as f64
        })
    };
    let chart = Chart::new("Queries that fail, of a hundred")
        .x(policies(outcomes))
        .y(Axis::new("").unit(Unit::Percent).from(0.0).to(100.0));
    Tenant::ALL.into_iter().fold(chart, |chart, tenant| chart.with(Series::bars(tenant.name(), share(tenant))))
}

fn policies(outcomes: &[Outcome]) -> Axis {
    Axis::new("").categories(outcomes.iter().map(|outcome| outcome.policy.clone()))
}

/// The reserved and the resident bytes over time.
fn memory(outcome: &Outcome) -> Chart {
    let xs: Vec<f64> = outcome.samples.iter().map(|sample| sample.at_seconds).collect();
    let layer =
        |tenant: usize| outcome.samples.iter().map(|sample| sample.reserved_bytes[tenant] as f64).collect::<Vec<_>>();
    let names = match outcome.policy.as_str() {
        name if name == Policy::Ours.name() || name == Policy::Split.name() => Tenant::ALL.map(Tenant::name),
        _ => ["all tenants", "", ""],
    };
    let layers = names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()).map(|(at, name)| (name, layer(at)));
    let resident = outcome.samples.iter().fold(Series::line("resident, beyond the tables"), |line, sample| {
        line.at(sample.at_seconds, sample.resident_bytes as f64)
    });
    let phases = PHASES.map(|(name, _)| name).join(", ");
    Chart::new(format!("{}: what the queries have reserved", outcome.policy))
        .note(format!("stacked by tenant where the policy knows them; phases: {phases}"))
        .x(Axis::new("").unit(Unit::Seconds).from(0.0))
        .y(Axis::new("").unit(Unit::Bytes))
        .stack(&xs, layers)
        .with(resident)
        .rule(format!("memory of the queries: {}", Bytes(outcome.memory_bytes)), outcome.memory_bytes as f64)
}
