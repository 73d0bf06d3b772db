//! Random trees of groups that hold, wait, give back and leave the line, each checked after each step.
//!
//! A wait ends as a deadlock, or goes above a max, only where all bytes below the level are held by groups whose tasks
//! all wait: no false alarm. And where that is so in one line, and no charge there fits, one of the two comes: none is
//! missed.

use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::hierarchy::{group_tree, importance};
use crate::state::waiting::PlaceInLine;
use crate::sync::many;
use crate::{Bytes, Charge, ChargeError, ChargeFuture, Group, Limit, Limits, Runtime};

const MAX: u64 = 64;

/// Notes its number when it is woken.
struct Notes(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % most as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Option<usize>,
    max: u64,
    /// In bytes.
    overdraft: u64,
    tasks: u16,
    /// Its own.
    live: u64,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    number: usize,
    group: usize,
    bytes: u64,
}

enum Outcome {
    Granted(Charge),
    /// At this group.
    Deadlock(Group),
}

/// The groups by the rules: what they hold, and the charges that wait.
#[derive(Clone, Debug)]
struct Model {
    nodes: Vec<Node>,
    waits: Vec<Wait>,
    through: u64,
    alarms: u64,
}

impl Model {
    fn path(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&at| self.nodes[at].parent)
    }

    fn within(&self, top: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |&group| self.path(group).any(|at| at == top))
    }

    fn total(&self, top: usize) -> u64 {
        self.within(top).map(|group| self.nodes[group].live).sum()
    }

    /// The group whose tasks give the memory of this one back.
    fn holder(&self, group: usize) -> Option<usize> {
        self.path(group).filter(|&at| self.nodes[at].tasks > 0).last()
    }

    /// As many of `waits` as the group has tasks.
    fn all_wait(&self, group: usize, waits: &[Wait]) -> bool {
        self.holder(group).is_some_and(|holder| {
            let of = waits.iter().filter(|wait| self.holder(wait.group) == Some(holder)).count();
            of >= usize::from(self.nodes[holder].tasks)
        })
    }

    fn runs(&self, group: usize) -> bool {
        !self.all_wait(group, &self.waits)
    }

    /// All bytes below are held by groups whose tasks are all in `waits`.
    fn is_stuck(&self, top: usize, waits: &[Wait]) -> bool {
        self.within(top).all(|group| self.nodes[group].live == 0 || self.all_wait(group, waits))
    }

    fn holds(&self, group: usize) -> bool {
        self.holder(group).is_some_and(|holder| self.total(holder) > 0)
    }

    /// Follows what became of a charge. `Err`: by the rules it may not.
    fn follow(&mut self, wait: Wait, outcome: &Outcome, index_of: impl Fn(&Group) -> usize) -> Result<(), String> {
        let full = |model: &Model, at: usize| model.total(at) + wait.bytes > model.nodes[at].max;
        match outcome {
            Outcome::Granted(_) => {
                let above: Vec<usize> = self.path(wait.group).filter(|&at| full(self, at)).collect();
                if let [at, more @ ..] = &above[..] {
                    let (node, total) = (self.nodes[*at], self.total(*at));
                    if !more.is_empty() || total > node.max || total + wait.bytes > node.max + node.overdraft {
                        return Err(format!("above the max of {above:?}"));
                    }
                    if !self.is_stuck(*at, &self.waits) || !self.holds(wait.group) {
                        return Err(format!("above the max of {at}, where a task runs"));
                    }
                    self.through += 1;
                }
                self.nodes[wait.group].live += wait.bytes;
            }
            Outcome::Deadlock(group) => {
                let at = index_of(group);
                let others = self.waits.iter().filter(|other| other.number != wait.number);
                // Behind another one, which lets no more go before, it may be small enough.
                let is_behind = others.into_iter().any(|other| self.path(other.group).any(|above| above == at));
                if !self.is_stuck(at, &self.waits) || !self.holds(wait.group) || !(full(self, at) || is_behind) {
                    return Err(format!("a false alarm at {at}"));
                }
                let node = self.nodes[at];
                let others = self.path(wait.group).filter(|&other| other != at);
                let alone = others.into_iter().all(|other| self.nodes[other].max == u64::MAX);
                if node.overdraft > 0
                    && alone
                    && self.total(at) <= node.max
                    && self.total(at) + wait.bytes <= node.max + node.overdraft
                {
                    return Err(format!("it may go above the max of {at}"));
                }
                self.alarms += 1;
            }
        }
        self.waits.retain(|other| other.number != wait.number);
        Ok(())
    }
}

struct Scene {
    model: Model,
    groups: Vec<Group>,
    futures: Vec<(usize, Pin<Box<ChargeFuture>>)>,
    held: Vec<(usize, Charge)>,
    woken: Arc<Mutex<Vec<usize>>>,
}

