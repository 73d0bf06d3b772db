//! Distributions of times, as lines of a table.

#![cfg(not(loom))]

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use hdrhistogram::Histogram;

use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::stats::Summary;

/// The goal: a reader beside the writer waits at most so many times what it waits without, in this
/// per cent of its reads.
const WITHIN: f64 = 99.9;
const BESIDE_MAX: f64 = 20.0;

/// Above these the series had one read in ten thousand, and none.
const RARELY: Duration = Duration::from_millis(1);
const NEVER: Duration = Duration::from_millis(100);

/// Nanoseconds.
pub(crate) type Times = Histogram<u64>;

/// Up to a minute, to three digits.
pub(crate) fn times() -> Times {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that a histogram can have")
}

pub(crate) fn record(times: &mut Times, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Per cent of the times that are longer than `most`.
fn above(times: &Times, most: Duration) -> f64 {
    let most = most.as_nanos() as u64;
    let above = times
        .iter_recorded()
        .filter(|step| step.value_iterated_to() > times.highest_equivalent(most));
    above.map(|step| step.count_at_value()).sum::<u64>() as f64 / times.len().max(1) as f64 * 100.0
}

/// Microseconds, one line for each kind of time.
pub(crate) fn print(kinds: &[(&str, &Times)]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "us", "count", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "max", "> 1 ms", "> 100 ms",
    ]);
    for (name, times) in kinds {
        let at = |quantile| format!("{:.1}", times.value_at_quantile(quantile) as f64 / 1e3);
        let quantiles = [0.5, 0.9, 0.99, 0.999, 0.999_9, 1.0].map(at);
        let above = [RARELY, NEVER].map(|most| format!("{:.4} %", above(times, most)));
        let head = [(*name).to_owned(), times.len().to_string()];
        table.add_row(head.into_iter().chain(quantiles).chain(above));
    }
    println!("{}\n", table.trim_fmt());
}

/// The series' value of each figure, and the figure's name.
const SERIES: [(&str, &str, Figure); 3] = [
    ("stats-9", "99.9 % of reads / 50 us", |times| {
        times.value_at_percentile(WITHIN) as f64 / 50e3
    }),
    ("stats-10", "part above 1 ms / 0.01 %", |times| {
        above(times, RARELY) / 0.01
    }),
    ("stats-11", "longest / 100 ms", |times| {
        times.max() as f64 / NEVER.as_nanos() as f64
    }),
];

type Figure = fn(&Times) -> f64;

/// The series' figures, phase by phase.
pub(crate) fn print_phases(phases: &[Times]) {
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["", "series", "min", "max", "avg", "std", "runs"]);
    let figures: [(&str, &str, Figure); 3] = [
        ("99.9 % of reads, us", "50", |times| {
            times.value_at_percentile(WITHIN) as f64 / 1e3
        }),
        ("above 1 ms, %", "0.01", |times| above(times, RARELY)),
        ("longest, ms", "100", |times| times.max() as f64 / 1e6),
    ];
    for (what, series, figure) in figures {
        let summary = Summary::of(&phases.iter().map(figure).collect::<Vec<_>>());
        let cells = [summary.min, summary.max, summary.mean, summary.std]
            .map(|figure| format!("{figure:.3}"));
        let head = [what.to_owned(), series.to_owned()];
        table.add_row(
            head.into_iter()
                .chain(cells)
                .chain([phases.len().to_string()]),
        );
    }
    println!("{}\n", table.trim_fmt());
}

/// The series' claims about its second run (`docs/src/series/stats.md`): a round for each phase.
pub(crate) fn judge(phases: &[Times], claims: &mut Claims) {
    for (id, what, figure) in SERIES {
        let rounds: Vec<f64> = phases.iter().map(figure).collect();
        claims.timed(id, &[(what, Ratio::of_rounds(&rounds))], Bound::AtMost(1.0));
    }
}

/// Beside a writer against without one.
pub(crate) fn print_goals(beside: &Times, quiet: &Times) {
    let [beside, quiet] = [beside, quiet].map(|times| times.value_at_percentile(WITHIN) as f64);
    let ratio = beside / quiet.max(1.0);
    let verdict = if ratio <= BESIDE_MAX { "met" } else { "missed" };
    println!(
        "goal: {WITHIN} % of the reads beside the writer within at most {BESIDE_MAX} times what they take without:\n\
         {ratio:.2} times, {verdict}\n\
         (Yosry Ahmed's series, on 384 processors: 99.9 % within 50 us, less than 0.01 % above 1 ms, none above 100 ms.)\n",
    );
}
