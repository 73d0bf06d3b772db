//! Ways of accounting in turn with none: what each costs, from neighbours in time.

#![cfg(not(loom))]

use std::time::Duration;

use crate::common::claims::Ratio;
use crate::common::stats::{Summary, median};

/// Turns of each; those of a quick run; and those that show that it works.
pub(crate) const TURNS: usize = 160;
pub(crate) const TURNS_QUICK: usize = 48;
pub(crate) const TURNS_TRIAL: usize = 2;

/// Short: a slice that another process interrupts is one of many, and drops out of the median.
const SLICE: Duration = Duration::from_micros(400);

/// Parts of a run that are compared with each other.
pub(crate) const PARTS: usize = 8;

/// The cost of a way beside none.
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
    /// Medians of the parts of the run, one after the other; not numbers where there were too few
    /// turns.
    percents: [f64; PARTS],
    added: [f64; PARTS],
}

impl Cost {
    /// The error of the median: as for one of so many turns that are spread evenly about it.
    pub(crate) fn error(&self, turns: usize) -> f64 {
        1.86 * self.spread / (turns as f64).sqrt()
    }

    /// Of the parts, in per cent.
    pub(crate) fn parts(&self) -> Summary {
        Summary::of(&self.percents)
    }

    /// Its time by none's.
    pub(crate) fn ratio(&self) -> Ratio {
        ratio(self.percents.map(|percent| 1.0 + percent / 100.0))
    }

    /// The ratio of its addition to another's, which took turns with it.
    pub(crate) fn added_by(&self, other: &Cost) -> Ratio {
        ratio(std::array::from_fn(|part| {
            self.percents[part] / other.percents[part]
        }))
    }

    /// The addition of a way for each processor from the second number of them to the third, by the
    /// same from the first on.
    pub(crate) fn slope([few, more, most]: [(usize, &Cost); 3]) -> Ratio {
        let each = |part: usize, low: (usize, &Cost), high: (usize, &Cost)| {
            (high.1.added[part] - low.1.added[part]) / (high.0 - low.0) as f64
        };
        ratio(std::array::from_fn(|part| {
            each(part, more, most) / each(part, few, more)
        }))
    }
}

/// Of those parts that are numbers.
fn ratio(parts: [f64; PARTS]) -> Ratio {
    let rounds: Vec<f64> = parts.into_iter().filter(|part| part.is_finite()).collect();
    Ratio::of_rounds(&rounds)
}

/// The time of [`costs`].
pub(crate) fn takes(turns: usize, ways: usize) -> Duration {
    // One slice before all others; then each way, and none behind it. Calibration is as much as two
    // slices of each.
    SLICE * (1 + 2 * ways * turns + 2 * (ways + 1)) as u32
}

/// The cost of each of `ways`, in turn with `none`: `run(way, times)`, the last way being none.
pub(crate) fn costs(turns: usize, ways: usize, run: impl Fn(usize, u64) -> Duration) -> Vec<Cost> {
    let times: Vec<u64> = (0..=ways)
        .map(|way| calibrate(|times| run(way, times)))
        .collect();
    let nanos = |way: usize| run(way, times[way]).as_secs_f64() * 1e9 / times[way] as f64;
    let mut none = vec![Vec::new(); ways];
    let mut added = vec![Vec::new(); ways];
    let mut percent = vec![Vec::new(); ways];
    let mut before = nanos(ways);
    for turn in 0..turns {
        // None, one, none, another, none: each between two that it is compared with; each is first
        // equally often.
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
        percents: parts(&percent[way]),
        added: parts(&added[way]),
    };
    (0..ways).map(cost).collect()
}

fn parts(values: &[f64]) -> [f64; PARTS] {
    std::array::from_fn(|part| {
        let within = part * values.len() / PARTS..(part + 1) * values.len() / PARTS;
        median(values[within].to_vec()).unwrap_or(f64::NAN)
    })
}

/// Half of what lies between the quartiles.
fn spread(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() * 3 / 4] - sorted[sorted.len() / 4]) / 2.0
}

/// The number of times that fit into a slice.
fn calibrate(run: impl Fn(u64) -> Duration) -> u64 {
    let mut times = 1;
    loop {
        let took = run(times);
        if took >= SLICE / 4 || times >= 1 << 20 {
            return ((times as f64 * SLICE.as_secs_f64() / took.as_secs_f64().max(1e-9)) as u64)
                .max(1);
        }
        times *= 2;
    }
}
