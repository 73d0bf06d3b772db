//! The tables' answers to the goals, and to the claims of the series
//! (`docs/src/series/softlimit.md`).

#![cfg(not(loom))]

use memcg_bench_rows::Goals;

use super::Results;
use super::policy::Variant::{Base, BaseQuarter, Rework, Reworkoptim};
use super::report::{Of, Runs};
use super::scene::Run;
use crate::common::claims::{Bound, Claims};

/// Refaults with soft limit 0, in per cent of base's.
const REFAULTS_MAX: f64 = 5.0;

/// The stream's time, in per cent of base's.
const STREAM_ELAPSED_MAX: f64 = 100.0;

const EVICTED_MAX: f64 = 1.1;

/// Times that differ by less are called the same: the series' own differ by 3 % where it calls them
/// noise.
const SAME: f64 = 1.05;

/// The series' averages, by base's: with soft limit 0, and rework's for the stream, where it is
/// slowest.
const SYSTEM: f64 = 0.977;
const ELAPSED: f64 = 0.766;
const REFAULTS: f64 = 0.03;
const STREAM_ELAPSED: f64 = 1.082;

/// The part that the guess at priority 0 has to explain: so much of base's time goes, by a base
/// that stops early.
const EARLIER: f64 = 0.9;

/// Pages evicted by pages asked for that are called aggressive, and what is left of them where
/// visits end early.
const AGGRESSIVE: f64 = 2.0;
const HALF: f64 = 0.5;

const SYSTEM_TIME: Of = |run| run.system;
const ELAPSED_TIME: Of = |run| run.elapsed;

pub(super) fn goals(results: &Results, goals: &mut Goals<'_>) {
    // One run has no deviation to be compared with.
    if let Some(runs) = results.no_limit.as_ref().filter(|runs| runs.count() > 1) {
        for (name, of) in [("system", SYSTEM_TIME), ("elapsed", ELAPSED_TIME)] {
            let base = runs.summary(Base, of);
            let ours = runs.summary(Reworkoptim, of);
            let away = (ours.mean - base.mean).max(0.0) / ours.std.max(base.std);
            goals.at_most(
                format!("no limit, {name}: reworkoptim above base"),
                away,
                "std",
                1.0,
            );
        }
    }
    if let Some(runs) = &results.zero_limit {
        goals.at_most(
            "0 limit both, refaults: of base",
            runs.ours(|run| run.refaults),
            "%",
            REFAULTS_MAX,
        );
    }
    for (setup, runs) in [
        ("no limit", &results.no_limit),
        ("0 limit both", &results.zero_limit),
    ] {
        if let Some(runs) = runs {
            let evicted = runs.summary(Reworkoptim, Run::evicted_per_asked).max;
            goals.at_most(
                format!("{setup}: evicted / asked, reworkoptim"),
                evicted,
                "x",
                EVICTED_MAX,
            );
        }
    }
    if let Some(runs) = results.stream.as_ref().filter(|runs| runs.count() > 1) {
        let base = runs.summary(Base, ELAPSED_TIME);
        let ours = runs.summary(Reworkoptim, ELAPSED_TIME);
        let most = STREAM_ELAPSED_MAX + base.std.max(ours.std) / base.mean * 100.0;
        goals.at_most(
            "stream, elapsed: of base, one std being noise",
            ours.mean / base.mean * 100.0,
            "%",
            most,
        );
    }
}

pub(super) fn claims(results: &Results) -> Claims {
    let mut claims = Claims::new();
    if let (Some(no_limit), Some(zero_limit)) = (&results.no_limit, &results.zero_limit) {
        of_both(no_limit, zero_limit, &mut claims);
    }
    if let Some(runs) = &results.no_limit {
        let ratios = [("system", SYSTEM_TIME), ("elapsed", ELAPSED_TIME)];
        let ratios = ratios.map(|(name, of)| (name, runs.ratio(Reworkoptim, Base, of)));
        claims.timed("softlimit-9", &ratios, Bound::AtMost(SAME));
    }
    if let Some(runs) = &results.zero_limit {
        zero_limit(runs, &mut claims);
    }
    if let Some(runs) = &results.stream {
        let system = [("rework", Rework), ("reworkoptim", Reworkoptim)]
            .map(|(name, variant)| (name, runs.ratio(variant, Base, SYSTEM_TIME)));
        claims.timed("softlimit-16", &system, Bound::AtLeast(1.0));
        let elapsed = [("reworkoptim", runs.ratio(Reworkoptim, Base, ELAPSED_TIME))];
        claims.timed("softlimit-17", &elapsed, Bound::AtMost(STREAM_ELAPSED));
    }
    claims
}

/// Compares the count of groups in excess, and a request to each by its own reclaimer, with a look
/// at each group.
fn of_both(no_limit: &Runs, zero_limit: &Runs, claims: &mut Claims) {
    let of = |time| {
        [("no limit", no_limit), ("0 limit", zero_limit)]
            .map(|(name, runs)| (name, runs.ratio(Reworkoptim, Rework, time)))
    };
    claims.timed("softlimit-6", &of(ELAPSED_TIME), Bound::AtMost(SAME));
    claims.timed("softlimit-19", &of(SYSTEM_TIME), Bound::AtMost(SAME));
}

fn zero_limit(runs: &Runs, claims: &mut Claims) {
    let mean = |variant, of: Of| runs.summary(variant, of).mean;
    let evicted = |variant| mean(variant, |run| run.evicted);
    claims.holds(
        "softlimit-1",
        evicted(Reworkoptim) < evicted(Base) * HALF,
        format_args!(
            "pages evicted: {:.0}, base {:.0}",
            evicted(Reworkoptim),
            evicted(Base)
        ),
    );
    let refaults = |variant| mean(variant, |run| run.refaults);
    claims.holds(
        "softlimit-4",
        refaults(BaseQuarter) < refaults(Base) * HALF,
        format_args!(
            "refaults: {:.0} where a visit takes the whole group, {:.0} where it ends after 32 pages",
            refaults(Base),
            refaults(BaseQuarter)
        ),
    );
    claims.timed(
        "softlimit-10",
        &[("system", runs.ratio(Reworkoptim, Base, SYSTEM_TIME))],
        Bound::AtMost(SYSTEM),
    );
    claims.timed(
        "softlimit-11",
        &[("elapsed", runs.ratio(Reworkoptim, Base, ELAPSED_TIME))],
        Bound::AtMost(ELAPSED),
    );
    let hits = mean(Reworkoptim, |run| run.hits) / mean(Base, |run| run.hits);
    claims.holds(
        "softlimit-12",
        (hits - 1.0).abs() <= SAME - 1.0,
        format_args!("hits: {:.1} % of base", hits * 100.0),
    );
    let left = refaults(Reworkoptim) / refaults(Base).max(1.0);
    claims.holds(
        "softlimit-13",
        left <= REFAULTS,
        format_args!(
            "refaults: {:.1} % of base, {:.0} for {:.0}",
            left * 100.0,
            refaults(Reworkoptim),
            refaults(Base)
        ),
    );
    claims.timed(
        "softlimit-14",
        &[("elapsed", runs.ratio(BaseQuarter, Base, ELAPSED_TIME))],
        Bound::AtMost(EARLIER),
    );
    let base = mean(Base, Run::evicted_per_asked);
    let ours = mean(Reworkoptim, Run::evicted_per_asked);
    claims.holds(
        "softlimit-15",
        base >= AGGRESSIVE && ours <= EVICTED_MAX,
        format_args!("pages evicted for each that was asked for: base {base:.2}, ours {ours:.3}"),
    );
}
