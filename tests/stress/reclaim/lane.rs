//! The work of one thread.

use memcg::errors::CreateError;
use memcg::{Bytes, Charge, ChargeError, Limit, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::lock;
use super::world::{MAX, PASSING, Passing, STAYS, World};

/// The state of a worker from one stretch to the next.
pub(crate) struct Lane {
    pub(crate) rng: SmallRng,
    pub(crate) held: Vec<Charge>,
    pub(crate) refusals: u64,
    pub(crate) admitted: u64,
}

impl Lane {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            held: Vec::new(),
            refusals: 0,
            admitted: 0,
        }
    }

    /// At a quiescent point: others get some room.
    pub(crate) fn rest(&mut self) {
        self.held.truncate(8);
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0 => 0,
            1 => self.rng.random_range(0..MAX / 4),
            2..4 => 64 << 10,
            _ => self.rng.random_range(1..16 << 10),
        }
    }

    pub(crate) fn step(&mut self, world: &World) {
        match self.rng.random_range(0..1_000) {
            0..4 => self.set_limits(world),
            4..30 => self.replace(world),
            30..60 => {
                let group = world.any_group(&mut self.rng);
                let report = group
                    .reclaim(Bytes(self.bytes()))
                    .expect("outside of a reclaimer");
                assert!(report.soft_visited <= report.visited, "{report:?}");
            }
            60..90 => world.answer(self.rng.random_bool(0.8)),
            90..100 => world.register(&mut self.rng),
            100..110 => {
                let group = world.any_group(&mut self.rng);
                let bytes = self.bytes() / 4;
                self.held
                    .push(world.forced.run(|| group.force_charge(Bytes(bytes))));
            }
            110..120 => self.look(world),
            120..500 => {
                let bytes = self.bytes();
                if let Err(error) = world.fill(&mut self.rng, bytes) {
                    self.refused(&error);
                }
            }
            500..800 => {
                let group = world.any_group(&mut self.rng);
                let bytes = self.bytes();
                match group.charge(Bytes(bytes)) {
                    Ok(charge) => {
                        self.admitted += 1;
                        self.held.push(charge);
                    }
                    Err(error) => self.refused(&error),
                }
            }
            _ => drop(self.pick()),
        }
        while self.held.len() > 60 {
            drop(self.pick());
        }
    }

    fn refused(&mut self, error: &ChargeError) {
        match error {
            error if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                let room = refusal.max();
                assert!(
                    refusal.usage().saturating_add(refusal.requested()) > room,
                    "{refusal}"
                );
                self.refusals += 1;
                (0..4).for_each(|_| drop(self.pick()));
            }
            error if error.is_offline() => assert!(error.group().is_offline()),
            other => panic!("{other}"),
        }
    }

    fn pick(&mut self) -> Option<Charge> {
        (!self.held.is_empty()).then(|| {
            self.held
                .swap_remove(self.rng.random_range(0..self.held.len()))
        })
    }

    fn set_limits(&mut self, world: &World) {
        let stay = &world.stays[self.rng.random_range(0..STAYS)];
        let bytes = Limit::Bytes(self.rng.random_range(0..MAX / 8));
        let set = |limits| {
            stay.group.set_limits(limits).expect("a number");
        };
        match self.rng.random_range(0..8) {
            0 => set(Limits::new().min(Limit::Bytes(self.rng.random_range(0..MAX / 64)))),
            1 => set(Limits::new().low(Limit::Bytes(self.rng.random_range(0..MAX / 16)))),
            2 | 3 => set(Limits::new().soft(bytes)),
            4 => set(Limits::new()
                .soft([Limit::Unlimited, Limit::Bytes(0)][self.rng.random_range(0..2)])),
            5 | 6 => stay.set_max(Limit::Bytes(MAX / 8 + self.rng.random_range(0..MAX / 2))),
            _ => stay
                .group
                .memory()
                .set_batch([0, 4_096, 65_536][self.rng.random_range(0..3)]),
        }
    }

    fn look(&mut self, world: &World) {
        let group = world.any_group(&mut self.rng);
        match self.rng.random_range(0..4) {
            0 => drop(world.runtime.snapshot()),
            1 => world.runtime.settle(),
            2 => drop(group.memory().drain()),
            _ => {
                let root = world.runtime.root();
                let figures = (
                    group.memory().effective_min(&root.memory()),
                    group.memory().effective_low(&root.memory()),
                    group.inspect().descendants_in_excess(),
                );
                std::hint::black_box((
                    figures,
                    group.inspect().is_in_excess(),
                    group.events(),
                    group.events().local(),
                ));
            }
        }
    }

    /// A group in one of the places goes offline, with its cache or without, and another takes the
    /// place.
    fn replace(&mut self, world: &World) {
        let place = &world.passing[self.rng.random_range(0..PASSING)];
        let parent = world.any_group(&mut self.rng);
        let name = self.rng.random_range(0..4 * PASSING).to_string();
        let soft =
            [Limit::Unlimited, Limit::Bytes(0), Limit::Bytes(100_000)][self.rng.random_range(0..3)];
        let next = match parent.create(&name, Limits::new().soft(soft)) {
            Ok(group) => Some(Passing::new(world, group, &mut self.rng)),
            Err(CreateError::Taken { .. } | CreateError::Offline { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        let Some(old) = std::mem::replace(&mut *lock(place), next) else {
            return;
        };
        if self.rng.random_bool(0.3) || old.group.offline().is_err() {
            old.group.offline_tree();
        }
        assert!(old.group.is_offline() && old.group.charge(1).is_err());
        old.end(self.rng.random_bool(0.5));
    }
}
