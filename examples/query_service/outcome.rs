//! The result of a run under one policy.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Args;
use crate::load::{Ended, Record, Tenant};
use crate::policy::{Left, Policy};
use crate::sampler::Most;
use crate::scene::{PHASES, TOGETHER};

/// A container's limit would be this much above the memory of the queries, plus what a process
/// needs for itself.
const ROOM: (u64, u64) = (5, 4);
const PROCESS: u64 = 64 << 20;

/// Sizes are bytes, times as their names say.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) policy: String,
    pub(crate) scale: f64,
    pub(crate) pinned: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) table_bytes: u64,
    /// Resident bytes beyond the tables that a container's limit would allow.
    pub(crate) limit_bytes: u64,
    /// The first phase in which they were passed.
    pub(crate) passes_in: Option<String>,
    /// True if the policy could leave the queries less memory in the last phase.
    pub(crate) is_lowered: bool,
    pub(crate) phases: Vec<Phase>,
    /// The least and the most rows by query.
    pub(crate) rows: BTreeMap<String, (u64, u64)>,
    /// The bytes reserved when all has ended, and the sums that do not add up.
    pub(crate) left_bytes: u64,
    /// The bytes above a max that growths have charged which DataFusion does not let fail, in all.
    pub(crate) forced_bytes: u64,
    pub(crate) victims: u64,
    pub(crate) faults: Vec<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) most_reserved_bytes: u64,
    pub(crate) most_resident_bytes: u64,
    /// The time for which each tenant's queries stood still for memory.
    pub(crate) stood_still_ms: [f64; 3],
    pub(crate) tenants: [Tally; 3],
}

/// The queries of one tenant in one phase.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) refused: u64,
    /// Of them, those whose refusal does not name the query's own group.
    pub(crate) misnamed: u64,
    pub(crate) failed: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) spilled_bytes: u64,
    pub(crate) first_error: Option<String>,
}

impl Tally {
    pub(crate) fn lost(&self) -> u64 {
        self.refused + self.failed
    }

    fn of(records: &[&Record]) -> Tally {
        let mut tally = Tally::default();
        let mut times = Vec::new();
        for record in records {
            tally.spilled_bytes += record.spilled_bytes;
            match &record.ended {
                Ended::Rows(_) => {
                    tally.done += 1;
                    times.push(record.took);
                }
                Ended::Refused(text) => {
                    tally.refused += 1;
                    let group = format!("/{}/{}", record.tenant.name(), record.number);
                    tally.misnamed += u64::from(!text.contains(&group));
                    tally.first_error.get_or_insert_with(|| text.clone());
                }
                Ended::Failed(text) => {
                    tally.failed += 1;
                    tally.first_error.get_or_insert_with(|| text.clone());
                }
            }
        }
        times.sort_unstable();
        tally.p50_ms = quantile(&times, 50);
        tally.p99_ms = quantile(&times, 99);
        tally
    }
}

/// The nearest rank, in milliseconds; 0 without queries.
fn quantile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted
        .get(rank - 1)
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

impl Outcome {
    pub(crate) fn new(policy: Policy, args: &Args, table_bytes: u64) -> Outcome {
        let memory_bytes = args.memory << 20;
        let phase = |(name, _): &(&str, _)| Phase {
            name: (*name).to_string(),
            ..Phase::default()
        };
        Outcome {
            policy: policy.name().to_string(),
            scale: args.scale,
            pinned: args.pinned,
            memory_bytes,
            table_bytes,
            limit_bytes: memory_bytes * ROOM.0 / ROOM.1 + PROCESS,
            passes_in: None,
            is_lowered: false,
            phases: PHASES.iter().map(phase).collect(),
            rows: BTreeMap::new(),
            left_bytes: 0,
            forced_bytes: 0,
            victims: 0,
            faults: Vec::new(),
        }
    }

    pub(crate) fn add_samples(&mut self, most: &[Most]) {
        for (phase, most) in self.phases.iter_mut().zip(most) {
            phase.most_reserved_bytes = most.reserved_bytes;
            phase.most_resident_bytes = most.resident_bytes;
        }
        let is_above = |phase: &&Phase| phase.most_resident_bytes > self.limit_bytes;
        self.passes_in = self
            .phases
            .iter()
            .find(is_above)
            .map(|phase| phase.name.clone());
    }

    pub(crate) fn add_records(&mut self, records: &[Record]) {
        for (at, phase) in self.phases.iter_mut().enumerate() {
            phase.tenants = Tenant::ALL.map(|tenant| {
                let own = |record: &&Record| record.phase == at && record.tenant == tenant;
                Tally::of(&records.iter().filter(own).collect::<Vec<_>>())
            });
        }
        for record in records {
            if let Ended::Rows(rows) = record.ended {
                let seen = self
                    .rows
                    .entry(record.query.to_string())
                    .or_insert((rows, rows));
                *seen = (seen.0.min(rows), seen.1.max(rows));
            }
        }
    }

    pub(crate) fn ends(&mut self, left: Left) {
        self.left_bytes = left.bytes;
        self.forced_bytes = left.forced_bytes;
        self.victims = left.victims;
        self.faults = left.faults;
    }

    pub(crate) fn tenant(&self, tenant: Tenant) -> impl Iterator<Item = &Tally> {
        self.phases
            .iter()
            .map(move |phase| &phase.tenants[tenant as usize])
    }

    /// Queries of a tenant that ended without their rows, in all phases.
    pub(crate) fn lost(&self, tenant: Tenant) -> u64 {
        self.tenant(tenant).map(Tally::lost).sum()
    }

    pub(crate) fn done(&self, tenant: Tenant) -> u64 {
        self.tenant(tenant).map(|tally| tally.done).sum()
    }

    pub(crate) fn spilled_bytes(&self) -> u64 {
        Tenant::ALL
            .into_iter()
            .flat_map(|tenant| self.tenant(tenant))
            .map(|tally| tally.spilled_bytes)
            .sum()
    }

    pub(crate) fn most_resident_bytes(&self) -> u64 {
        self.phases
            .iter()
            .map(|phase| phase.most_resident_bytes)
            .max()
            .unwrap_or(0)
    }
}

/// Of each policy the round whose p99 of gold beside the others is in the middle.
pub(crate) fn middle(rounds: Vec<Vec<Outcome>>) -> Vec<Outcome> {
    let mut policies: Vec<Vec<Outcome>> = Vec::new();
    for round in rounds {
        for (at, outcome) in round.into_iter().enumerate() {
            if at == policies.len() {
                policies.push(Vec::new());
            }
            policies[at].push(outcome);
        }
    }
    let p99 = |outcome: &Outcome| outcome.phases[TOGETHER].tenants[Tenant::Gold as usize].p99_ms;
    let middle = |mut outcomes: Vec<Outcome>| {
        outcomes.sort_by(|one, other| p99(one).total_cmp(&p99(other)));
        outcomes.swap_remove(outcomes.len() / 2)
    };
    policies.into_iter().map(middle).collect()
}
