//! The goals of the rows, as ratios: absolute times belong to a machine.

#![cfg(not(loom))]

use memcg_bench_rows::{Goals, Measured};

/// A pair from the stock, of a bare counter and through a group with the guard of its charge, costs
/// at most so much of what an addition to one atomic and a subtraction cost, by one thread.
const COUNTER_MAX: f64 = 0.7;
const GROUP_MAX: f64 = 0.75;

/// A set, to a raw pair of each of its counters.
const SET_MAX: f64 = 1.5;

/// A pair from the stock, to the bare slot; a charge without stock, to the bare walk; a forced
/// charge above max, to one that fits.
const HIT_MAX: f64 = 1.25;
const WALK_MAX: f64 = 1.1;
const FORCED_MAX: f64 = 1.3;

/// A switch to another group and back, over what the poll costs without: this part of a pair
/// without a guard.
const SWITCH_MAX: f64 = 0.5;

/// A refusal that no credit can help, to one without stock: a walk with one look at the limit.
const REFUSED_MAX: f64 = 1.3;

/// The most that depth and threads may move it.
const FLAT: f64 = 1.15;

/// Print those goals for which this run has the figures.
pub(crate) fn print(measured: &Measured) {
    let mut goals = Goals::new(measured);
    hit(&mut goals);
    group(&mut goals);
    groups(&mut goals);
    limits(&mut goals);
    limit(&mut goals);
    current(&mut goals);
    goals.print();
}

const ATOMIC: &str = "counter/atomic/threads1";

fn hits(kind: &str) -> Vec<String> {
    let depths = [1, 4, 8].into_iter();
    depths
        .flat_map(|depth| {
            [1, 2].map(|threads| format!("{kind}/stock/depth{depth}/threads{threads}"))
        })
        .collect()
}

fn hit(goals: &mut Goals) {
    let hits = hits("counter");
    for id in &hits {
        goals.ratio(id, ATOMIC, COUNTER_MAX);
        goals.ratio(id, "counter/no_stock/depth4/threads1", 1.0 / 15.0);
        goals.ratio(id, "counter/no_stock/depth4/threads2", 1.0 / 40.0);
    }
    goals.flat("counter/stock/depth*: slowest / fastest", &hits, FLAT);
}

fn group(goals: &mut Goals) {
    let hits = hits("charge");
    for id in &hits {
        goals.ratio(id, ATOMIC, GROUP_MAX);
        goals.ratio(id, "charge/no_stock/depth4/threads1", 1.0 / 14.0);
    }
    goals.flat("charge/stock/depth*: slowest / fastest", &hits, FLAT);
}

/// The distance from its limit on this machine: the bare slot, the bare walk, a forced charge that
/// fits.
fn limits(goals: &mut Goals) {
    let bare = "counter/bare_slot/groups1/threads1";
    goals.ratio("counter/stock/depth4/threads1", bare, HIT_MAX);
    goals.ratio("charge/stock/depth4/threads1", bare, HIT_MAX);
    goals.ratio(
        "counter/stock/groups32/threads1",
        "counter/bare_slot/groups32/threads1",
        HIT_MAX,
    );
    for depth in [1, 4, 8] {
        for (threads, most) in [(1, WALK_MAX), (2, 1.0)] {
            let of = |kind| format!("counter/{kind}/depth{depth}/threads{threads}");
            goals.ratio(&of("no_stock"), &of("bare_walk"), most);
        }
    }
    for depth in [1, 4] {
        let of = |kind| format!("charge/forced/{kind}/depth{depth}/threads1");
        goals.ratio(&of("above_max"), &of("no_stock"), FORCED_MAX);
    }
}

fn groups(goals: &mut Goals) {
    goals.ratio("counter/stock/groups1000/threads1", ATOMIC, 1.0);
    for threads in [1, 2] {
        let of = |policy| format!("counter/{policy}/groups32/threads{threads}");
        goals.ratio(&of("stock"), &of("slots7"), 1.0 / 3.0);
    }
    goals.ratio(
        "counter/stock/groups50000/threads1",
        "counter/atomic/groups50000/threads1",
        1.3,
    );
}

fn current(goals: &mut Goals) {
    let row = |name: &str| goals.median(&format!("charge/current/{name}/threads1"));
    if let (Some(bare), Some(inside), Some(pair)) =
        (row("bare_poll"), row("poll_in_group"), row("raw_pair"))
    {
        goals.at_most(
            "charge/current: (poll_in_group - bare_poll) / raw_pair",
            (inside - bare) / pair,
            "x",
            SWITCH_MAX,
        );
    }
}

fn limit(goals: &mut Goals) {
    for depth in [1, 4] {
        for threads in [1, 2] {
            let of = |policy| format!("counter/{policy}/depth{depth}/threads{threads}");
            goals.ratio(&of("at_limit"), &of("at_limit_no_stock"), 1.5);
        }
    }
    for depth in [1, 4] {
        for (refused, kinds) in [
            ("refused", &["stock", "stock_not_adaptive"][..]),
            ("refused_too_large", &["stock"][..]),
        ] {
            let of = |kind| format!("counter/{refused}/{kind}/depth{depth}");
            kinds
                .iter()
                .for_each(|&kind| goals.ratio(&of(kind), &of("no_stock"), REFUSED_MAX));
        }
    }
    goals.ratio(
        "counter/cross_thread_free/depth4",
        "counter/no_stock/depth4/threads2",
        0.1,
    );
    for threads in [1, 2] {
        for counters in [1_u32, 2, 4] {
            let set = format!("charge/set/counters{counters}/threads{threads}");
            goals.ratio(
                &set,
                &format!("charge/set/raw_pair/threads{threads}"),
                SET_MAX * f64::from(counters),
            );
        }
    }
}
