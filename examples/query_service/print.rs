//! The outcomes as a table and as JSON.

use memcg::Bytes;
use memcg_report::table::{Cell, Column, Table};
use memcg_report::terminal::{self, State};
use serde::Serialize;

use crate::goals::Goal;
use crate::load::Tenant;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::scene::{ALONE, HEAVY_ALONE, TOGETHER};

#[derive(Serialize)]
struct Report<'a> {
    goals: &'a [Goal],
    outcomes: &'a [Outcome],
}

pub(crate) fn json(outcomes: &[Outcome], goals: &[Goal]) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Report { goals, outcomes })
}

pub(crate) fn text(outcomes: &[Outcome], goals: &[Goal]) -> String {
    let columns = terminal::width();
    let mut lines: Vec<_> = verdicts(goals)
        .map(|(line, state)| state.paint(&terminal::wrap(&line, columns)))
        .collect();
    lines.extend([String::new(), table(outcomes).text(columns), String::new()]);
    lines.extend(
        foot(outcomes)
            .into_iter()
            .map(|line| terminal::wrap(&line, columns)),
    );
    lines.join("\n")
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

fn table(outcomes: &[Outcome]) -> Table {
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
            let lost = outcome.lost(tenant);
            let done = outcome.done(tenant);
            Cell::new(
                format!("{lost}/{}", lost + done),
                if lost > 0 { State::Bad } else { State::Good },
            )
        };
        let time = |time: f64, digits: usize| Cell::from(format!("{time:.digits$}"));
        let reserved = outcome
            .phases
            .iter()
            .map(|phase| phase.most_reserved_bytes)
            .max()
            .unwrap_or(0);
        let resident = mib(outcome.most_resident_bytes());
        let state = if outcome.passes_in.is_some() {
            State::Bad
        } else {
            State::Good
        };
        table.add([
            Cell::from(outcome.policy.as_str()),
            time(gold(TOGETHER).p50_ms, 0),
            time(gold(TOGETHER).p99_ms, 0),
            time(gold(ALONE).p99_ms, 0),
            lost(Tenant::Gold),
            lost(Tenant::Silver),
            lost(Tenant::Heavy),
            time(outcome.phases[HEAVY_ALONE].seconds, 1),
            Cell::from(mib(outcome.spilled_bytes())),
            Cell::from(mib(reserved)),
            Cell::new(resident, state),
        ]);
    }
    table
}

fn foot(outcomes: &[Outcome]) -> Vec<String> {
    let Some(any) = outcomes.first() else {
        return Vec::new();
    };
    let [memory, tables, limit] = [any.memory_bytes, any.table_bytes, any.limit_bytes].map(Bytes);
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
        if let Some(phase) = &outcome.passes_in {
            let policy = &outcome.policy;
            lines.push(format!(
                "{policy}: resident passes {limit} in phase {phase:?}: a container's limit there would kill the process."
            ));
        }
        if outcome.policy == Policy::Split.name() {
            lines.push("split: each tenant has a third of the memory, also alone.".to_string());
        }
        if outcome.victims > 0 {
            lines.push(format!(
                "{}: {} queries were cancelled for others.",
                outcome.policy, outcome.victims
            ));
        }
        if outcome.forced_bytes > 0 {
            let policy = &outcome.policy;
            let forced = Bytes(outcome.forced_bytes);
            lines.push(format!(
                "{policy}: {forced} were charged above a max, by growths that cannot fail."
            ));
        }
        for fault in &outcome.faults {
            lines.push(format!("{}: {fault}", outcome.policy));
        }
    }
    if !outcomes.iter().all(|outcome| outcome.is_lowered) {
        lines.push(
            "In the last phase the queries have a quarter less in groups; the other pools cannot be changed."
                .to_string(),
        );
    }
    lines
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}
