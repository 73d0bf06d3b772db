//! Many counters beside memory, in a tree of its own: sets of charges that are made or refused as
//! one, and what else is charged to a counter of a group, by threads that come and go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use memcg::{
    Bytes, Charge, ChargeError, CounterKey, Group, GroupCounter, Limits, PageCounter, Reclaim,
    ReclaimContext, ReclaimPriority, Registration, Runtime, Unit,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::configuration::limit;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

/// The most counters, memory among them.
const COUNTERS: usize = 8;

/// Groups by number: the root, two below it, and one below the first of these.
const PARENTS: [usize; 4] = [0, 0, 0, 1];

const HELD_MAX: usize = 40;

impl Life {
    pub(super) fn charge_sets(&mut self, op: &Op) {
        let What::Sets(steps, seed) = op.1 else {
            unreachable!("sets of charges");
        };
        if let Err(fault) = self.actor(op).run(move || live(steps, seed)) {
            panic!("{fault}");
        }
    }
}

/// What is held of a counter, and the levels that count it.
struct Held<C> {
    levels: Vec<usize>,
    counter: usize,
    charge: C,
}

struct Sets {
    rng: Xoshiro256PlusPlus,
    runtime: Runtime,
    keys: Vec<CounterKey>,
    names: Vec<String>,
    groups: Vec<Group>,
    /// Of each group and counter.
    max: [[u64; COUNTERS]; PARENTS.len()],
    refused: [[u64; COUNTERS]; PARENTS.len()],
    held: Vec<Held<Charge>>,
    /// Without a guard.
    raw: Vec<Held<u64>>,
    /// Memory of that group that is there to be reclaimed for a set.
    spare: Option<(usize, Arc<Spare>, Registration)>,
}

/// It gives what it is asked for.
struct Spare(Mutex<Charge>);

impl Spare {
    fn held(&self) -> MutexGuard<'_, Charge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Spare {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        self.held().shrink(Bytes(want))
    }
}

fn live(steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let batch = pick(&mut rng, &[0, 16, 64, 1_024]);
    let mut builder = Runtime::builder()
        .batch(Bytes(batch))
        .adaptive(rng.random())
        .audit(true);
    let many = rng.random_range(2..=COUNTERS);
    let names: Vec<String> = (1..many).map(|number| format!("c{number}")).collect();
    let mut keys = vec![CounterKey::MEMORY];
    for name in &names {
        let unit = pick(&mut rng, &[Unit::Bytes, Unit::Events]);
        keys.push(builder.counter(name, unit));
    }
    let runtime = builder.build().expect("a configuration that holds");
    let mut groups = vec![runtime.root()];
    for number in 1..PARENTS.len() {
        let made = groups[PARENTS[number]].create(number as u64, Limits::new());
        groups.push(made.expect("nothing is in the way"));
    }
    for group in &groups {
        for &key in &keys {
            let counter = group.counter(key).map_err(|error| error.to_string())?;
            counter.set_batch(batch);
        }
    }
    let mut sets = Sets {
        rng,
        runtime,
        keys,
        names,
        groups,
        max: [[u64::MAX; COUNTERS]; PARENTS.len()],
        refused: [[0; COUNTERS]; PARENTS.len()],
        held: Vec::new(),
        raw: Vec::new(),
        spare: None,
    };
    if sets.rng.random() {
        let of = sets.rng.random_range(0..2);
        let spare = Arc::new(Spare(Mutex::new(sets.groups[of].force_charge(0))));
        let asked = Arc::clone(&spare) as Arc<dyn Reclaim>;
        let registration = sets.groups[of].register_reclaimer(asked, ReclaimPriority::NORMAL);
        sets.spare = Some((of, spare, registration));
    }
    for _ in 0..steps {
        sets.step()?;
        sets.agree()?;
    }
    sets.end()
}

/// As an array where there is one of that length, or as a slice.
fn make(
    group: &Group,
    set: &[(CounterKey, Bytes)],
    is_slice: bool,
    at_once: bool,
) -> Result<Vec<Charge>, ChargeError> {
    macro_rules! arrays {
        ($($many:literal)*) => {
            match set.len() {
                $($many if !is_slice => {
                    let set: [(CounterKey, Bytes); $many] = set.try_into().expect("so many");
                    let made = match at_once {
                        true => group.try_charge_set(&set),
                        false => group.charge_set(&set),
                    };
                    made.map(|made| made.into_iter().collect())
                })*
                _ => match at_once {
                    true => group.try_charge_set(set),
                    false => group.charge_set(set),
                }
                .map(|made| made.into_iter().collect()),
            }
        };
    }
    arrays!(1 2 3 4 5 6 7 8)
}

