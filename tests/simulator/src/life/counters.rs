//! Counters without groups: a tree of their own, beside sums.

use memcg::{CounterConfig, PageCounter};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What};

/// The parent of each: the first is the root.
const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(1)];

/// The most that one step charges.
const MOST: u64 = 300;

impl Life {
    pub(super) fn count_without_groups(&mut self, op: &Op) {
        let What::Counters(steps, seed) = op.1 else {
            unreachable!("counters without groups");
        };
        let (batch, adaptive) = (self.setup.batch, self.setup.adaptive);
        let (audit, recursive) = (self.setup.audit, self.setup.recursive);
        let lived = self.actor(op).run(move || {
            let config = CounterConfig::new()
                .batch(batch)
                .adaptive(adaptive)
                .audit(audit)
                .recursive_protection(recursive);
            live(config, steps, seed)
        });
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

struct Sums {
    own: [u64; PARENTS.len()],
    max: [u64; PARENTS.len()],
    refused: [u64; PARENTS.len()],
}

fn levels(of: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(of), |&of| PARENTS[of])
}

impl Sums {
    fn live(&self, top: usize) -> u64 {
        let within = (0..PARENTS.len()).filter(|&of| levels(of).any(|level| level == top));
        within.map(|of| self.own[of]).sum()
    }

    /// The lowest level that has no room for so many more.
    fn full(&self, of: usize, bytes: u64) -> Option<usize> {
        levels(of)
            .find(|&level| bytes > 0 && self.live(level).saturating_add(bytes) > self.max[level])
    }
}

fn live(config: CounterConfig, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut counters = vec![PageCounter::root(config)];
    for parent in PARENTS.into_iter().flatten() {
        let name = format!("{}", counters.len());
        let child = counters[parent].named_child(&name);
        ensure_eq!(child.name(), name, "the name of a counter");
        ensure!(
            child.parent().as_ref() == Some(&counters[parent]),
            "its parent"
        );
        counters.push(child);
    }
    let mut sums = Sums {
        own: [0; PARENTS.len()],
        max: [u64::MAX; PARENTS.len()],
        refused: [0; PARENTS.len()],
    };
    for _ in 0..steps {
        let (of, bytes) = (
            rng.random_range(0..PARENTS.len()),
            rng.random_range(0..=MOST),
        );
        let counter = &counters[of];
        match rng.random_range(0..7) {
            0..=1 => {
                let charged = if rng.random() {
                    counter.charge(bytes)
                } else {
                    counter.try_charge(bytes)
                };
                let full = sums.full(of, bytes);
                ensure_eq!(
                    charged.is_ok(),
                    full.is_none(),
                    "{charged:?} of {bytes}, full: {full:?}"
                );
                match full {
                    None => sums.own[of] += bytes,
                    Some(level) => sums.refused[level] += 1,
                }
            }
            2 => {
                counter.force_charge(bytes);
                sums.own[of] += bytes;
            }
            3 | 4 => {
                let gone = bytes.min(sums.own[of]);
                counter.uncharge(gone);
                sums.own[of] -= gone;
            }
            5 => {
                let max = if bytes == 0 { u64::MAX } else { bytes * 4 };
                let set = counter.set_max(max);
                ensure_eq!(set.is_ok(), sums.live(of) <= max, "{set:?} to {max}");
                if set.is_ok() {
                    sums.max[of] = max;
                }
            }
            _ => {
                let before = counters[0].usage();
                let drained = counters[0].drain();
                let fell = before - counters[0].usage();
                ensure_eq!(drained, fell, "drained");
            }
        }
        for (of, counter) in counters.iter().enumerate() {
            let found = (counter.live(), counter.max(), counter.refused_count());
            let known = (sums.live(of), sums.max[of], sums.refused[of]);
            ensure_eq!(found, known, "(live, max, refusals) of counter {of}");
        }
        let verdict = counters[0].verify();
        ensure!(verdict.is_ok(), "{verdict}");
    }
    // Those that end with bytes give them back.
    while let Some(last) = counters.pop() {
        let of = counters.len();
        let bytes = if rng.random() { sums.own[of] } else { 0 };
        last.uncharge(bytes);
        drop(last);
        sums.own[of] = 0;
        if let Some(root) = counters.first() {
            ensure_eq!(root.live(), sums.live(0), "live after the end of {of}");
        }
    }
    Ok(())
}
