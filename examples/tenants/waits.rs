//! The times that requests waited for room.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Digits of a time that are kept.
const DIGITS: u8 = 3;

/// The waits of a tenant, or of all.
pub(crate) struct Waits {
    /// In nanoseconds; grows with the longest.
    times: Histogram<u64>,
    /// Those that came to nothing.
    timed_out: u64,
}

/// The sums, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WaitTimes {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Waits {
    pub(crate) fn add(&mut self, time: Duration, timed_out: bool) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.record(time).expect("a histogram that grows");
        self.timed_out += u64::from(timed_out);
    }

    pub(crate) fn append(&mut self, other: &Self) {
        // It grows as far as it must.
        self.times.add(&other.times).expect("two histograms of the same precision");
        self.timed_out += other.timed_out;
    }

    pub(crate) fn waited(&self) -> u64 {
        self.times.len()
    }

    pub(crate) fn timed_out(&self) -> u64 {
        self.timed_out
    }

    /// `None`: no tenant waited.
    pub(crate) fn times(&self) -> Option<WaitTimes> {
        let at = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        (self.waited() > 0).then(|| WaitTimes { p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) })
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self { times: Histogram::new(DIGITS).expect("a precision that histograms have"), timed_out: 0 }
    }
}

impl fmt::Display for WaitTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [self.p50_us, self.p99_us, self.max_us].map(|us| Duration::from_secs_f64(us / 1e6));
        write!(f, "{p50:.1?}, {p99:.1?}, {max:.1?}")
    }
}