impl Sets {
    fn levels(group: usize) -> Vec<usize> {
        let mut levels = vec![group];
        while let Some(&level) = levels.last().filter(|&&level| level > 0) {
            levels.push(PARENTS[level]);
        }
        levels
    }

    fn live(&self, level: usize, counter: usize) -> u64 {
        let is_here = |levels: &[usize], of: usize| of == counter && levels.contains(&level);
        let held = self
            .held
            .iter()
            .filter(|it| is_here(&it.levels, it.counter));
        let raw = self.raw.iter().filter(|it| is_here(&it.levels, it.counter));
        let spare = self.spare.iter().filter(|(of, ..)| {
            let levels = Sets::levels(*of);
            is_here(&levels, 0)
        });
        held.map(|it| it.charge.bytes()).sum::<u64>()
            + raw.map(|it| it.charge).sum::<u64>()
            + spare.map(|(_, spare, _)| spare.held().bytes()).sum::<u64>()
    }

    /// The levels of a group, below `top`, that have no room for so many more.
    fn full(&self, group: usize, counter: usize, amount: u64, top: Option<usize>) -> Vec<usize> {
        let levels = Sets::levels(group).into_iter();
        let levels = levels.take_while(|&level| Some(level) != top);
        let is_full = |&level: &usize| {
            let most = self.max[level][counter].min(PageCounter::USAGE_MAX);
            self.live(level, counter) + amount > most
        };
        levels.filter(is_full).filter(|_| amount > 0).collect()
    }

    fn counter(&self, group: usize, counter: usize) -> GroupCounter {
        self.groups[group]
            .counter(self.keys[counter])
            .expect("declared")
    }

    fn name(&self, counter: usize) -> Option<&str> {
        counter.checked_sub(1).map(|at| self.names[at].as_str())
    }

    /// A refusal names a level that is full, and what was asked of its counter.
    fn is_refused(
        &mut self,
        error: &ChargeError,
        asked: &[(usize, u64)],
        full: impl Fn(&Sets, usize) -> Vec<usize>,
    ) -> Holds {
        let Some(refusal) = error.over_limit() else {
            return Err(format!("{error}, of a group that is online"));
        };
        let of = asked.iter().find(|(counter, amount)| {
            self.name(*counter) == refusal.counter() && *amount == refusal.requested()
        });
        let Some(&(counter, _)) = of else {
            return Err(format!("{error}, and {asked:?} are asked for"));
        };
        let level = self.groups.iter().position(|it| it == refusal.group());
        let full = full(self, counter);
        let Some(level) = level.filter(|level| full.contains(level)) else {
            return Err(format!("{error}, and {full:?} are full"));
        };
        self.refused[level][counter] += 1;
        Ok(())
    }

    /// By this thread, or by one that ends with it and leaves its credit.
    fn by_some_thread<R: Send>(&mut self, job: impl FnOnce() -> R + Send) -> R {
        if self.rng.random_bool(0.15) {
            thread::scope(|scope| scope.spawn(job).join()).expect("no panic")
        } else {
            job()
        }
    }

    fn size(&mut self) -> u64 {
        pick(&mut self.rng, &[0, 1, 5, 20, 50, 100])
    }

    // === Steps ===

    fn step(&mut self) -> Holds {
        let group = self.rng.random_range(0..PARENTS.len());
        let counter = self.rng.random_range(0..self.keys.len());
        match self.rng.random_range(0..14) {
            0..=3 if self.held.len() < HELD_MAX => self.charge_set(group)?,
            0..=5 if !self.held.is_empty() => {
                let at = self.rng.random_range(0..self.held.len());
                self.change(at)?;
            }
            6..=7 => self.charge_raw(group, counter)?,
            8..=9 => {
                let above = pick(&mut self.rng, &[0, 10, 100, u64::MAX]);
                let max = self.live(group, counter).saturating_add(above);
                let of = self.counter(group, counter);
                let set = if self.rng.random() {
                    of.set_max(limit(max))
                } else {
                    of.set_max_now(limit(max))
                };
                ensure_eq!(set, Ok(0), "above a max that is no lower than what is live");
                self.max[group][counter] = max;
            }
            10 => self.replace()?,
            11 => {
                let of = self.counter(group, counter);
                of.drain();
                let live = self.live(group, counter);
                ensure_eq!(of.usage(), live, "used after a drain of {of:?}");
            }
            12 => {
                self.held.clear();
            }
            _ => _ = self.runtime.release_thread_credit(),
        }
        Ok(())
    }

