//! Distributions of times, as lines of a table.

#![cfg(not(loom))]

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use hdrhistogram::Histogram;

/// The goals, which are the series' figures: so many per cent within this, and almost none and none above those.
const WITHIN: (f64, Duration) = (99.9, Duration::from_micros(50));
const RARELY: (f64, Duration) = (0.01, Duration::from_millis(1));
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
    let above = times.iter_recorded().filter(|step| step.value_iterated_to() > times.highest_equivalent(most));
    above.map(|step| step.count_at_value()).sum::<u64>() as f64 / times.len().max(1) as f64 * 100.0
}

/// Microseconds, one line for each kind of time.
pub(crate) fn print(kinds: &[(&str, &Times)]) {
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["us", "count", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "max", "> 1 ms", "> 100 ms"]);
    for (name, times) in kinds {
        let at = |quantile| format!("{:.1}", times.value_at_quantile(quantile) as f64 / 1e3);
        let quantiles = [0.5, 0.9, 0.99, 0.999, 0.999_9, 1.0].map(at);
        let above = [RARELY.1, NEVER].map(|most| format!("{:.4} %", above(times, most)));
        let head = [(*name).to_owned(), times.len().to_string()];
        table.add_row(head.into_iter().chain(quantiles).chain(above));
    }
    println!("{}\n", table.trim_fmt());
}

/// The series' three figures against these.
pub(crate) fn print_goals(times: &Times) {
    let percentile = Duration::from_nanos(times.value_at_percentile(WITHIN.0));
    let (rarely, never) = (above(times, RARELY.1), above(times, NEVER));
    let verdict = |met| if met { "met" } else { "missed" };
    println!(
        "goal: {} % within {:?}: {:?}, {}\n\
         goal: less than {} % above {:?}: {rarely:.4} %, {}\n\
         goal: none above {NEVER:?}: {never:.4} %, {}\n",
        WITHIN.0,
        WITHIN.1,
        percentile,
        verdict(percentile <= WITHIN.1),
        RARELY.0,
        RARELY.1,
        verdict(rarely < RARELY.0),
        verdict(never == 0.0),
    );
}
