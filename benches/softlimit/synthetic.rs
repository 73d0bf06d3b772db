//! A trace that is made up, for where the real one is not at hand: of the same length, over as many
//! blocks, and alike in what matters to a cache.
//!
//! Phases follow each other. Each brings blocks that no request has asked for before, in short
//! runs, fewer from phase to phase; a quarter of the blocks is never asked for again. Most requests
//! go by a Zipf law to the blocks that came first, some to a working set of the phase, of a size of
//! its own; once in a phase a scan reads old blocks in a row. The constants are such that a cache
//! of half to all of the blocks misses about as often as with the real trace.

#![cfg(not(loom))]

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// As many as the real trace has.
pub(super) const REQUESTS: usize = 1_500_000;
const BLOCKS: usize = 41_231;

const SEED: u64 = 2013;

const PHASES: usize = 24;

/// Blocks of a run that comes for the first time, and of a scan: means.
const RUN: f64 = 6.0;
const SCAN: f64 = 600.0;

/// Blocks that are asked for again, of all.
const USED_AGAIN: f64 = 0.72;

/// Requests for old blocks that go to those of all time; the others go to the phase's.
const OF_ALL_TIME: f64 = 0.75;

/// The exponents of both laws.
const ALL_TIME_SKEW: f64 = 1.05;
const PHASE_SKEW: f64 = 0.6;

/// Blocks of a phase's working set, from and to.
const WORKING_SET: (f64, f64) = (500.0, 12_000.0);

/// Phases before the first scan, and blocks before it.
const SCANS_FROM: usize = 3;

/// Block numbers in order of request: the same ones each time.
pub(super) fn keys() -> Vec<u64> {
    let mut making = Making {
        random: SmallRng::seed_from_u64(SEED),
        keys: Vec::with_capacity(REQUESTS),
        known: 0,
        again: Vec::with_capacity(BLOCKS),
    };
    let shares: Vec<f64> = (0..PHASES)
        .map(|phase| 1.0 / (phase as f64 + 0.6))
        .collect();
    let all: f64 = shares.iter().sum();
    let mut share = 0.0;
    for (phase, of_phase) in shares.iter().enumerate() {
        share += of_phase / all;
        let blocks = if phase + 1 == PHASES {
            BLOCKS
        } else {
            (share * BLOCKS as f64) as usize
        };
        let requests = REQUESTS * (phase + 1) / PHASES;
        making.phase(blocks, requests, phase >= SCANS_FROM);
    }
    making.keys
}

struct Making {
    random: SmallRng,
    keys: Vec<u64>,
    /// Blocks that have been asked for; they are numbered as they come.
    known: usize,
    /// Those of them that are asked for again.
    again: Vec<u64>,
}

impl Making {
    /// Until there are so many blocks and so many requests in all.
    fn phase(&mut self, blocks: usize, requests: usize, scans: bool) {
        let working_set =
            WORKING_SET.0 * (WORKING_SET.1 / WORKING_SET.0).powf(self.random.random());
        let working_set = working_set as usize;
        let place = self.random.random::<f64>();
        let left = requests - self.keys.len();
        let mut scan =
            scans.then(|| self.keys.len() + (self.random.random::<f64>() * left as f64) as usize);
        while self.keys.len() < requests {
            let left = requests - self.keys.len();
            let new = blocks - self.known;
            if left <= new || self.again.is_empty() {
                self.run(new);
            } else if scan.is_some_and(|at| at <= self.keys.len()) {
                scan = None;
                self.scan(left - new);
            } else if self.random.random::<f64>() * (left as f64) < new as f64 / RUN {
                self.run(new);
            } else {
                let old = self.old(working_set, place);
                self.keys.push(old);
            }
        }
    }

    /// Blocks that come for the first time.
    fn run(&mut self, new: usize) {
        let blocks = (1 + self.length(RUN)).min(new);
        for _ in 0..blocks {
            let block = self.known as u64;
            self.keys.push(block);
            if self.random.random::<f64>() < USED_AGAIN {
                self.again.push(block);
            }
            self.known += 1;
        }
    }

    /// Old blocks in a row.
    fn scan(&mut self, left: usize) {
        let first = (self.random.random::<f64>() * self.known as f64) as usize;
        let end = self.known.min(first + self.length(SCAN).min(left));
        self.keys.extend(first as u64..end as u64);
    }

    fn old(&mut self, working_set: usize, place: f64) -> u64 {
        let all = self.again.len();
        let at = if self.random.random::<f64>() < OF_ALL_TIME {
            self.rank(all, ALL_TIME_SKEW)
        } else {
            let first = (place * all.saturating_sub(working_set) as f64) as usize;
            first + self.rank(working_set.min(all), PHASE_SKEW)
        };
        self.again[at.min(all - 1)]
    }

    /// Of so many, by Zipf's law: the first most often. By the inverse of the law's integral.
    fn rank(&mut self, many: usize, skew: f64) -> usize {
        let power = 1.0 - skew;
        let even: f64 = self.random.random();
        let last = (many as f64 + 1.0).powf(power);
        ((last * even + (1.0 - even)).powf(1.0 / power) - 1.0).max(0.0) as usize
    }

    /// Of a mean, each shorter one likelier.
    fn length(&mut self, mean: f64) -> usize {
        (-(1.0 - self.random.random::<f64>()).ln() * mean) as usize
    }
}
