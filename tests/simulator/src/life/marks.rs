//! Levels of pressure by usage, in a tree of its own without credit, which may be deep: a level goes
//! up at its threshold, and down a sixteenth below it, and each change is an event. And each group
//! knows its peak, and the events that charges of all kinds count: above which limits they went, and
//! where they were refused.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memcg::simulated_time as clock;
use memcg::{
    Bytes, Charge, ChargeError, Event, Group, Limits, OnFull, OomPolicy, PageCounter,
    PressureLevel, Runtime,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::configuration::limit;
use crate::holds::{Holds, ensure_eq};
use crate::script::{Op, What, pick};
use crate::threads::rest;

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
    high: u64,
    /// Its limits and those below are only observed.
    observes: bool,
    counted: [u64; COUNTED.len()],
}

/// Events that charges count.
const COUNTED: [Event; 6] = [
    Event::High,
    Event::Max,
    Event::Oom,
    Event::Overcharge,
    Event::Observed,
    Event::TimedOut,
];
const HIGH: usize = 0;
const MAX: usize = 1;
const OOM: usize = 2;
const OVERCHARGE: usize = 3;
const OBSERVED: usize = 4;
const TIMED_OUT: usize = 5;

/// How a charge is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Force,
    Plain,
    Reclaim,
    Wait,
    Now,
    IfRoom,
    /// A task that is polled once, and dropped where it waits.
    Task,
    /// The same, with no time to wait.
    TaskInTime,
    /// The same, until its time is over.
    TaskForAWhile,
    /// It need not be told of a delay.
    Undelayed,
}

/// A task waits for so long.
const WHILE: Duration = Duration::from_millis(1);

const WAYS: [Way; 10] = [
    Way::Force,
    Way::Plain,
    Way::Reclaim,
    Way::Wait,
    Way::Now,
    Way::IfRoom,
    Way::Task,
    Way::TaskInTime,
    Way::TaskForAWhile,
    Way::Undelayed,
];

impl Way {
    /// `None`: it waits. `begun` is called once it does.
    fn charge(
        self,
        group: &Group,
        bytes: u64,
        begun: impl FnOnce(),
    ) -> Option<Result<Charge, ChargeError>> {
        let bytes = Bytes(bytes);
        let task = match self {
            Way::Force => return Some(Ok(group.force_charge(bytes))),
            Way::Plain => return Some(group.charge(bytes)),
            Way::Reclaim => return Some(group.charge_with(bytes, OnFull::Reclaim)),
            Way::Wait => return Some(group.charge_with(bytes, OnFull::Wait(Duration::ZERO))),
            Way::Now => return Some(group.charge_with(bytes, OnFull::Now)),
            Way::IfRoom => return Some(group.charge_with(bytes, OnFull::IfRoom)),
            Way::Task => group.charge_async(bytes),
            Way::TaskInTime => group.charge_async(bytes).timeout(Duration::ZERO),
            Way::TaskForAWhile => group.charge_async(bytes).timeout(WHILE),
            Way::Undelayed => group.charge_async(bytes).undelayed(),
        };
        let mut task = pin!(task);
        let context = &mut Context::from_waker(Waker::noop());
        let mut polled = task.as_mut().poll(context);
        if polled.is_pending() {
            begun();
            if self == Way::TaskForAWhile {
                clock::advance(WHILE);
                polled = task.poll(context);
            }
        }
        match polled {
            Poll::Ready(charged) => Some(charged),
            Poll::Pending => None,
        }
    }
}