    /// Some memory may be reclaimed for it.
    fn charge_set(&mut self, group: usize) -> Holds {
        let spare = pick(&mut self.rng, &[0, 20, 100]);
        let resize = |sets: &Sets, bytes: u64| {
            let spare = sets.spare.iter();
            spare.for_each(|(_, spare, _)| spare.held().force_resize(Bytes(bytes)));
        };
        resize(self, spare);
        let charged = self.charge_set_beside(group);
        resize(self, 0);
        charged
    }

    fn charge_set_beside(&mut self, group: usize) -> Holds {
        let many = self.rng.random_range(1..=self.keys.len());
        let mut asked: Vec<(usize, u64)> = Vec::new();
        while asked.len() < many {
            let counter = self.rng.random_range(0..self.keys.len());
            if asked.iter().all(|&(other, _)| other != counter) {
                let amount = self.size();
                asked.push((counter, amount));
            }
        }
        let set: Vec<(CounterKey, Bytes)> = asked
            .iter()
            .map(|&(counter, amount)| (self.keys[counter], Bytes(amount)))
            .collect();
        let (is_slice, at_once) = (self.rng.random(), self.rng.random());
        let of = self.groups[group].clone();
        let found = self.by_some_thread(|| make(&of, &set, is_slice, at_once));
        let amount_of = |counter: usize| {
            let of = asked.iter().find(|(other, _)| *other == counter);
            of.map_or(0, |(_, amount)| *amount)
        };
        match found {
            Ok(made) => {
                for &(counter, amount) in &asked {
                    let full = self.full(group, counter, amount, None);
                    ensure!(
                        full.is_empty(),
                        "{asked:?} are charged, and {full:?} have no room for {counter}"
                    );
                }
                let amounts: Vec<u64> = made.iter().map(Charge::bytes).collect();
                let known: Vec<u64> = asked.iter().map(|(_, amount)| *amount).collect();
                ensure_eq!(amounts, known, "the charges of a set");
                for (charge, (counter, _)) in made.into_iter().zip(asked) {
                    let levels = Sets::levels(group);
                    self.held.push(Held {
                        levels,
                        counter,
                        charge,
                    });
                }
                Ok(())
            }
            Err(error) => self.is_refused(&error, &asked, |sets, counter| {
                sets.full(group, counter, amount_of(counter), None)
            }),
        }
    }

    /// One charge grows, shrinks, ends or moves.
    fn change(&mut self, at: usize) -> Holds {
        let amount = self.size();
        let Held {
            levels,
            counter,
            mut charge,
        } = self.held.swap_remove(at);
        let (from, held) = (levels[0], charge.bytes());
        // One whose group has ended grows no more.
        let is_online = !charge.group().is_offline();
        let to = self.rng.random_range(0..PARENTS.len());
        let (mut levels, how) = (levels, self.rng.random_range(0..5));
        match how {
            0 if is_online => {
                let full = self.full_beside(from, (counter, amount), held, None);
                match charge.grow(Bytes(amount)) {
                    Ok(()) => ensure!(full.is_empty(), "{amount} more, and {full:?} are full"),
                    Err(error) => {
                        self.is_refused(&error, &[(counter, amount)], |_, _| full.clone())?;
                    }
                }
            }
            1 => _ = charge.shrink(Bytes(amount)),
            2 if is_online => {
                // What both have in common holds it already.
                let common = Sets::levels(to).into_iter().find(|it| levels.contains(it));
                let full = self.full_beside(to, (counter, held), 0, common);
                let target = self.groups[to].clone();
                let moved = self.by_some_thread(|| charge.transfer(&target));
                match moved {
                    Ok(()) => {
                        ensure!(
                            full.is_empty() || to == from,
                            "{held} move to {to}, and {full:?} are full"
                        );
                        levels = Sets::levels(to);
                    }
                    Err(error) => {
                        self.is_refused(&error, &[(counter, held)], |_, _| full.clone())?;
                    }
                }
            }
            3 => return Ok(()),
            _ => {}
        }
        self.held.push(Held {
            levels,
            counter,
            charge,
        });
        Ok(())
    }

    /// The levels that have no room for so many, beside a charge that is in hand.
    fn full_beside(
        &self,
        group: usize,
        (counter, amount): (usize, u64),
        held: u64,
        top: Option<usize>,
    ) -> Vec<usize> {
        if amount == 0 {
            return Vec::new();
        }
        self.full(group, counter, amount + held, top)
    }

