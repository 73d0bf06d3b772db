//! Processor time of the calling thread, spent in one thing.

#![cfg(not(loom))]

use std::sync::LazyLock;
use std::time::Duration;

use crate::common::clock::thread_time;
use crate::common::stats::median;

const READINGS: usize = 1_001;

/// The time between two readings of the clock: several times that of a charge from the stock.
static READING: LazyLock<Duration> = LazyLock::new(|| {
    let apart = (0..READINGS)
        .filter_map(|_| between(thread_time(), thread_time()))
        .map(|time| time.as_secs_f64());
    median(apart.collect()).map_or(Duration::ZERO, Duration::from_secs_f64)
});

/// The result of `work`, and its time without that of the clock; nothing where the system does not
/// say.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = thread_time();
    let result = work();
    let end = thread_time();
    (
        result,
        between(start, end)
            .unwrap_or_default()
            .saturating_sub(*READING),
    )
}

fn between(start: Option<Duration>, end: Option<Duration>) -> Option<Duration> {
    Some(end?.saturating_sub(start?))
}
