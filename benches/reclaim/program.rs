//! The rows, and the goals.

#![cfg(not(loom))]

mod background;
mod cache;
mod charge;
mod pass;
mod series;

use self::pass::Visited;
use memcg_bench_rows::{Bench, Goals};

use crate::common::claims::Claims;
use crate::common::rows;

const BENCH: Bench = Bench {
    name: "reclaim",
    about: "Reclaim beside groups that have nothing to give.\n\
            One iteration asks for 128 KiB and charges it again, unless the row says otherwise.",
};

/// Bytes that a round of reclaim asks for: half a batch, as a charge does.
const WANT: u64 = 128 << 10;

/// With idle groups against without: the walk's time, and the groups it visits.
const TIME_MAX: f64 = 1.25;
const VISITED_MAX: f64 = 1.1;

/// The tolerance that "equal" leaves to the machine.
const EQUAL: f64 = 1.1;

/// The most that the count of its stall costs a charge that has a cache give back 128 KiB, which
/// that does in half a microsecond; and a stream of pages, one of 32 of which does.
const STALL_MAX: f64 = 1.15;
const STALL_OF_STREAM_MAX: f64 = 1.03;

/// A soft limit that is never crossed.
const UNCROSSED_MAX: f64 = 1.05;

pub(crate) fn main() {
    let mut visited = Visited::new();
    let mut streams = background::Streams::new();
    let measured = rows::run(&BENCH, |rows| {
        visited = pass::rows(rows);
        charge::rows(rows);
        streams = background::rows(rows);
    });
    series::print();
    let mut goals = Goals::new(&measured);
    for row in ["soft_pass", "soft_pass_registered"] {
        for idle in [512, 2_048, 8_192] {
            equal(&mut goals, &visited, row, idle, TIME_MAX);
        }
    }
    // Reclaimers that have nothing are passed over, which is not quite nothing: no goal.
    equal(&mut goals, &visited, "no_excess", 8_192, EQUAL);
    for row in ["no_excess", "no_excess_registered"] {
        for idle in [0, 8_192] {
            let id = format!("reclaim/{row}/idle{idle}");
            if let Some(visited) = visited.get(&id) {
                goals.at_most(
                    format!("{id}: visited for excess"),
                    visited.soft,
                    "groups",
                    0.0,
                );
            }
        }
    }
    for row in ["charge_at_max", "stream"] {
        equal(&mut goals, &visited, row, 8_192, TIME_MAX);
    }
    for (row, most) in [
        ("charge_at_max", STALL_MAX),
        ("stream", STALL_OF_STREAM_MAX),
    ] {
        goals.ratio(
            &format!("reclaim/{row}/idle0"),
            &format!("reclaim/{row}_uncounted/idle0"),
            most,
        );
    }
    for threads in [1, 2] {
        let of = |soft| format!("reclaim/charge_no_stock/{soft}/depth4/threads{threads}");
        goals.ratio(&of("uncrossed"), &of("unset"), UNCROSSED_MAX);
    }
    background::goals(&mut goals, &streams);
    goals.print();
    claims(&visited).print();
}

/// The rows' answers to the series' claims (`docs/src/series/softlimit.md`), for rows that have
/// been run.
fn claims(visited: &Visited) -> Claims {
    let mut claims = Claims::new();
    let of = |row: &str, idle: usize| visited.get(&format!("reclaim/{row}/idle{idle}"));
    if let Some((few, many)) = of("no_excess", 0).zip(of("no_excess", 8_192)) {
        claims.holds(
            "softlimit-7",
            few.soft == 0.0 && many.soft == 0.0,
            format_args!(
                "groups visited for excess beside 0 and 8,192 idle ones: {:.3}, {:.3}",
                few.soft, many.soft
            ),
        );
    }
    if let Some((few, many)) = of("soft_pass", 0).zip(of("soft_pass", 8_192))
        && let Some(all) = of("walk_without_skipping", 8_192)
    {
        claims.holds(
            "softlimit-8",
            many.all <= few.all * VISITED_MAX && all.all >= 8_192.0,
            format_args!(
                "groups visited beside 0 and 8,192 idle ones: {:.3}, {:.3}; by a look at each: {:.0}",
                few.all, many.all, all.all
            ),
        );
    }
    claims
}

/// The row beside idle groups against the same without.
fn equal(goals: &mut Goals<'_>, visited: &Visited, row: &str, idle: usize, time_max: f64) {
    let with = format!("reclaim/{row}/idle{idle}");
    let without = format!("reclaim/{row}/idle0");
    goals.ratio(&with, &without, time_max);
    if let (Some(one), Some(other)) = (visited.get(&with), visited.get(&without)) {
        goals.at_most(
            format!("{with} / idle0: groups visited"),
            one.all / other.all,
            "x",
            VISITED_MAX,
        );
    }
}
