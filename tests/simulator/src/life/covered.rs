//! Groups whose charges pay for what an allocator hands out: usage is the larger of the two.
//!
//! Three of them lie one below the other, and a fourth below the highest; each may have a max, and
//! one that has none below it may end. A charge waits for room beside what is allocated.

// What an allocator gives back to a group is its word for it.
#![allow(unsafe_code)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use memcg::allocator::{Owner, catch_up, charge_unowned, charge_unowned_to, uncharge_unowned};
use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, Limits, Runtime};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use super::told::Rung;
use crate::configuration::limit;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};
use crate::threads::rest;

/// The most that one step charges or allocates.
const MOST: u64 = 300;

impl Life {
    /// Groups of their own are made below a group, and end. The twin has none of them: they leave
    /// nothing.
    pub(super) fn cover(&mut self, op: &Op) {
        let What::Cover(group, steps, seed) = op.1 else {
            unreachable!("groups that cover");
        };
        // What others charge meanwhile would be in the sums above.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let Some(group) = self.group(group) else {
            return;
        };
        // Where limits only count nothing is refused.
        if self.twin.is_observed(group) {
            return;
        }
        // What an allocator hands out is charged by force.
        if self.twin.margin(group, 0, None) < u64::from(steps) * MOST {
            return;
        }
        self.keeps = true;
        let lived = self.on(op, group, move |group| {
            if seed % 3 == 0 {
                live_with_wide_stocks(steps, seed)
            } else {
                live(group, steps, seed)
            }
        });
        self.settle_accounts();
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// What an allocator has handed out.
struct Object {
    owner: Owner,
    bytes: u64,
    level: usize,
}

impl Object {
    /// It is allocated in the group of this number.
    fn allocate(groups: &[Group], level: usize, bytes: u64) -> Object {
        Object {
            owner: groups[level].run(|| Owner::charge(bytes as usize)),
            bytes,
            level,
        }
    }

    fn free(self) {
        // SAFETY: charged for these bytes, and given back once.
        unsafe { self.owner.uncharge(self.bytes as usize) };
    }
}

/// In a runtime of its own, whose threads keep much credit however near a max is.
fn live_with_wide_stocks(steps: u8, seed: u64) -> Holds {
    let builder = Runtime::builder().batch(Bytes(1_024)).adaptive(false);
    let runtime = builder.build().map_err(|error| error.to_string())?;
    live(&runtime.root(), steps, seed)?;
    let verdict = runtime.verify();
    ensure!(verdict.is_ok(), "{verdict}");
    Ok(())
}

/// Levels by number: those that cover, from the lowest to the highest, and a second one below the
/// highest; the one above them, which does not; and one beside them, which does not either.
const TOP: usize = 2;
const SIDE: usize = 3;
const COVER: usize = 4;
const ABOVE: usize = COVER;
const BESIDE: usize = COVER + 1;
const MANY: usize = COVER + 2;

/// The nearest level above of each; that of the highest is a group of the run.
const PARENTS: [usize; MANY] = [1, TOP, ABOVE, TOP, MANY, ABOVE];

/// A level, and those above it.
fn levels_of(level: usize) -> impl Iterator<Item = usize> {
    let above = |&level: &usize| Some(PARENTS[level]).filter(|&above| above < MANY);
    std::iter::successors(Some(level), above)
}

/// What the levels themselves have: bytes that are reserved, and bytes that are allocated.
#[derive(Clone, Copy, Default)]
struct Sums {
    reserved: [u64; MANY],
    allocated: [u64; MANY],
}

impl Sums {
    /// Of a level, and of those below it.
    fn all_reserved(&self, level: usize) -> u64 {
        within(level).map(|of| self.reserved[of]).sum()
    }

    fn all_allocated(&self, level: usize) -> u64 {
        within(level).map(|of| self.allocated[of]).sum()
    }

    fn unpaid(&self, level: usize) -> u64 {
        // What lies above those that cover has what is unpaid there.
        let level = if level == ABOVE { TOP } else { level };
        let allocated = self.all_allocated(level);
        allocated.saturating_sub(self.all_reserved(level))
    }