    fn charge_raw(&mut self, group: usize, counter: usize) -> Holds {
        let amount = self.size();
        let of = self.counter(group, counter);
        let levels = Sets::levels(group);
        let here = self
            .raw
            .iter()
            .position(|it| it.counter == counter && it.levels == levels);
        match (self.rng.random_range(0..3), here) {
            (0, _) => {
                let full = self.full(group, counter, amount, None);
                let charged = self.by_some_thread(|| of.raw().charge(Bytes(amount)));
                match charged {
                    Ok(()) => {
                        ensure!(
                            full.is_empty(),
                            "{amount} without a guard: {full:?} are full"
                        );
                        self.keep_raw(levels, counter, amount);
                    }
                    Err(error) => {
                        self.is_refused(&error, &[(counter, amount)], |_, _| full.clone())?;
                    }
                }
            }
            (1, _) => {
                let charged = of.raw().force_charge(Bytes(amount));
                ensure_eq!(charged, amount, "charged by force");
                self.keep_raw(levels, counter, amount);
            }
            (_, Some(at)) => {
                let amount = amount.min(self.raw[at].charge);
                self.by_some_thread(|| of.raw().uncharge(Bytes(amount)));
                self.raw[at].charge -= amount;
                if self.raw[at].charge == 0 {
                    self.raw.swap_remove(at);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn keep_raw(&mut self, levels: Vec<usize>, counter: usize, amount: u64) {
        let is_here = |it: &&mut Held<u64>| it.counter == counter && it.levels == levels;
        match self.raw.iter_mut().find(is_here) {
            Some(held) => held.charge += amount,
            None if amount > 0 => self.raw.push(Held {
                levels,
                counter,
                charge: amount,
            }),
            None => {}
        }
    }

    /// A group without children ends, with credit of some of its counters, and another one takes its
    /// place.
    fn replace(&mut self) -> Holds {
        let group = pick(&mut self.rng, &[2, 3]);
        // Bytes without a guard are given back through a handle.
        for held in self.raw.iter().filter(|it| it.levels.contains(&group)) {
            let of = self.counter(group, held.counter);
            of.raw().uncharge(Bytes(held.charge));
        }
        self.raw.retain(|it| !it.levels.contains(&group));
        let ended = self.groups[group].offline();
        ensure!(ended.is_ok(), "nothing is below: {ended:?}");
        let refused = make(&self.groups[group], &[(self.keys[1], Bytes(1))], true, true);
        let is_offline = refused.as_ref().is_err_and(ChargeError::is_offline);
        ensure!(is_offline, "{refused:?} of a group that has ended");
        if self.rng.random() {
            self.held.retain(|held| !held.levels.contains(&group));
        }
        for held in &mut self.held {
            held.levels.retain(|&level| level != group);
        }
        let parent = self.groups[PARENTS[group]].clone();
        self.groups[group] = parent.clone();
        let made = parent.create(group as u64, Limits::new());
        self.groups[group] = made.map_err(|error| error.to_string())?;
        self.max[group] = [u64::MAX; COUNTERS];
        self.refused[group] = [0; COUNTERS];
        Ok(())
    }

    // === What must hold ===

    fn agree(&self) -> Holds {
        for (level, group) in self.groups.iter().enumerate() {
            for counter in 0..self.keys.len() {
                let of = self.counter(level, counter);
                let (live, usage) = (of.live(), of.usage());
                let known = (
                    self.live(level, counter),
                    self.max[level][counter],
                    self.refused[level][counter],
                );
                let found = (live, of.max(), of.refused_count());
                ensure_eq!(found, known, "(live, max, refused) of {of:?} in {group}");
                ensure!(
                    usage >= live && usage - live <= of.stocked_bound(),
                    "{usage} of {of:?} are used, and {live} live"
                );
            }
        }
        Ok(())
    }

    /// Nothing is left of what all have held.
    fn end(mut self) -> Holds {
        self.spare = None;
        self.held.clear();
        for held in std::mem::take(&mut self.raw) {
            let of = self.counter(held.levels[0], held.counter);
            of.raw().uncharge(Bytes(held.charge));
        }
        self.agree()?;
        let verdict = self.runtime.verify();
        ensure!(verdict.is_ok(), "{verdict}");
        self.groups.truncate(1);
        self.groups[0]
            .children()
            .iter()
            .for_each(Group::offline_tree);
        self.runtime.settle();
        ensure_eq!(
            self.runtime.dying_count(),
            0,
            "groups that are not done with"
        );
        for counter in 0..self.keys.len() {
            let of = self.counter(0, counter);
            of.drain();
            of.set_batch(0);
            let left = (of.usage(), of.stocked_bound());
            ensure_eq!(left, (0, 0), "(used, credit at most) of {of:?}");
        }
        Ok(())
    }
}