/// A charge as the tree has it in a line.
struct InLine {
    level: usize,
    wait: Wait,
    place: PlaceInLine,
}

impl Scene {
    fn build(numbers: &mut Numbers) -> (Runtime, Scene) {
        let runtime = Runtime::builder().batch(0).max(Limit::Bytes(MAX)).build().unwrap();
        let root_overdraft = numbers.of(&[0, 0, 25]);
        runtime.root().set_limits(Limits::new().overdraft(root_overdraft)).unwrap();
        let overdraft = |max: u64, per_cent: u8| if max == u64::MAX { 0 } else { max * u64::from(per_cent) / 100 };
        let root = Node { parent: None, max: MAX, overdraft: overdraft(MAX, root_overdraft), tasks: 0, live: 0 };
        let (mut nodes, mut groups) = (vec![root], vec![runtime.root()]);
        let inner = numbers.below(4);
        for number in 1..=inner + 2 + numbers.below(4) {
            let (parent, is_inner) = (numbers.below(number.min(inner + 1)), number <= inner);
            let max = if is_inner { numbers.of(&[u64::MAX, 16, 32, 48]) } else { u64::MAX };
            let per_cent = if is_inner { numbers.of(&[0, 25, 50]) } else { 0 };
            let tasks = if is_inner { numbers.of(&[0, 0, 0, 2]) } else { numbers.of(&[0, 1, 1, 2]) };
            let max_limit = if max == u64::MAX { Limit::Unlimited } else { Limit::Bytes(max) };
            let mut limits = Limits::new().max(max_limit).overdraft(per_cent).tasks(tasks);
            limits.importance = numbers.of(&[None, None, Some(0), Some(1), Some(2)]);
            groups.push(groups[parent].create(number as u64, limits).unwrap());
            nodes.push(Node { parent: Some(parent), max, overdraft: overdraft(max, per_cent), tasks, live: 0 });
        }
        let model = Model { nodes, waits: Vec::new(), through: 0, alarms: 0 };
        (runtime, Scene { model, groups, futures: Vec::new(), held: Vec::new(), woken: Arc::default() })
    }