/// The groups are one below the other. True: the charge is made. What each level counts of it, the
/// twin counts, too.
fn follow(
    twin: &mut [Marked],
    used: &[u64],
    (of, bytes): (usize, u64),
    way: Way,
    chooses: bool,
) -> bool {
    let is_observed = |twin: &[Marked], level: usize| twin[..=level].iter().any(|it| it.observes);
    let most = |twin: &[Marked], level: usize| match is_observed(twin, level) {
        true => PageCounter::USAGE_MAX,
        false => twin[level].max,
    };
    let is_full = |level: &usize| used[*level] + bytes > most(twin, *level);
    let full = (0..=of).rev().find(is_full);
    if let Some(full) = full.filter(|_| way != Way::Force) {
        if matches!(way, Way::Now | Way::IfRoom) {
            return false;
        }
        twin[full].counted[MAX] += 1;
        // The first that never has room for so much refuses those that would wait, in the place of
        // one that has.
        let never = (0..=of).rev().find(|&level| bytes > most(twin, level));
        let waits = !matches!(way, Way::Plain | Way::Reclaim);
        match never.filter(|_| waits) {
            Some(_) if bytes > most(twin, full) => twin[full].counted[OOM] += 1,
            Some(never) => twin[never].counted[OOM] += 1,
            // It is in line, and a victim is chosen for it, if any may be.
            None if matches!(way, Way::Task | Way::Undelayed) => {
                twin[full].counted[OOM] += u64::from(chooses);
            }
            None => {
                twin[full].counted[TIMED_OUT] += u64::from(waits);
                twin[full].counted[OOM] += 1;
            }
        }
        return false;
    }
    let mut is_high = false;
    for level in 0..=of {
        let (usage, is_observed) = (used[level] + bytes, is_observed(twin, level));
        let it = &mut twin[level];
        if usage > it.max {
            let events: &[usize] = if is_observed {
                &[MAX, OBSERVED]
            } else {
                &[OVERCHARGE]
            };
            events.iter().for_each(|&event| it.counted[event] += 1);
        }
        if usage > it.high {
            is_high |= !is_observed;
            let counts = !matches!(way, Way::Force | Way::Now | Way::IfRoom);
            it.counted[HIGH] += u64::from(counts);
        }
    }
    let goes_back = is_high && way == Way::IfRoom;
    if goes_back {
        // It was there for a moment.
        let levels = twin[..=of].iter_mut().zip(used);
        levels.for_each(|(it, used)| it.look(used + bytes));
    }
    !goes_back
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
    // No charge is delayed: what it counts it counts all the same.
    let runtime = Runtime::builder().batch(0).count_stalls(false);
    let runtime = runtime.delay_max(Duration::ZERO).build();
    let runtime = runtime.expect("a configuration that holds");
    let mut groups = vec![runtime.root()];
    // One below the other.
    let many = pick(rng, &[2, 3, 5, 14]);
    for number in 1..many {
        let made = groups[number - 1].create(number as u64, Limits::new());
        groups.push(made.expect("nothing is in the way"));
    }
    // Nobody has a hook, so nobody is cancelled. A task leaves it to another thread to look for one.
    let chooses = rng.random();
    if chooses {
        groups[0].set_oom_policy(OomPolicy::Choose);
    }
    let new = Marked {
        max: u64::MAX,
        from: [0; 2],
        shown: 0,
        changes: 0,
        peak: 0,
        high: u64::MAX,
        observes: false,
        counted: [0; COUNTED.len()],
    };
    let mut twin = vec![new; many];
    let mut held: Vec<(usize, Charge)> = Vec::new();
    for _ in 0..u32::from(steps) * 2 {
        let of = rng.random_range(0..many);
        let group = &groups[of];
        let bytes = rng.random_range(1..200_u64);
        match rng.random_range(0..12) {
            0..=3 => {
                let way = pick(rng, &WAYS);
                let used: Vec<u64> = groups.iter().map(Group::usage).collect();
                let is_made = follow(&mut twin, &used, (of, bytes), way, chooses);
                let charged = way.charge(group, bytes, || {
                    if chooses {
                        // The thread that looks for victims has counted it by then.
                        rest();
                    }
                });
                ensure_eq!(
                    matches!(charged, Some(Ok(_))),
                    is_made,
                    "{bytes} bytes in {group}, {way:?}: {charged:?}"
                );
                held.extend(charged.and_then(Result::ok).map(|charge| (of, charge)));
            }
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
            9 => {
                let high = pick(rng, &[0, 50, 400, 1_000, u64::MAX]);
                let set = group.set_limits(Limits::new().high(limit(high)));
                set.map_err(|error| error.to_string())?;
                twin[of].high = high;
            }
            // Limits that only count have pressure all the same.
            _ => {
                twin[of].observes = rng.random();
                group.set_observe_only(twin[of].observes);
            }
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
        let local = group.events().local();
        let found = COUNTED.map(|event| local.get(event));
        let known = twin[number].counted;
        ensure_eq!(found, known, "{COUNTED:?} of {group}");
        ensure_eq!(group.peak(), peak, "the peak of {group}");
    }
    Ok(())
}
