//! What the medians of one run say about the goals: ratios, because absolute times belong to a machine.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::common::rows::Medians;

/// A pair from the stock costs at most this, in ns, on the machine that the design was measured on.
const PAIR_NANOS_MAX: f64 = 2.3;

/// One line of the table: what is wanted is an upper bound.
struct Goal {
    what: String,
    measured: f64,
    unit: &'static str,
    most: f64,
}

/// Print those goals for which this run has the figures.
pub(crate) fn print(medians: &Medians) {
    let mut goals = Vec::new();
    hit(medians, &mut goals);
    groups(medians, &mut goals);
    limit(medians, &mut goals);
    if goals.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["goal (medians of this run)", "measured", "at most", ""]);
    for Goal { what, measured, unit, most } in goals {
        let verdict = if measured <= most { "met" } else { "missed" };
        table.add_row([what, format!("{measured:.3} {unit}"), format!("{most:.3} {unit}"), verdict.to_owned()]);
    }
    println!("{}", table.trim_fmt());
}

/// `left` divided by `right` is at most `most`.
fn ratio(medians: &Medians, goals: &mut Vec<Goal>, left: &str, right: &str, most: f64) {
    let (left, right) = (format!("counter/{left}"), format!("counter/{right}"));
    if let (Some(one), Some(other)) = (medians.get(&left), medians.get(&right)) {
        goals.push(Goal { what: format!("{left} / {right}"), measured: one / other, unit: "x", most });
    }
}

fn hit(medians: &Medians, goals: &mut Vec<Goal>) {
    let mut hits = Vec::new();
    for depth in [1, 4, 8] {
        for threads in [1, 2] {
            let row = format!("stock/depth{depth}/threads{threads}");
            if let Some(&measured) = medians.get(&format!("counter/{row}")) {
                hits.push(measured);
                goals.push(Goal { what: format!("counter/{row}"), measured, unit: "ns", most: PAIR_NANOS_MAX });
            }
            ratio(medians, goals, &row, "no_stock/depth4/threads1", 1.0 / 15.0);
            ratio(medians, goals, &row, "no_stock/depth4/threads2", 1.0 / 40.0);
        }
    }
    if hits.len() == 6 {
        let slowest = hits.iter().copied().fold(f64::MIN, f64::max);
        let fastest = hits.iter().copied().fold(f64::MAX, f64::min);
        let what = "slowest / fastest of these".to_owned();
        goals.push(Goal { what, measured: slowest / fastest, unit: "x", most: 1.15 });
    }
}

fn groups(medians: &Medians, goals: &mut Vec<Goal>) {
    ratio(medians, goals, "stock/groups1000/threads1", "atomic/threads1", 1.0);
    for threads in [1, 2] {
        let (ours, slots7) = (format!("stock/groups32/threads{threads}"), format!("slots7/groups32/threads{threads}"));
        ratio(medians, goals, &ours, &slots7, 1.0 / 3.0);
    }
    ratio(medians, goals, "stock/groups50000/threads1", "atomic/groups50000/threads1", 1.3);
}

fn limit(medians: &Medians, goals: &mut Vec<Goal>) {
    for depth in [1, 4] {
        for threads in [1, 2] {
            let at = format!("depth{depth}/threads{threads}");
            ratio(medians, goals, &format!("at_limit/{at}"), &format!("at_limit_no_stock/{at}"), 1.5);
        }
    }
    ratio(medians, goals, "cross_thread_free/depth4", "no_stock/depth4/threads2", 0.1);
    for threads in [1, 2] {
        let of = |counters: usize| medians.get(&format!("counter/set/shared/counters{counters}/threads{threads}"));
        if let (Some(one), Some(two)) = (of(1), of(2)) {
            let what = format!("counter/set/shared/counters2 - counters1, threads{threads}");
            goals.push(Goal { what, measured: two - one, unit: "ns", most: 1.0 });
        }
    }
}