    fn poll(&mut self, number: usize) -> Option<Outcome> {
        let (_, future) = self.futures.iter_mut().find(|(of, _)| *of == number).unwrap();
        let waker = Waker::from(Arc::new(Notes(number, Arc::clone(&self.woken))));
        let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(&waker)) else { return None };
        self.futures.retain(|(of, _)| *of != number);
        Some(match ended {
            Ok(charge) => Outcome::Granted(charge),
            Err(ChargeError::Deadlock(refusal)) => Outcome::Deadlock(refusal.group().clone()),
            Err(other) => panic!("{other}"),
        })
    }

    /// One thing that a task, or the service, does. Returns a charge that is new.
    fn step(&mut self, number: usize, numbers: &mut Numbers) -> Option<usize> {
        let group = 1 + numbers.below(self.groups.len() - 1);
        match numbers.below(8) {
            0..=3 if self.model.runs(group) => {
                let bytes = 1 + numbers.below(24) as u64;
                if self.model.path(group).all(|at| bytes <= self.model.nodes[at].max) {
                    self.model.waits.push(Wait { number, group, bytes });
                    self.futures.push((number, Box::pin(self.groups[group].charge_async(Bytes(bytes)))));
                    return Some(number);
                }
            }
            // A task that does not wait gives something back, or hands it to another group.
            kind @ 4..=5 if !self.held.is_empty() => {
                let at = numbers.below(self.held.len());
                let (of, bytes) = (self.held[at].0, self.held[at].1.bytes());
                if self.model.runs(of) {
                    self.model.nodes[of].live -= bytes;
                    if kind == 4 || self.held[at].1.transfer(&self.groups[group]).is_err() {
                        drop(self.held.swap_remove(at));
                    } else {
                        self.model.nodes[group].live += bytes;
                        self.held[at].0 = group;
                    }
                }
            }
            6 if !self.futures.is_empty() && numbers.below(3) == 0 => {
                let (gone, future) = self.futures.swap_remove(numbers.below(self.futures.len()));
                self.model.waits.retain(|wait| wait.number != gone);
                drop(future);
            }
            7 if numbers.below(3) == 0 => {
                let tasks = numbers.of(&[0, 1, 2]);
                self.model.nodes[group].tasks = tasks;
                self.groups[group].set_limits(Limits::new().tasks(tasks)).unwrap();
            }
            _ => {}
        }
        None
    }

    /// Follows what became of the charges in line, in its order. A new one has no waker when it is decided: some place
    /// among the others is right for it.
    fn follow_all(&mut self, new: Option<usize>) {
        let new = new.and_then(|new| Some((new, self.poll(new)?)));
        let woken = std::mem::take(&mut *self.woken.lock().unwrap());
        let mut ended: Vec<(usize, Outcome)> = Vec::new();
        for number in woken {
            ended.push((number, self.poll(number).expect("it is woken once")));
        }
        let told = if let (None, [(number, Outcome::Deadlock(group))]) = (&new, &ended[..]) {
            Some((self.wait_of(*number), self.index_of(group)))
        } else {
            None
        };
        let before = self.model.clone();
        let places = if new.is_some() { ended.len() } else { 0 };
        let mut last: Result<(), String> = Ok(());
        for place in 0..=places {
            let mut order: Vec<&(usize, Outcome)> = ended.iter().collect();
            new.iter().for_each(|new| order.insert(place, new));
            let mut model = before.clone();
            last = order.into_iter().try_for_each(|(number, outcome)| {
                let wait = *model.waits.iter().find(|wait| wait.number == *number).expect("it waits");
                model.follow(wait, outcome, |group| self.index_of(group))
            });
            if last.is_ok() {
                self.model = model;
                break;
            }
        }
        if let Err(why) = &last {
            let said = new.iter().chain(&ended).map(|(number, outcome)| match outcome {
                Outcome::Granted(_) => format!("{number} granted"),
                Outcome::Deadlock(group) => format!("{number} told at {}", self.index_of(group)),
            });
            panic!("{why}: {:?} in {before:?}", said.collect::<Vec<_>>());
        }
        for (number, outcome) in new.into_iter().chain(ended) {
            let group = before.waits.iter().find(|wait| wait.number == number).expect("it waits").group;
            if let Outcome::Granted(charge) = outcome {
                self.held.push((group, charge));
            }
        }
        self.check_lines(told, &before);
    }

    fn wait_of(&self, number: usize) -> Wait {
        *self.model.waits.iter().find(|wait| wait.number == number).expect("it waits")
    }

    fn index_of(&self, group: &Group) -> usize {
        self.groups.iter().position(|other| other == group).unwrap()
    }

    fn lines(&self) -> Vec<InLine> {
        let waiting = group_tree::shared(self.groups[0].first().tree()).waiting.lock();
        let index = |counter| self.groups.iter().position(|group| ptr::eq(group.first(), counter)).unwrap();
        let in_line = waiting.waiters.values().filter(|waiter| waiter.decided.is_none());
        let mut charges = in_line.map(|waiter| InLine {
            level: index(waiter.level),
            wait: Wait { number: 0, group: index(waiter.group), bytes: waiter.bytes },
            place: waiter.place,
        });
        charges.by_ref().collect()
    }

    /// No line has waits that cannot end. `told`: the only wait that has ended, in a line where the rest is as before.
    fn check_lines(&self, told: Option<(Wait, usize)>, before: &Model) {
        let lines = self.lines();
        assert_eq!(lines.len(), self.model.waits.len());
        for level in 0..self.groups.len() {
            let waits: Vec<Wait> = lines.iter().filter(|at| at.level == level).map(|at| at.wait).collect();
            let (total, max) = (self.model.total(level), self.model.nodes[level].max);
            assert_eq!(self.groups[level].live(), total);
            let fits = waits.iter().any(|wait| total + wait.bytes <= max);
            let is_stuck = !waits.is_empty() && total > 0 && self.model.is_stuck(level, &waits);
            assert!(!is_stuck || fits, "{total} of {max} bytes at {level}, and {} wait", waits.len());
        }
        let Some((told, level)) = told else { return };
        let of = |group: usize| importance::of(self.groups[group].first());
        for other in lines.iter().filter(|at| at.level == level && before.holds(at.wait.group)) {
            // One that has let enough others go before goes by age.
            let by_age = other.place == other.place.by_age();
            let is_stuck = before.all_wait(other.wait.group, &before.waits);
            assert!(by_age || !is_stuck || of(told.group) <= of(other.wait.group), "a more important one is told");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri: one of hundreds of rounds shows nothing")]
fn no_false_alarm_and_none_is_missed() {
    let mut numbers = Numbers(11);
    let (mut alarms, mut through) = (0, 0);
    for _ in 0..many(1_500) {
        let (_runtime, mut scene) = Scene::build(&mut numbers);
        for number in 0..80 {
            let new = scene.step(number, &mut numbers);
            scene.follow_all(new);
        }
        alarms += scene.model.alarms;
        through += scene.model.through;
    }
    assert!(alarms > many(100) && through > many(100), "{alarms} told, {through} let through");
}
