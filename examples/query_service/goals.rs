//! What the service is to reach with groups.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Tenant;
use crate::outcome::{Outcome, Tally};
use crate::policy::Policy;
use crate::scene::{ALONE, HEAVY_ALONE, TOGETHER};

/// Times of ours by those of the peer.
const P99_MAX: f64 = 1.2;
const P99_PINNED_MAX: f64 = 1.5;
const ALONE_MAX: f64 = 1.1;

#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) text: String,
    pub(crate) is_met: bool,
    /// It compares times: a busy machine misses it.
    pub(crate) is_of_time: bool,
}

fn goal(is_met: bool, text: String) -> Goal {
    Goal { text, is_met, is_of_time: false }
}

fn of_time(ratio: f64, most: f64, what: &str) -> Goal {
    Goal { text: format!("{what}: {ratio:.2} times, at most {most}"), is_met: ratio <= most, is_of_time: true }
}

fn find(outcomes: &[Outcome], policy: Policy) -> Option<&Outcome> {
    outcomes.iter().find(|outcome| outcome.policy == policy.name())
}

pub(crate) fn of(outcomes: &[Outcome]) -> Vec<Goal> {
    let mut goals = vec![same_rows(outcomes)];
    let left = |outcome: &&Outcome| outcome.left_bytes > 0 || !outcome.faults.is_empty();
    let left: Vec<_> = outcomes.iter().filter(left).map(|outcome| outcome.policy.as_str()).collect();
    goals.push(goal(left.is_empty(), format!("all is given back at the end, and adds up{}", named(&left))));
    let Some(ours) = find(outcomes, Policy::Ours) else { return goals };
    let gold = |outcome: &Outcome, phase: usize| outcome.phases[phase].tenants[Tenant::Gold as usize].p99_ms;
    let (lost, done) = (ours.lost(Tenant::Gold), ours.done(Tenant::Gold));
    goals.push(goal(lost == 0 && done > 0, format!("gold: {lost} of {} queries fail", lost + done)));
    let (lost, done) = (ours.lost(Tenant::Heavy), ours.done(Tenant::Heavy));
    let spilled = ours.spilled_bytes() >> 20;
    goals
        .push(goal(lost == 0 && done > 0, format!("heavy: {lost} of {} fail, {spilled} MiB are spilled", lost + done)));
    let misnamed: u64 =
        Tenant::ALL.iter().flat_map(|&tenant| ours.tenant(tenant)).map(|tally: &Tally| tally.misnamed).sum();
    goals.push(goal(misnamed == 0, format!("{misnamed} refusals do not name the query's group")));
    let killed = ours.killed_in.as_ref().map(|phase| format!("killed in phase {phase:?}"));
    goals.push(goal(killed.is_none(), killed.unwrap_or_else(|| "the process is not killed".to_string())));
    if ours.pinned {
        let ratio = gold(ours, TOGETHER) / gold(ours, ALONE);
        goals.push(of_time(ratio, P99_PINNED_MAX, "gold's p99 beside the others, by that alone"));
    } else if let Some(unbounded) = find(outcomes, Policy::Unbounded) {
        let ratio = gold(ours, TOGETHER) / gold(unbounded, TOGETHER);
        goals.push(of_time(ratio, P99_MAX, "gold's p99 beside the others, by that with unlimited memory"));
    }
    if let Some(greedy) = find(outcomes, Policy::Greedy)
        && greedy.phases[HEAVY_ALONE].tenants[Tenant::Heavy as usize].lost() == 0
    {
        let ratio = ours.phases[HEAVY_ALONE].seconds / greedy.phases[HEAVY_ALONE].seconds;
        goals.push(of_time(ratio, ALONE_MAX, "heavy alone, by Greedy's time"));
    }
    goals
}

fn named(policies: &[&str]) -> String {
    if policies.is_empty() { String::new() } else { format!(": not {}", policies.join(", ")) }
}

/// Each query gives as many rows under all policies, whatever it spills.
fn same_rows(outcomes: &[Outcome]) -> Goal {
    let mut rows: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (query, &(least, most)) in outcomes.iter().flat_map(|outcome| &outcome.rows) {
        let seen = rows.entry(query).or_insert((least, most));
        *seen = (seen.0.min(least), seen.1.max(most));
    }
    let other: Vec<_> = rows.iter().filter(|(_, (least, most))| least != most).map(|(query, _)| *query).collect();
    goal(other.is_empty(), format!("each query that ends gives all its rows{}", named(&other)))
}
