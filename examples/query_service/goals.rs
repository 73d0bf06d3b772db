//! The goals that the service is to reach with groups.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Tenant;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::scene::{ALONE, HEAVY_ALONE, LOWERED, TOGETHER};

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
    Goal {
        text,
        is_met,
        is_of_time: false,
    }
}

fn find(outcomes: &[Outcome], policy: Policy) -> Option<&Outcome> {
    outcomes
        .iter()
        .find(|outcome| outcome.policy == policy.name())
}

/// Judges the rounds of all policies.
pub(crate) fn of(rounds: &[Vec<Outcome>]) -> Vec<Goal> {
    let all: Vec<_> = rounds.iter().flatten().collect();
    let mut goals = vec![same_rows(&all)];
    let left = |outcome: &&&Outcome| outcome.left_bytes > 0 || !outcome.faults.is_empty();
    let left: Vec<_> = all
        .iter()
        .filter(left)
        .map(|outcome| outcome.policy.as_str())
        .collect();
    goals.push(goal(
        left.is_empty(),
        format!("all is given back at the end, and adds up{}", named(&left)),
    ));
    for policy in [Policy::Ours, Policy::Ranked] {
        let outcomes: Vec<_> = rounds
            .iter()
            .filter_map(|round| find(round, policy))
            .collect();
        if !outcomes.is_empty() {
            let named = |goal: Goal| Goal {
                text: format!("{}: {}", policy.name(), goal.text),
                ..goal
            };
            goals.extend(of_groups(policy, &outcomes).into_iter().map(named));
        }
    }
    goals.extend(of_times(rounds));
    goals
}

/// Judges the rounds of a policy that is one of groups.
fn of_groups(policy: Policy, ours: &[&Outcome]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let ends = |tenant| {
        let lost = sum(ours, |outcome| outcome.lost(tenant));
        let done = sum(ours, |outcome| outcome.done(tenant));
        (
            lost == 0 && done > 0,
            format!("{}: {lost} of {} queries fail", tenant.name(), lost + done),
        )
    };
    let (is_met, text) = ends(Tenant::Gold);
    goals.push(goal(is_met, text));
    let (is_met, text) = ends(Tenant::Heavy);
    let spilled = sum(ours, |outcome| {
        outcome
            .tenant(Tenant::Heavy)
            .map(|tally| tally.spilled_bytes)
            .sum()
    });
    goals.push(goal(
        is_met && spilled > 0,
        format!("{text}, and spill {} MiB", spilled >> 20),
    ));
    let misnamed = |outcome: &Outcome| {
        Tenant::ALL
            .iter()
            .flat_map(|&tenant| outcome.tenant(tenant))
            .map(|tally| tally.misnamed)
            .sum()
    };
    let misnamed = sum(ours, misnamed);
    goals.push(goal(
        misnamed == 0,
        format!("{misnamed} refusals do not name the query's group"),
    ));
    let passes = ours.iter().find_map(|outcome| outcome.passes_in.as_ref());
    let phase = passes.map_or(String::new(), |phase| format!(": not in phase {phase:?}"));
    goals.push(goal(
        passes.is_none(),
        format!("resident memory stays within a container's limit{phase}"),
    ));
    if policy == Policy::Ranked {
        let victims = sum(ours, |outcome| outcome.victims);
        let lost = |outcome: &Outcome| outcome.lost(Tenant::Gold) + outcome.lost(Tenant::Silver);
        let in_vain = victims.min(sum(ours, lost));
        goals.push(goal(
            in_vain == 0,
            format!("{victims} queries are cancelled for others, {in_vain} of them in vain"),
        ));
        let stood = |phase: usize| {
            ours.iter()
                .map(|outcome| outcome.phases[phase].stood_still_ms[Tenant::Gold as usize])
                .fold(0.0, f64::max)
        };
        let beside = stood(TOGETHER).max(stood(LOWERED));
        let alone = stood(ALONE);
        let text = format!(
            "gold stands still for memory for {beside:.0} ms of a phase, alone for {alone:.0} ms"
        );
        goals.push(Goal {
            text,
            is_met: beside <= alone,
            is_of_time: true,
        });
    }
    goals
}

fn sum(outcomes: &[&Outcome], figure: impl Fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(|outcome| figure(outcome)).sum()
}

fn of_times(rounds: &[Vec<Outcome>]) -> impl Iterator<Item = Goal> {
    let beside = ratio(
        rounds,
        P99_MAX,
        "gold's p99 beside the others, by that with unlimited memory",
        |round| {
            Some((
                gold(find(round, Policy::Ours)?, TOGETHER)?,
                gold(find(round, Policy::Unbounded)?, TOGETHER)?,
            ))
        },
    );
    let pinned = ratio(
        rounds,
        P99_PINNED_MAX,
        "gold's p99 beside the others, by that alone",
        |round| {
            let ours = find(round, Policy::Ours).filter(|outcome| outcome.pinned)?;
            Some((gold(ours, TOGETHER)?, gold(ours, ALONE)?))
        },
    );
    let alone = ratio(
        rounds,
        ALONE_MAX,
        "heavy alone, by Greedy's time",
        |round| {
            Some((
                heavy_alone(find(round, Policy::Ours)?)?,
                heavy_alone(find(round, Policy::Greedy)?)?,
            ))
        },
    );
    [beside, pinned, alone].into_iter().flatten()
}

/// The median of the rounds' ratios, where a round has both times.
fn ratio(
    rounds: &[Vec<Outcome>],
    most: f64,
    what: &str,
    times: impl Fn(&[Outcome]) -> Option<(f64, f64)>,
) -> Option<Goal> {
    let mut ratios: Vec<f64> = rounds
        .iter()
        .filter_map(|round| times(round))
        .map(|(own, other)| own / other)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let &first = ratios.first()?;
    let &last = ratios.last()?;
    let &middle = ratios.get(ratios.len() / 2)?;
    let spread = if ratios.len() > 1 {
        format!(" ({first:.2} to {last:.2})")
    } else {
        String::new()
    };
    let text = format!("{what}: {middle:.2} times{spread}, at most {most}");
    Some(Goal {
        text,
        is_met: middle <= most,
        is_of_time: true,
    })
}

/// Gold's p99 in a phase, if a query has ended there.
fn gold(outcome: &Outcome, phase: usize) -> Option<f64> {
    let p99 = outcome.phases[phase].tenants[Tenant::Gold as usize].p99_ms;
    (p99 > 0.0).then_some(p99)
}

/// The time of heavy's fixed queries, where all of them have ended with their rows.
fn heavy_alone(outcome: &Outcome) -> Option<f64> {
    let phase = &outcome.phases[HEAVY_ALONE];
    (phase.tenants[Tenant::Heavy as usize].lost() == 0).then_some(phase.seconds)
}

fn named(policies: &[&str]) -> String {
    if policies.is_empty() {
        String::new()
    } else {
        format!(": not {}", policies.join(", "))
    }
}

/// Each query gives as many rows under all policies, whatever it spills.
fn same_rows(outcomes: &[&Outcome]) -> Goal {
    let mut rows: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (query, &(least, most)) in outcomes.iter().flat_map(|outcome| &outcome.rows) {
        let seen = rows.entry(query).or_insert((least, most));
        *seen = (seen.0.min(least), seen.1.max(most));
    }
    let other: Vec<_> = rows
        .iter()
        .filter(|(_, (least, most))| least != most)
        .map(|(query, _)| *query)
        .collect();
    goal(
        other.is_empty(),
        format!("each query that ends gives all its rows{}", named(&other)),
    )
}
