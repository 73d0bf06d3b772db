//! Levels of pressure by usage, in a tree of its own without credit, which may be deep: a level goes
//! up at its threshold, and down a sixteenth below it, and each change is an event. And each group
//! knows its peak.

use memcg::{Bytes, Charge, Event, Group, Limits, PressureLevel, Runtime};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::configuration::limit;
use crate::holds::{Holds, ensure_eq};
use crate::script::{Op, What, pick};

impl Life {
    pub(super) fn mark_pressure(&mut self, op: &Op) {
        let What::Marks(steps, seed) = op.1 else {
            unreachable!("levels of pressure");
        };
        if let Err(fault) = self.actor(op).run(move || live(steps, seed)) {
            panic!("{fault}");
        }
    }
}

/// What the twin has of a group.
#[derive(Clone, Copy)]
struct Marked {
    max: u64,
    /// Percents of the max; 0: none.
    from: [u8; 2],
    shown: usize,
    changes: u64,
    peak: u64,
}

impl Marked {
    /// From so many bytes on it is at that level, if it is below it, or was so far.
    fn is_at(&self, level: usize, usage: u64) -> bool {
        let percent = self.from[level - 1];
        let from = (u128::from(self.max) * u128::from(percent) / 100).max(1) as u64;
        let from = if self.shown >= level {
            from - from / 16
        } else {
            from
        };
        percent > 0 && self.max < u64::MAX && usage >= from
    }

    fn look(&mut self, usage: u64) {
        self.peak = self.peak.max(usage);
        let level = (1..3).rev().find(|&level| self.is_at(level, usage));
        let level = level.unwrap_or(0);
        self.changes += u64::from(level != self.shown);
        self.shown = level;
    }
}

fn live(steps: u8, seed: u64) -> Holds {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).count_stalls(false).build();
    let runtime = runtime.expect("a configuration that holds");
    let mut groups = vec![runtime.root()];
    // One below the other.
    let many = pick(rng, &[2, 3, 5, 14]);
    for number in 1..many {
        let made = groups[number - 1].create(number as u64, Limits::new());
        groups.push(made.expect("nothing is in the way"));
    }
    let new = Marked {
        max: u64::MAX,
        from: [0; 2],
        shown: 0,
        changes: 0,
        peak: 0,
    };
    let mut twin = vec![new; many];
    let mut held: Vec<(usize, Charge)> = Vec::new();
    for _ in 0..u32::from(steps) * 2 {
        let of = rng.random_range(0..many);
        let group = &groups[of];
        let bytes = rng.random_range(1..200_u64);
        match rng.random_range(0..10) {
            0..=3 => held.push((of, group.force_charge(Bytes(bytes)))),
            4..=6 if !held.is_empty() => {
                let at = rng.random_range(0..held.len());
                held[at].1.shrink(Bytes(bytes));
                if held[at].1.bytes() == 0 {
                    drop(held.swap_remove(at));
                }
            }
            7 => {
                let from = [pick(rng, &[0, 10, 50, 80]), pick(rng, &[0, 50, 90, 100])];
                let limits = Limits::new().pressure_levels(from[0], from[1]);
                let set = group.set_limits(limits);
                set.map_err(|error| error.to_string())?;
                twin[of].from = from;
            }
            8 => {
                let max = pick(rng, &[0, 100, 1_000, 1_600, u64::MAX]);
                let set = group.memory().set_max_now(limit(max));
                set.map_err(|error| error.to_string())?;
                twin[of].max = max;
            }
            // Limits that only count have pressure all the same.
            _ => group.set_observe_only(rng.random()),
        }
        for (number, group) in groups.iter().enumerate() {
            let usage = held.iter().filter(|(of, _)| *of >= number);
            let usage = usage.map(|(_, charge)| charge.bytes()).sum();
            twin[number].look(usage);
            ensure_eq!(group.usage(), usage, "used by {group}");
        }
        agree(&groups, &twin)?;
    }
    Ok(())
}

fn agree(groups: &[Group], twin: &[Marked]) -> Holds {
    for (number, group) in groups.iter().enumerate() {
        // One without thresholds shows the level of the nearest above that has some.
        let shows = (0..=number).rev().find(|&level| twin[level].from != [0; 2]);
        let levels = [
            PressureLevel::Normal,
            PressureLevel::Elevated,
            PressureLevel::Critical,
        ];
        let known = levels[shows.map_or(0, |level| twin[level].shown)];
        let Marked {
            max,
            from,
            changes,
            peak,
            ..
        } = twin[number];
        let found = group.pressure_level();
        ensure_eq!(
            found,
            known,
            "{group} uses {} of {max}, from {from:?}",
            group.usage()
        );
        let counted = group.events().local().get(Event::PressureLevel);
        ensure_eq!(counted, changes, "changes of the level of {group}");
        ensure_eq!(group.peak(), peak, "the peak of {group}");
    }
    Ok(())
}