    fn live(&self, level: usize) -> u64 {
        match level {
            BESIDE => self.reserved[BESIDE],
            ABOVE => self.live(TOP) + self.reserved[ABOVE] + self.reserved[BESIDE],
            _ => self.all_reserved(level).max(self.all_allocated(level)),
        }
    }

    /// These come after `before`, by a charge at a level: none is above its max that has risen.
    fn fit(&self, before: &Sums, max: &[u64; MANY]) -> bool {
        (0..MANY).all(|level| self.live(level) <= max[level].max(before.live(level)))
    }
}

/// A level, and all below it.
fn within(top: usize) -> impl Iterator<Item = usize> {
    (0..MANY).filter(move |&level| levels_of(level).any(|above| above == top))
}

/// A charge that waits for its bytes.
struct Waits {
    future: Pin<Box<ChargeFuture>>,
    rung: Arc<Rung>,
    level: usize,
    bytes: u64,
}

impl Waits {
    fn poll(&mut self) -> Poll<Result<Charge, ChargeError>> {
        let waker = Waker::from(Arc::clone(&self.rung));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Groups that cover.
struct Covers {
    rng: Xoshiro256PlusPlus,
    levels: Vec<Group>,
    max: [u64; MANY],
    has_ended: [bool; MANY],
    sums: Sums,
    charges: Vec<(usize, Charge)>,
    objects: Vec<Object>,
    waits: Option<Waits>,
}

fn live(group: &Group, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let before = group.live();
    let maxes = [u64::MAX, u64::MAX, 600, 1_000, 2_000];
    let max: [u64; MANY] = std::array::from_fn(|_| pick(&mut rng, &maxes));
    let mut made: [Option<Group>; MANY] = [const { None }; MANY];
    // The group is offline, or there are as many as may be.
    let mut are_there = true;
    for level in [ABOVE, TOP, 1, 0, SIDE, BESIDE] {
        let limits = Limits::new().max(limit(max[level]));
        let limits = if level == TOP {
            limits.cover_allocations()
        } else {
            limits
        };
        let parent = made.get(PARENTS[level]).map_or(Some(group), Option::as_ref);
        made[level] = parent.and_then(|parent| parent.create(level as u64, limits).ok());
        are_there &= made[level].is_some();
    }
    let above = made[ABOVE].clone();
    let lived = if are_there {
        let covers = Covers {
            rng,
            levels: made.into_iter().flatten().collect(),
            max,
            has_ended: [false; MANY],
            sums: Sums::default(),
            charges: Vec::new(),
            objects: Vec::new(),
            waits: None,
        };
        covers.live(steps)
    } else {
        Ok(())
    };
    if let Some(above) = above {
        above.offline_tree();
    }
    lived?;
    ensure_eq!(group.live(), before, "live after groups that cover");
    Ok(())
}

impl Covers {
    fn live(mut self, steps: u8) -> Holds {
        for _ in 0..steps {
            self.step()?;
            // An allocator leaves to others what its calls have to do beside.
            catch_up();
            self.serve()?;
            self.agree()?;
        }
        self.waits = None;
        // What tasks have left is left behind, and those that are live own the rest.
        self.end(0)?;
        self.agree()?;
        std::mem::take(&mut self.objects)
            .into_iter()
            .for_each(Object::free);
        self.charges.clear();
        self.sums = Sums::default();
        self.agree()
    }

    /// A group ends, and what it has is left behind.
    fn end(&mut self, level: usize) -> Holds {
        if !std::mem::replace(&mut self.has_ended[level], true) {
            let ended = self.levels[level].offline();
            ensure!(ended.is_ok(), "nothing is below: {ended:?}");
        }
        Ok(())
    }

    /// Work of a group that has ended goes on in the one above.
    fn online(&self, level: usize) -> usize {
        let mut levels = levels_of(level);
        let online = levels.find(|&level| !self.has_ended[level]);
        online.unwrap_or(ABOVE)
    }

    fn step(&mut self) -> Holds {
        let level = self.rng.random_range(0..COVER);
        let level = self.online(level);
        let bytes = self.rng.random_range(1..=MOST);
        match self.rng.random_range(0..8) {
            // It pays for what no group owns, and no longer.
            7 => {
                charge_unowned(bytes as usize);
                charge_unowned_to(Some(&self.levels[level]));
                charge_unowned_to(None);
                uncharge_unowned(bytes as usize);
            }
            // All that is left in usage is live.
            6 => {
                let level = self.rng.random_range(0..self.levels.len());
                self.levels[level].memory().drain();
                if self.waits.is_none() && !self.has_ended[level] {
                    let usage = self.levels[level].usage();
                    let known = self.sums.live(level);
                    ensure_eq!(usage, known, "used at level {level}, some of which cover");
                }
            }
            5 if self.rng.random_bool(0.1) => {
                let level = pick(&mut self.rng, &[0, SIDE]);
                if self.waits.as_ref().is_none_or(|waits| waits.level != level) {
                    self.end(level)?;
                }
            }
            5 if self.waits.is_none() && self.rng.random() => {
                let future = self.levels[level].charge_async(Bytes(bytes)).undelayed();
                self.waits = Some(Waits {
                    future: Box::pin(future),
                    rung: Arc::default(),
                    level,
                    bytes,
                });
                self.poll()?;
            }
            5 => self.waits = None,
            4 if !self.charges.is_empty() => self.transfer()?,
            0 => {
                let level = if self.rng.random_bool(0.2) {
                    BESIDE
                } else {
                    level
                };
                let mut then = self.sums;
                then.reserved[level] += bytes;
                let fits = then.fit(&self.sums, &self.max);
                match self.levels[level].try_charge(Bytes(bytes)) {
                    Ok(charge) => {
                        ensure!(fits, "{bytes} more are charged, of {:?}", self.max);
                        self.sums = then;
                        self.charges.push((level, charge));
                    }
                    Err(refused) => {
                        ensure!(!fits || self.waits.is_some(), "{refused}, and it fits");
                        // What is short is so where memory is: allocated bytes pay for some of it.
                        let full = refused.over_limit().map(|full| (full.group(), full.want()));
                        let at = full.map(|(group, want)| {
                            let at = self.levels.iter().position(|level| level == group);
                            (at, want)
                        });
                        // Above those that cover it is a hint.
                        let is_known = self.waits.is_none();
                        if let Some((Some(at), want)) =
                            at.filter(|(at, _)| is_known && *at != Some(ABOVE))
                        {
                            let known = then.live(at).saturating_sub(self.max[at]);
                            let path = &self.levels[at];
                            ensure_eq!(want, known, "short in {path}, {refused}");
                        }
                    }
                }
            }
            1 => {
                let object = Object::allocate(&self.levels, level, bytes);
                self.sums.allocated[level] += bytes;
                self.objects.push(object);
            }
            2 if !self.charges.is_empty() => {
                let at = self.rng.random_range(0..self.charges.len());
                let (level, charge) = &mut self.charges[at];
                self.sums.reserved[*level] -= charge.shrink(Bytes(bytes));
            }
            _ if !self.objects.is_empty() => {
                let at = self.rng.random_range(0..self.objects.len());
                let object = self.objects.swap_remove(at);
                self.sums.allocated[object.level] -= object.bytes;
                object.free();
            }
            _ => {}
        }
        Ok(())
    }

    fn transfer(&mut self) -> Holds {
        let at = self.rng.random_range(0..self.charges.len());
        let to = self.rng.random_range(0..self.levels.len());
        let to = self.online(to);
        let (from, charge) = &mut self.charges[at];
        let bytes = charge.bytes();
        let mut then = self.sums;
        then.reserved[*from] -= bytes;
        then.reserved[to] += bytes;
        let fits = to == *from || then.fit(&self.sums, &self.max);
        let moved = charge.transfer(&self.levels[to]);
        ensure!(
            moved.is_ok() == fits || moved.is_err() && self.waits.is_some(),
            "{bytes} from {from} to {to}: {moved:?}"
        );
        if moved.is_ok() {
            (*from, self.sums) = (to, then);
        }
        Ok(())
    }

    // === A charge that waits beside what is allocated ===

    /// It is served as soon as it fits, and not before.
    fn serve(&mut self) -> Holds {
        let Some(waits) = &self.waits else {
            return Ok(());
        };
        let mut then = self.sums;
        then.reserved[waits.level] += waits.bytes;
        // A thread of the runtime may have the line to serve.
        rest();
        let fits = then.fit(&self.sums, &self.max);
        let is_rung = waits.rung.is_rung();
        ensure!(
            is_rung || !fits,
            "{} bytes fit at level {}, and their charge waits",
            waits.bytes,
            waits.level
        );
        if is_rung { self.poll() } else { Ok(()) }
    }

    fn poll(&mut self) -> Holds {
        let Some(mut waits) = self.waits.take() else {
            return Ok(());
        };
        let mut then = self.sums;
        then.reserved[waits.level] += waits.bytes;
        let fits = then.fit(&self.sums, &self.max);
        match waits.poll() {
            Poll::Ready(Ok(charge)) => {
                ensure!(fits, "{} bytes are charged, of {:?}", waits.bytes, self.max);
                self.sums = then;
                self.charges.push((waits.level, charge));
            }
            Poll::Ready(Err(error)) => return Err(format!("{error}, and it may wait")),
            Poll::Pending => {
                ensure!(!fits, "{} bytes wait and fit", waits.bytes);
                self.waits = Some(waits);
            }
        }
        Ok(())
    }

    fn agree(&self) -> Holds {
        // The reclaim thread takes credit home near a mark, and a ledger or a table is no reading of one
        // moment.
        rest();
        let sums = &self.sums;
        for (level, group) in self.levels.iter().enumerate() {
            let known = sums.live(level);
            ensure_eq!(
                group.live(),
                known,
                "live of level {level}, some of which cover"
            );
            let ledger = group.ledger();
            let found = (ledger.reserved(), ledger.allocated(), ledger.unpaid());
            let known = (
                sums.all_reserved(level),
                sums.all_allocated(level),
                sums.unpaid(level),
            );
            ensure_eq!(
                found,
                known,
                "reserved, allocated and unpaid of level {level}"
            );
            if level < COVER && !self.has_ended[level] {
                self.agree_alone(level)?;
            }
        }
        self.agree_in_table()
    }

    /// What a level that covers has itself. What a group that has ended holds is that of the one
    /// above, too.
    fn agree_alone(&self, level: usize) -> Holds {
        let (group, sums) = (&self.levels[level], &self.sums);
        let ended = |of: &usize| self.has_ended[*of] && PARENTS[*of] == level;
        let left = (0..COVER).filter(ended);
        let own = |of: &[u64; MANY]| of[level] + left.clone().map(|it| of[it]).sum::<u64>();
        let (reserved, allocated) = (own(&sums.reserved), own(&sums.allocated));
        let inspect = group.inspect();
        let local = inspect.ledger_local();
        let found = (local.reserved(), local.allocated(), local.unpaid());
        let known = (reserved, allocated, allocated.saturating_sub(reserved));
        ensure_eq!(found, known, "the same of level {level} alone");
        let live = inspect.live_local();
        ensure_eq!(live, reserved.max(allocated), "live of level {level} alone");
        let found = inspect.allocated_local();
        ensure_eq!(
            found,
            sums.allocated[level],
            "allocated in level {level} itself"
        );
        let left = within(level).filter(|&of| self.has_ended[of]);
        let left: u64 = left.map(|of| sums.allocated[of]).sum();
        let found = group.ledger().left_behind();
        ensure_eq!(found, left, "left behind below level {level}");
        Ok(())
    }

    fn agree_in_table(&self) -> Holds {
        let here = (0..COVER).filter(|&level| !self.has_ended[level]);
        let row = |level| (self.sums.live(level), self.sums.all_reserved(level));
        let mut known: Vec<_> = here.map(row).collect();
        known.sort_unstable();
        let table = self.levels[TOP].snapshot(2);
        let rows = table.rows().iter();
        let mut found: Vec<_> = rows.map(|row| (row.live, row.ledger.reserved())).collect();
        found.sort_unstable();
        ensure_eq!(found, known, "(live, reserved) in the table");
        Ok(())
    }
}
