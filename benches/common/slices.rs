//! Ways of doing one thing, in turn, slice by slice: a drift of the machine meets all of them
//! alike.

#![cfg(not(loom))]

use std::time::Duration;

use super::claims::Ratio;
use super::stats::{Summary, median};

/// Something that runs so many iterations and says how long one thread took for them.
pub(crate) type Way<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// Iterations that a slice is calibrated with at most.
const TRIED_MAX: u64 = 1 << 22;

/// Nanoseconds of one iteration of one thread, turn by turn.
#[derive(Clone)]
pub(crate) struct Series(Vec<f64>);

/// One way compared with another, from turns that both had.
#[derive(Clone, Copy)]
pub(crate) struct Compared {
    /// The middle of the ratios.
    pub(crate) ratio: f64,
    /// One standard deviation of them.
    pub(crate) std: f64,
}

/// So many turns of all ways, each a slice of about `slice`; every second turn goes backwards.
pub(crate) fn in_turn(turns: usize, slice: Duration, ways: &mut [Way<'_>]) -> Vec<Series> {
    let iters: Vec<u64> = ways.iter_mut().map(|way| calibrate(slice, way)).collect();
    let mut series = vec![Series(Vec::with_capacity(turns)); ways.len()];
    for turn in 0..turns {
        for place in 0..ways.len() {
            let way = if turn % 2 == 0 {
                place
            } else {
                ways.len() - 1 - place
            };
            let took = ways[way](iters[way]);
            series[way]
                .0
                .push(took.as_secs_f64() * 1e9 / iters[way] as f64);
        }
    }
    series
}

/// The number of iterations that fit into a slice. Warms up on the way.
fn calibrate(slice: Duration, way: &mut Way<'_>) -> u64 {
    let mut tried = 64;
    loop {
        let took = way(tried);
        if took >= slice / 4 || tried >= TRIED_MAX {
            return ((tried as f64 * slice.as_secs_f64() / took.as_secs_f64().max(1e-9)) as u64)
                .max(1);
        }
        tried *= 2;
    }
}

impl Series {
    /// More turns of the same.
    pub(crate) fn extend(&mut self, more: Series) {
        self.0.extend(more.0);
    }

    pub(crate) fn median(&self) -> f64 {
        median(self.0.clone()).unwrap_or_default()
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary::of(&self.0)
    }

    /// The ratios, turn by turn.
    pub(crate) fn ratio(&self, base: &Series) -> Ratio {
        Ratio::of(&self.0, &base.0)
    }

    /// In multiples of `base`, which was measured in the same turns.
    pub(crate) fn against(&self, base: &Series) -> Compared {
        let ratios: Vec<f64> = self
            .0
            .iter()
            .zip(&base.0)
            .map(|(one, other)| one / other)
            .collect();
        let std = Summary::of(&ratios).std;
        Compared {
            ratio: median(ratios).unwrap_or_default(),
            std,
        }
    }
}

impl Compared {
    /// A difference inside one standard deviation is none.
    pub(crate) fn is_noise(&self) -> bool {
        (self.ratio - 1.0).abs() <= self.std
    }

    /// In per cent of what it is compared with.
    pub(crate) fn percent(&self) -> String {
        let noise = if self.is_noise() { " (noise)" } else { "" };
        format!(
            "{:+.1} % +-{:.1}{noise}",
            (self.ratio - 1.0) * 100.0,
            self.std * 100.0
        )
    }
}
