//! Charges that wait, in a tree of its own, with a naive twin of their lines: who is served, who is
//! passed and how far, and whose wait ends because it is in vain. Some are places of queues, which
//! ask for another number of bytes again and again.
//!
//! * A flat tree: the root alone has a max, so there is one line. Where all matter as much, the twin
//!   knows to the byte who goes when. Where some matter more, the one that waits longest is passed by
//!   so many bytes at most.
//! * A deep one: groups below have maxes, which the program sets or which move by themselves, and
//!   groups end while others take their places.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, Limit, Limits, Percent, Runtime};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use super::limits::STANDS;
use super::told::Rung;
use crate::configuration::limit;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};
use crate::threads::rest;

/// More of them make a line that is long and shows nothing new.
const WAITS_MAX: usize = 8;

/// The most that one charge asks for where the tree is flat, so that small ones pass large ones.
const MOST: u64 = 24;

/// More important charges take so many times the bytes before one that it asks for.
const PATIENCE: u64 = 16;

/// Groups by number: the root, two below it, and one below the first of these.
const PARENTS: [usize; 4] = [0, 0, 0, 1];

impl Life {
    pub(super) fn wait_in_lines(&mut self, op: &Op) {
        let What::Lines(steps, seed) = op.1 else {
            unreachable!("lines");
        };
        // Time goes by there.
        if !self.tasks.is_empty() || self.adapters_wait() || !self.shared.is_quiet() {
            return;
        }
        let lived = self.actor(op).run(move || live(steps, seed));
        self.settle_accounts();
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// A charge in line.
struct Waits {
    future: Pin<Box<ChargeFuture>>,
    rung: Arc<Rung>,
    group: usize,
    bytes: u64,
    /// The most that it has asked for.
    most: u64,
    /// The bytes that may yet go before it while it is the first.
    budget: u64,
    /// Bytes that others took which came later, while nobody has waited longer.
    passed: u64,
    is_queue: bool,
}

impl Waits {
    fn poll(&mut self) -> Poll<Result<Charge, ChargeError>> {
        self.rung.begin_again();
        let waker = Waker::from(Arc::clone(&self.rung));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// What is held, and the levels that count it.
struct Held {
    levels: Vec<usize>,
    charge: Charge,
}

/// What comes next.
#[derive(Clone, Copy)]
enum Step {
    Charge,
    Begin,
    Shrink,
    Leave,
    Resize,
    /// The program sets a max.
    Set,
    /// A max moves by itself.
    Move,
    Time,
    /// Maxes move no more.
    Keep,
    Replace,
}

struct Lines {
    rng: Xoshiro256PlusPlus,
    runtime: Runtime,
    groups: Vec<Group>,
    max: [u64; PARENTS.len()],
    /// Maxes that are parts of the nearest max above.
    parts: [Option<Percent>; PARENTS.len()],
    /// When a max has fallen by itself, and from where, since the program has set it.
    falls: [Vec<(Instant, u64)>; PARENTS.len()],
    held: Vec<Held>,
    /// In the order in which they came.
    waits: Vec<Waits>,
    is_deep: bool,
    /// All matter as much.
    are_equal: bool,
}

fn live(steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).max(limit(100));
    let runtime = runtime.build().expect("a configuration that holds");
    let are_equal: bool = rng.random();
    let mut groups = vec![runtime.root()];
    for number in 1..PARENTS.len() {
        let limits = match pick(&mut rng, &[0, 1, 2, u8::MAX]) {
            importance if !are_equal => Limits::new().importance(importance),
            _ => Limits::new(),
        };
        let made = groups[PARENTS[number]].create(number as u64, limits);
        groups.push(made.expect("nothing is in the way"));
    }
    let mut max = [u64::MAX; PARENTS.len()];
    max[0] = 100;
    let mut lines = Lines {
        is_deep: rng.random(),
        rng,
        runtime,
        groups,
        max,
        parts: [None; PARENTS.len()],
        falls: Default::default(),
        held: Vec::new(),
        waits: Vec::new(),
        are_equal,
    };
    for _ in 0..u32::from(steps) * 2 {
        lines.step()?;
        lines.agree()?;
    }
    lines.end()
}

impl Lines {
    fn levels(group: usize) -> Vec<usize> {
        let mut levels = vec![group];
        while let Some(&level) = levels.last().filter(|&&level| level > 0) {
            levels.push(PARENTS[level]);
        }
        levels
    }

    fn live(&self, level: usize) -> u64 {
        let held = self.held.iter().filter(|it| it.levels.contains(&level));
        held.map(|it| it.charge.bytes()).sum()
    }

    fn fits(&self, group: usize, bytes: u64) -> bool {
        let has_room = |level: usize| self.live(level) + bytes <= self.max[level];
        Lines::levels(group).into_iter().all(has_room)
    }

    /// The most that a charge may wait for at a level: its max, or one that it had a moment ago.
    fn lasting(&self, level: usize) -> u64 {
        let falls = self.falls[level].iter();
        let lasting = falls.filter(|&&(at, _)| clock::now() < at + STANDS);
        let most = lasting.map(|&(_, from)| from).max().unwrap_or(0);
        most.max(self.max[level])
    }

    /// No level of the group will have room for so many, as far as it is known.
    fn may_be_vain(&self, group: usize, bytes: u64) -> bool {
        let mut levels = Lines::levels(group).into_iter();
        levels.any(|level| bytes > self.lasting(level))
    }

    /// A max that the program has set, or that has stood for a while, has no room for so many.
    fn is_vain(&self, group: usize, bytes: u64) -> bool {
        let mut levels = Lines::levels(group).into_iter();
        levels.any(|level| self.falls[level].is_empty() && bytes > self.max[level])
    }

    fn size(&mut self) -> u64 {
        if self.is_deep {
            pick(&mut self.rng, &[1, 10, 30, 60, 100, 150, 250])
        } else {
            self.rng.random_range(1..=MOST)
        }
    }

    fn group(&mut self) -> usize {
        self.rng.random_range(0..PARENTS.len())
    }

    // === Steps ===

    fn step(&mut self) -> Holds {
        use Step::*;
        // Where some matter more, the line is long, and room comes in small parts. Where maxes move,
        // they do so while others wait.
        let steps: &[Step] = match (self.is_deep, self.are_equal) {
            (true, _) => &[
                Charge, Begin, Begin, Begin, Begin, Shrink, Shrink, Leave, Resize, Resize, Set,
                Move, Move, Move, Move, Time, Time, Time, Keep, Replace,
            ],
            (_, true) => &[
                Charge, Charge, Charge, Begin, Begin, Begin, Shrink, Shrink, Shrink, Leave, Resize,
                Resize, Resize, Set,
            ],
            (_, false) => &[
                Charge, Charge, Begin, Begin, Begin, Begin, Begin, Shrink, Shrink, Shrink, Shrink,
                Resize,
            ],
        };
        match pick(&mut self.rng, steps) {
            Charge => self.charge()?,
            Begin => self.begin()?,
            Shrink if !self.held.is_empty() => {
                let at = self.rng.random_range(0..self.held.len());
                let bytes = self.size();
                let held = &mut self.held[at];
                held.charge.shrink(Bytes(bytes));
                if held.charge.bytes() == 0 {
                    self.held.swap_remove(at);
                }
            }
            Leave if !self.waits.is_empty() => {
                let at = self.rng.random_range(0..self.waits.len());
                self.waits.remove(at);
            }
            Shrink | Leave => {}
            Resize => self.resize()?,
            Set => {
                let group = if self.is_deep { self.group() } else { 0 };
                let percent = pick(&mut self.rng, &[20, 50, 100]);
                let part = Percent::new(percent).filter(|_| group > 0 && self.rng.random());
                let bytes = self.new_max();
                let to = part.map_or(Limit::Bytes(bytes), Limit::Percent);
                let set = self.groups[group].memory().set_max_now(to);
                ensure!(set.is_ok(), "a max is above: {set:?}");
                self.parts[group] = part;
                self.max[group] = bytes;
                self.follow(group, false);
            }
            Move => {
                // Often one that has just moved.
                let moving = (0..PARENTS.len()).find(|&level| !self.falls[level].is_empty());
                let again = moving.filter(|_| self.rng.random());
                let group = again.unwrap_or_else(|| self.group());
                let less = self.max[group].min(400) / 2;
                let bytes = if self.rng.random_bool(0.7) {
                    less
                } else {
                    self.new_max()
                };
                let _ = self.groups[group].inspect().move_max(Bytes(bytes));
                self.falls[group].push((clock::now(), self.max[group]));
                self.parts[group] = None;
                self.max[group] = bytes;
                self.follow(group, true);
            }
            Time => {
                let time = pick(&mut self.rng, &[100, 300, 500, 900, 1_000]);
                clock::advance(Duration::from_millis(time));
                self.end_vain_waits(None);
            }
            Keep => {
                let group = self.group();
                self.end_vain_waits(Some(group));
            }
            Replace => self.replace()?,
        }
        Ok(())
    }

    /// The max of a group was set, or has moved by itself; and those below that are parts of it.
    fn follow(&mut self, moved: usize, by_itself: bool) {
        // Parts of what the program sets are set with it, though they stay as they are.
        let mut set = vec![moved];
        // A group comes after those above it.
        for level in 0..PARENTS.len() {
            let is_it = level == moved;
            if let Some(part) = self.parts[level] {
                let mut above = Lines::levels(level).into_iter().skip(1);
                let of = above.find(|&above| self.max[above] < u64::MAX).unwrap_or(0);
                let now = part.of(self.max[of]);
                let is_set = !by_itself && set.contains(&of);
                if !is_it && !is_set && now == self.max[level] {
                    continue;
                }
                set.push(level);
                if by_itself {
                    self.falls[level].push((clock::now(), self.max[level]));
                }
                self.max[level] = now;
            } else if !is_it {
                continue;
            }
            if !by_itself {
                self.falls[level].clear();
            }
        }
    }

    fn new_max(&mut self) -> u64 {
        let bytes = [20, 50, 80, 100, 200, 300];
        let flat = [30, 60, 100];
        pick(&mut self.rng, if self.is_deep { &bytes } else { &flat })
    }

    /// What has stood for a while counts; true: and what is below that group in any case.
    fn end_vain_waits(&mut self, kept: Option<usize>) {
        self.groups[0].inspect().end_vain_waits();
        if let Some(kept) = kept {
            self.groups[kept].inspect().keep_max();
        }
        for (level, falls) in self.falls.iter_mut().enumerate() {
            falls.retain(|&(at, _)| clock::now() < at + STANDS);
            if kept.is_some_and(|kept| Lines::levels(level).contains(&kept)) {
                falls.clear();
            }
        }
    }

    /// A group without children ends, and another one of its name takes its place.
    fn replace(&mut self) -> Holds {
        let group = pick(&mut self.rng, &[2, 3]);
        let ended = self.groups[group].offline();
        ensure!(ended.is_ok(), "nothing is below: {ended:?}");
        // They end with it.
        let mut of_group = Vec::new();
        for at in (0..self.waits.len()).rev() {
            if self.waits[at].group == group {
                of_group.push(self.waits.remove(at));
            }
        }
        for mut waits in of_group {
            self.is_rung_soon(&waits)?;
            match waits.poll() {
                Poll::Ready(Err(error)) if error.is_offline() => {}
                other => return Err(format!("{other:?} of a group that has ended")),
            }
        }
        // What it holds keeps the object, or the next group has that.
        if self.rng.random_bool(0.7) {
            self.held.retain(|held| !held.levels.contains(&group));
        }
        for held in &mut self.held {
            held.levels.retain(|&level| level != group);
        }
        let max = pick(&mut self.rng, &[50, 100, u64::MAX]);
        let mut limits = Limits::new().max(limit(max));
        limits.importance = self.groups[group].limits().importance;
        let parent = self.groups[PARENTS[group]].clone();
        // What keeps the one that has ended goes first: its object may be the next one's.
        self.groups[group] = parent.clone();
        let made = parent.create(group as u64, limits);
        self.groups[group] = made.map_err(|error| error.to_string())?;
        (self.max[group], self.falls[group]) = (max, Vec::new());
        self.parts[group] = None;
        Ok(())
    }

    fn charge(&mut self) -> Holds {
        let (group, bytes) = (self.group(), self.size());
        let fits = self.fits(group, bytes);
        let found = if self.rng.random() {
            self.groups[group].try_charge(Bytes(bytes))
        } else {
            self.groups[group].charge(Bytes(bytes))
        };
        match found {
            Ok(charge) => {
                ensure!(fits, "{bytes} bytes are charged, and do not fit");
                self.barges(bytes)?;
                self.keep(group, charge);
            }
            Err(error) => {
                let behind = !self.waits.is_empty();
                ensure!(!fits || behind, "{error}, and it fits");
                if fits && self.is_known() {
                    let budget = self.waits[0].budget;
                    ensure!(
                        bytes > budget,
                        "{error}, and {budget} bytes may pass the first"
                    );
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Holds {
        if self.waits.len() >= WAITS_MAX {
            return Ok(());
        }
        let (mut group, bytes) = (self.group(), self.size());
        if !self.are_equal && self.rng.random() {
            // Those that matter most come most of the time.
            let importance = |&group: &usize| self.groups[group].limits().importance;
            group = (0..PARENTS.len()).max_by_key(importance).unwrap_or(group);
        }
        let is_queue = self.rng.random();
        let future = self.groups[group].charge_async(Bytes(bytes)).undelayed();
        let mut waits = Waits {
            future: Box::pin(if is_queue { future.for_queue() } else { future }),
            rung: Arc::default(),
            group,
            bytes,
            most: bytes,
            budget: bytes,
            passed: 0,
            is_queue,
        };
        let (fits, is_vain) = (self.fits(group, bytes), self.may_be_vain(group, bytes));
        match waits.poll() {
            Poll::Ready(Ok(charge)) => {
                ensure!(fits, "{bytes} bytes are charged, and do not fit");
                self.barges(bytes)?;
                self.keep(group, charge);
            }
            Poll::Ready(Err(error)) => {
                ensure!(is_vain && error.is_over_limit(), "{error}, and it may wait");
            }
            Poll::Pending => {
                let waits_for = !fits || !self.waits.is_empty();
                ensure!(
                    waits_for && !is_vain,
                    "{bytes} bytes wait, in vain: {is_vain}"
                );
                self.waits.push(waits);
            }
        }
        Ok(())
    }

    /// The place of a queue is for another one now.
    fn resize(&mut self) -> Holds {
        let bytes = self.size();
        let queues = (0..self.waits.len()).filter(|&at| self.waits[at].is_queue);
        let queues: Vec<usize> = queues.collect();
        if queues.is_empty() {
            return Ok(());
        }
        let at = pick(&mut self.rng, &queues);
        let waits = &mut self.waits[at];
        ensure!(
            waits.future.wait_for(Bytes(bytes)),
            "a place in line is lost"
        );
        waits.bytes = bytes;
        waits.most = waits.most.max(bytes);
        waits.budget = waits.budget.min(bytes);
        Ok(())
    }

    fn keep(&mut self, group: usize, charge: Charge) {
        let levels = Lines::levels(group);
        self.held.push(Held { levels, charge });
    }

    // === The twin of a line ===

    /// There is one line, and no charge in it goes before one that came earlier for what it is.
    fn is_known(&self) -> bool {
        !self.is_deep && self.are_equal
    }

    /// So many bytes that came later than all that wait went before them.
    fn barges(&mut self, bytes: u64) -> Holds {
        let is_known = self.is_known();
        let Some(first) = self.waits.first_mut().filter(|_| !self.is_deep) else {
            return Ok(());
        };
        if is_known {
            let left = first.budget.checked_sub(bytes);
            ensure!(
                left.is_some(),
                "{bytes} more went before {} bytes in line, and {} might",
                first.bytes,
                first.budget
            );
            first.budget = left.unwrap_or(0);
        }
        self.pass(bytes);
        Ok(())
    }

    /// So many bytes went before the one that waits longest. All that may do so for what they are
    /// take so many times its bytes, and all others together as many as it asks for. No later look makes
    /// more of them right.
    fn pass(&mut self, bytes: u64) {
        let Some(oldest) = self.waits.first_mut() else {
            return;
        };
        oldest.passed += bytes;
        let most = (PATIENCE + 1) * oldest.most + MOST;
        assert!(
            oldest.passed <= most,
            "{} bytes went before {} that wait longest, and at most {most} may",
            oldest.passed,
            oldest.most
        );
    }

    /// Those that are served now, in their order: the first as long as it fits, then whoever fits
    /// and may pass the first that does not.
    fn served(&self) -> Vec<usize> {
        let mut room = self.max[0].saturating_sub(self.live(0));
        let mut left = (0..self.waits.len()).peekable();
        let mut served = Vec::new();
        while let Some(first) = left.next_if(|&at| self.waits[at].bytes <= room) {
            room -= self.waits[first].bytes;
            served.push(first);
        }
        let Some(first) = left.next() else {
            return served;
        };
        let mut budget = self.waits[first].budget;
        for at in left {
            let bytes = self.waits[at].bytes;
            if bytes <= room.min(budget) {
                (room, budget) = (room - bytes, budget - bytes);
                served.push(at);
            }
        }
        served
    }

    /// Those whose wait is over are as the twin says.
    fn agree(&mut self) -> Holds {
        // A thread of the runtime may have some of them to serve.
        rest();
        self.take_vain()?;
        if self.is_known() {
            self.take_known()?;
        } else {
            self.take_rung()?;
            self.nobody_is_forgotten()?;
        }
        self.figures_hold()
    }

    /// Waits that are in vain are over.
    fn take_vain(&mut self) -> Holds {
        for at in (0..self.waits.len()).rev() {
            let (group, bytes) = (self.waits[at].group, self.waits[at].bytes);
            let must = self.is_vain(group, bytes);
            if must {
                self.is_rung_soon(&self.waits[at])?;
            }
            let may = self.waits[at].rung.is_rung() && self.may_be_vain(group, bytes);
            if !must && !may {
                continue;
            }
            let mut waits = self.waits.remove(at);
            match waits.poll() {
                Poll::Ready(Err(error)) if error.is_over_limit() => {}
                Poll::Pending if !must => self.waits.insert(at, waits),
                other => return Err(format!("{other:?} of {bytes} bytes that wait in vain")),
            }
        }
        Ok(())
    }

    fn is_rung_soon(&self, waits: &Waits) -> Holds {
        rest();
        ensure!(
            waits.rung.is_rung(),
            "{} bytes in {} wait and never fit",
            waits.bytes,
            self.groups[waits.group]
        );
        Ok(())
    }

    /// Exactly those that the twin serves are served.
    fn take_known(&mut self) -> Holds {
        for at in self.served() {
            let bytes = self.waits[at].bytes;
            ensure!(
                self.waits[at].rung.is_rung(),
                "{bytes} bytes fit, at place {at} in line, and wait: {:?}",
                self.line()
            );
        }
        // One by one, in their order, so that what is taken and what is not yet is known at any time.
        while let Some(&at) = self.served().first() {
            let bytes = self.waits[at].bytes;
            self.take(at)?;
            if at > 0 {
                self.waits[0].budget -= bytes;
                self.pass(bytes);
            }
        }
        for at in (0..self.waits.len()).rev() {
            if self.waits[at].rung.is_rung() {
                self.take_woken(at)?;
            }
        }
        Ok(())
    }

    fn line(&self) -> Vec<(u64, u64)> {
        let line = self.waits.iter();
        line.map(|waits| (waits.bytes, waits.budget)).collect()
    }

    /// It was served. A queue may have been woken for something else before, and be served only now: it
    /// keeps its place until then.
    fn take(&mut self, at: usize) -> Holds {
        let waits = &mut self.waits[at];
        let bytes = waits.bytes;
        match waits.poll() {
            Poll::Ready(Ok(charge)) => {
                ensure_eq!(charge.bytes(), bytes, "of a charge in line");
                let waits = self.waits.remove(at);
                self.keep(waits.group, charge);
                Ok(())
            }
            Poll::Pending => Err(format!("{bytes} bytes that fit wait")),
            Poll::Ready(Err(error)) => panic!("{error}, and {bytes} bytes fit"),
        }
    }

    /// A queue is woken where a max has fallen, to look at what is behind its first one.
    fn take_woken(&mut self, at: usize) -> Holds {
        let waits = &mut self.waits[at];
        match waits.poll() {
            Poll::Pending if waits.is_queue => Ok(()),
            other => Err(format!("{other:?} of {} bytes that are woken", waits.bytes)),
        }
    }

    /// Those that were woken are served, in whatever order: the twin knows bounds alone.
    fn take_rung(&mut self) -> Holds {
        while let Some(at) = (0..self.waits.len()).find(|&at| self.waits[at].rung.is_rung()) {
            let (group, bytes) = (self.waits[at].group, self.waits[at].bytes);
            match self.waits[at].poll() {
                Poll::Pending if self.waits[at].is_queue => continue,
                Poll::Ready(Ok(charge)) => {
                    ensure_eq!(charge.bytes(), bytes, "of a charge in line");
                    self.waits.remove(at);
                    self.keep(group, charge);
                    if at > 0 && !self.is_deep {
                        self.pass(bytes);
                    }
                }
                other => return Err(format!("{other:?} of {bytes} bytes in line")),
            }
        }
        Ok(())
    }

    /// Of all that wait at least one does not fit; nor does the one that waits longest, where all
    /// matter as much.
    fn nobody_is_forgotten(&self) -> Holds {
        let fits = |waits: &Waits| self.fits(waits.group, waits.bytes);
        ensure!(
            self.waits.is_empty() || !self.waits.iter().all(fits),
            "each charge in line fits, and none is served: {:?}",
            self.line()
        );
        ensure!(
            !self.are_equal || !self.waits.first().is_some_and(fits),
            "the one that waits longest fits, and is not served: {:?}",
            self.line()
        );
        Ok(())
    }

    fn figures_hold(&self) -> Holds {
        for (level, group) in self.groups.iter().enumerate() {
            let found = (group.live(), group.usage(), group.max());
            let live = self.live(level);
            let known = (live, live, self.max[level]);
            ensure_eq!(found, known, "(live, used, max) of {group}");
        }
        let in_line: usize = self.groups.iter().map(Group::waiting_count).sum();
        ensure_eq!(in_line, self.waits.len(), "places in line");
        Ok(())
    }

    fn end(mut self) -> Holds {
        while !self.waits.is_empty() {
            self.waits.remove(0);
            self.agree()?;
        }
        self.held.clear();
        self.figures_hold()?;
        let verdict = self.runtime.verify();
        ensure!(verdict.is_ok(), "{verdict}");
        Ok(())
    }
}
