//! Ways of accounting in turn with none: what each costs, from neighbours in time.

#![cfg(not(loom))]

use std::time::Duration;

use crate::common::stats::median;

/// Turns of each, and those that show that it works.
pub(crate) const TURNS: usize = 160;
pub(crate) const TURNS_SMALL: usize = 2;

/// Short: a slice that another process interrupts is one of many, and drops out of the median.
const SLICE: Duration = Duration::from_micros(400);

/// What a way costs beside none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Nanoseconds of an allocation and its end without it.
    pub(crate) none: f64,
    /// Half of what lies between the quartiles of that.
    pub(crate) none_spread: f64,
    /// Nanoseconds that it adds.
    pub(crate) nanos: f64,
    /// The same in per cent.
    pub(crate) percent: f64,
    /// Half of what lies between the quartiles of the latter, from turn to turn.
    pub(crate) spread: f64,
}

impl Cost {
    /// How well the median is known: as for one of so many turns that are spread evenly about it.
    pub(crate) fn error(&self, turns: usize) -> f64 {
        1.86 * self.spread / (turns as f64).sqrt()
    }
}

/// How long [`costs`] takes.
pub(crate) fn takes(turns: usize, ways: usize) -> Duration {
    // One slice before all others; then each way, and none behind it. Calibration is as much as two slices of each.
    SLICE * (1 + 2 * ways * turns + 2 * (ways + 1)) as u32
}

/// What each of `ways` costs, in turn with `none`: `run(way, times)`, the last way being none.
pub(crate) fn costs(turns: usize, ways: usize, run: impl Fn(usize, u64) -> Duration) -> Vec<Cost> {
    let times: Vec<u64> = (0..=ways).map(|way| calibrate(|times| run(way, times))).collect();
    let nanos = |way: usize| run(way, times[way]).as_secs_f64() * 1e9 / times[way] as f64;
    let mut none = vec![Vec::new(); ways];
    let mut added = vec![Vec::new(); ways];
    let mut percent = vec![Vec::new(); ways];
    let mut before = nanos(ways);
    for turn in 0..turns {
        // None, one, none, another, none: each between two that it is compared with; each is first equally often.
        for place in 0..ways {
            let way = (turn + place) % ways;
            let on = nanos(way);
            let after = nanos(ways);
            let off = f64::midpoint(before, after);
            none[way].push(off);
            added[way].push(on - off);
            percent[way].push((on / off - 1.0) * 100.0);
            before = after;
        }
    }
    let cost = |way: usize| Cost {
        none: median(none[way].clone()).unwrap_or_default(),
        none_spread: spread(&none[way]),
        nanos: median(added[way].clone()).unwrap_or_default(),
        percent: median(percent[way].clone()).unwrap_or_default(),
        spread: spread(&percent[way]),
    };
    (0..ways).map(cost).collect()
}

/// Half of what lies between the quartiles.
fn spread(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() * 3 / 4] - sorted[sorted.len() / 4]) / 2.0
}

/// How many times fit into a slice.
fn calibrate(run: impl Fn(u64) -> Duration) -> u64 {
    let mut times = 1;
    loop {
        let took = run(times);
        if took >= SLICE / 4 || times >= 1 << 20 {
            return ((times as f64 * SLICE.as_secs_f64() / took.as_secs_f64().max(1e-9)) as u64).max(1);
        }
        times *= 2;
    }
}
