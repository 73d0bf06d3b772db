//! The work of one thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, Charge, Event};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::cache::Character;
use super::tally::{Form, Tally};
use super::waits::Attempt;
use super::world::{TENANT_MAX, Target, World};
use crate::support::watchdog::Describe;

/// Charges that a thread keeps for itself.
const HELD_MAX: usize = 24;

/// No wait of a thread that keeps something is longer, for others wait for that.
const WAIT_MAX: u64 = 300;

pub(crate) struct Lane<'a> {
    pub(crate) rng: SmallRng,
    held: Vec<Charge>,
    pub(crate) tally: Tally,
    pub(crate) admitted: &'a AtomicU64,
    pub(crate) describe: &'a Describe,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(seed: u64, admitted: &'a AtomicU64, describe: &'a Describe) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self {
            rng,
            held: Vec::new(),
            tally: Tally::default(),
            admitted,
            describe,
        }
    }

    /// Gives back what it holds.
    pub(crate) fn end(self) -> Tally {
        self.tally
    }

    pub(crate) fn bytes(&mut self) -> u64 {
        match self.rng.random_range(0..200) {
            0 => 0,
            // Fits only where the limit has been raised.
            1 => TENANT_MAX + 1,
            2..6 => self.rng.random_range(0..TENANT_MAX),
            6..40 => 64 << 10,
            _ => self.rng.random_range(1..32 << 10),
        }
    }

    /// From none to the longest; most are short.
    fn time(&mut self) -> Duration {
        let most = [0, 1, 10, 50, WAIT_MAX][self.rng.random_range(0..5)];
        Duration::from_micros(self.rng.random_range(0..=most * 1_000))
    }

    pub(crate) fn step(&mut self, world: &World) {
        match self.rng.random_range(0..1_000) {
            0..20 => world.move_limits(&mut self.rng),
            20..40 => world.replace_job(&mut self.rng),
            40..60 => self.look(world),
            60..80 => {
                let target = world.any(&mut self.rng);
                let bytes = self.bytes() / 4;
                let charge = world.force(&target, || target.group.force_charge(Bytes(bytes)));
                self.keep(target, charge);
            }
            80..180 => self.fill(world),
            180..340 => self.charge(world, Form::Charge, |_| Attempt::Charge),
            340..360 => self.charge(world, Form::Undelayed, |_| Attempt::Undelayed),
            360..520 => self.charge(world, Form::Timeout, |lane| Attempt::Timeout(lane.time())),
            520..680 => self.charge(world, Form::Async, |lane| Attempt::Async(lane.time())),
            680..690 => {
                // It may be long, and others may be waiting for what this thread holds.
                self.held.clear();
                self.charge(world, Form::Async, |_| Attempt::AsyncForEver);
            }
            690..780 => self.charge(world, Form::Try, |_| Attempt::Try),
            780..800 => self.charge(world, Form::Overcharge, |_| Attempt::Overcharge),
            _ => {
                let held = self.rng.random_range(0..HELD_MAX).min(self.held.len());
                self.held.truncate(held);
                if let Some(held) = world.any(&mut self.rng).held {
                    held.free_one();
                }
            }
        }
        while self.held.len() > HELD_MAX {
            drop(self.held.swap_remove(self.rng.random_range(0..HELD_MAX)));
        }
    }

    fn charge(&mut self, world: &World, form: Form, attempt: impl FnOnce(&mut Self) -> Attempt) {
        let target = world.any(&mut self.rng);
        let attempt = attempt(self);
        let bytes = self.bytes();
        match self.attempt(world, &target, form, attempt, bytes) {
            Some(charge) => self.keep(target, charge),
            // A charge that does not fit makes every thread more modest.
            None => self.held.truncate(self.held.len() / 2),
        }
    }

    fn keep(&mut self, target: Target, charge: Charge) {
        match target.held {
            Some(held) => held.put(charge),
            None => self.held.push(charge),
        }
    }

    /// A cache takes more; the one that gives nothing is made to, for it would have all in the end.
    fn fill(&mut self, world: &World) {
        let cache = &world.caches[self.rng.random_range(0..world.caches.len())];
        if cache.character == Character::Idles && cache.shelf.bytes() > TENANT_MAX / 4 {
            cache.shelf.evict(u64::MAX);
        }
        let bytes = self.bytes();
        let stay = 1 + world
            .caches
            .iter()
            .position(|other| other.group == cache.group)
            .expect("one of them");
        let target = Target {
            group: cache.group.clone(),
            stay,
            held: None,
        };
        if let Some(charge) = self.attempt(world, &target, Form::Charge, Attempt::Charge, bytes) {
            cache.fill(charge);
        }
    }

    fn look(&mut self, world: &World) {
        let group = world.any(&mut self.rng).group;
        match self.rng.random_range(0..6) {
            0 => drop(world.runtime.snapshot()),
            1 => world.runtime.settle(),
            2 => drop(group.memory().drain()),
            3 => drop(group.snapshot(usize::MAX).to_string()),
            4 => {
                let time = self.time() / 10;
                std::hint::black_box(group.events().wait(Event::Max, time));
            }
            _ => {
                let root = world.runtime.root();
                std::hint::black_box((
                    group.waiting_count(),
                    group.inspect().high_delay(1 << 18),
                    group.memory().effective_low(&root.memory()),
                ));
                std::hint::black_box((
                    group.inspect().top(3),
                    group.events(),
                    group.events().local(),
                ));
            }
        }
    }

    pub(crate) fn admit(&self) {
        self.admitted.fetch_add(1, Ordering::SeqCst);
    }
}
