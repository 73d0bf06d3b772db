//! The work of one thread.

use std::sync::Mutex;

use memcg::errors::CreateError;
use memcg::{Bytes, Charge, ChargeError, CounterKey, Group, Limit, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::world::{PASSING, PERMANENT, World};
use super::{THREADS, lock};

// === impl Lane ===

/// The state of a worker from one stretch to the next.
pub(crate) struct Lane {
    pub(crate) rng: SmallRng,
    pub(crate) held: Vec<Charge>,
    /// Charged without a guard, each amount with the group that it is given back to.
    pub(crate) raw: Vec<(Group, u64)>,
    pub(crate) refusals: u64,
}

impl Lane {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            held: Vec::new(),
            raw: Vec::new(),
            refusals: 0,
        }
    }

    pub(crate) fn bytes(&mut self) -> u64 {
        match self.rng.random_range(0..12) {
            0 => 0,
            1 => self.rng.random_range(0..300),
            2 | 3 => [1, 62, 63, 64, 128][self.rng.random_range(0..5)],
            _ => self.rng.random_range(1..16),
        }
    }

    pub(crate) fn step(&mut self, world: &World, inboxes: &[Mutex<Vec<Charge>>]) {
        match self.rng.random_range(0..1_000) {
            0..4 => self.set_limits(world),
            4..6 => self.look(world),
            6..60 => self.replace(world),
            60..320 => self.charge(world),
            320..400 => self.raw(world),
            400..420 => {
                let group = world.any_group(&mut self.rng);
                let bytes = self.bytes();
                self.held
                    .push(world.forced.run(|| group.force_charge(Bytes(bytes))));
            }
            420..460 => {
                let group = world.any_group(&mut self.rng);
                let amounts = [
                    (CounterKey::MEMORY, Bytes(self.bytes())),
                    (world.spill, Bytes(self.bytes())),
                ];
                match group.charge_set(&amounts) {
                    Ok(set) => self.held.extend(set),
                    Err(error) => self.refused(&error),
                }
            }
            460..500 => self.post(inboxes),
            500..700 => self.turn(world),
            _ => drop(self.pick()),
        }
        if self.held.len() > 200 {
            (0..50).for_each(|_| drop(self.pick()));
        }
    }

    pub(crate) fn refused(&mut self, error: &ChargeError) {
        match error {
            error if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                assert!(
                    refusal.usage().saturating_add(refusal.requested()) > refusal.max(),
                    "{refusal}"
                );
                self.refusals += 1;
                (0..4).for_each(|_| drop(self.pick()));
            }
            error if error.is_offline() => assert!(error.group().is_offline()),
            other => panic!("{other}"),
        }
    }

    pub(crate) fn pick(&mut self) -> Option<Charge> {
        (!self.held.is_empty()).then(|| {
            self.held
                .swap_remove(self.rng.random_range(0..self.held.len()))
        })
    }

    pub(crate) fn set_limits(&mut self, world: &World) {
        let stay = &world.stays[self.rng.random_range(0..PERMANENT)];
        let limit = match self.rng.random_range(0..8) {
            0 => Limit::Bytes(self.rng.random_range(0..200)),
            1 => Limit::Bytes(stay.group.live()),
            2..4 => Limit::Bytes(stay.group.live() + self.rng.random_range(0..3_000)),
            _ => Limit::Unlimited,
        };
        match self.rng.random_range(0..12) {
            0 => drop(
                stay.group
                    .set_limits(Limits::new().min(Limit::Bytes(self.bytes())))
                    .expect("a number"),
            ),
            1 => stay
                .group
                .memory()
                .set_batch([0, 1, 2, 16, 64, 64, 200][self.rng.random_range(0..7)]),
            2 => drop(
                stay.group
                    .counter(world.spill)
                    .expect("declared")
                    .set_max(limit)
                    .expect("a number"),
            ),
            3 => {
                // Nothing may stop a group that is offline by now, or about to be.
                let passing = world.any_group(&mut self.rng);
                if passing.parent().is_some()
                    && !world.stays.iter().any(|stay| stay.group == passing)
                {
                    passing.set_max(limit).expect("a number");
                    passing
                        .set_limits(Limits::new().low(Limit::Bytes(self.bytes())))
                        .expect("a number");
                }
            }
            _ => stay.set_max(limit),
        }
    }

    pub(crate) fn look(&mut self, world: &World) {
        let group = world.any_group(&mut self.rng);
        match self.rng.random_range(0..10) {
            0 => drop(world.runtime().snapshot()),
            1 => world.runtime().settle(),
            2 => drop(group.memory().drain()),
            3 => assert!(
                group
                    .inspect()
                    .descendants()
                    .all(|below| below.ancestors().any(|above| above == group))
            ),
            4 => {
                let id = lock(&world.ids).last().copied();
                if let Some(found) = id.and_then(|id| world.runtime().find(id)) {
                    assert_eq!(Some(found.id()), id);
                    drop(found.charge(Bytes(self.bytes())));
                }
            }
            5 | 6 => (0..3).for_each(|_| _ = world.runtime().release_idle_credit()),
            7 | 8 => _ = world.runtime().release_thread_credit(),
            _ => drop(std::hint::black_box((
                group.live(),
                group.inspect().live_local(),
                group.peak(),
                group.path(),
            ))),
        }
    }

    /// A group in one of the places goes offline, sometimes with all below it, and another takes
    /// the place.
    pub(crate) fn replace(&mut self, world: &World) {
        let place = &world.passing[self.rng.random_range(0..PASSING)];
        let parent = world.any_group(&mut self.rng);
        let limits = if self.rng.random_bool(0.2) {
            Limits::new().max(Limit::Bytes(self.bytes()))
        } else {
            Limits::new()
        };
        let name = self.rng.random_range(0..4 * PASSING).to_string();
        let next = match parent.create(
            &name,
            limits.low(Limit::Bytes(self.rng.random_range(0..2) * 30)),
        ) {
            Ok(group) => {
                assert_eq!(
                    (&*group.name(), group.parent()),
                    (name.as_str(), Some(parent))
                );
                lock(&world.ids).push(group.id());
                Some(group)
            }
            Err(CreateError::Taken { .. } | CreateError::Offline { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        let Some(old) = std::mem::replace(&mut *lock(place), next) else {
            return;
        };
        if self.rng.random_bool(0.3) || old.offline().is_err() {
            old.offline_tree();
        }
        assert!(old.is_offline() && old.charge(1).is_err());
    }

    pub(crate) fn charge(&mut self, world: &World) {
        let group = world.any_group(&mut self.rng);
        let bytes = self.bytes();
        let charged = if self.rng.random_bool(0.3) {
            group.try_charge(Bytes(bytes))
        } else {
            group.charge(Bytes(bytes))
        };
        match charged {
            Ok(charge) => self.held.push(charge),
            Err(error) => self.refused(&error),
        }
    }

    /// Without a guard; and a guard given up, and made again.
    pub(crate) fn raw(&mut self, world: &World) {
        let bytes = self.bytes();
        match self.rng.random_range(0..16) {
            0..6 => {
                let group = world.any_group(&mut self.rng);
                let raw = group.raw();
                let charged = if self.rng.random_bool(0.3) {
                    raw.try_charge(Bytes(bytes))
                } else {
                    raw.charge(Bytes(bytes))
                };
                match charged {
                    Ok(()) => self.raw.push((group, bytes)),
                    Err(error) => self.refused(&error),
                }
            }
            6 => {
                let group = world.any_group(&mut self.rng);
                let charged = world.forced.run(|| group.raw().force_charge(Bytes(bytes)));
                self.raw.push((group, charged));
            }
            7 | 8 => {
                if let Some(guard) = self.pick().filter(|guard| guard.bytes() > 0) {
                    let (word, bytes) = guard.into_raw();
                    // SAFETY: both are of `into_raw`, and used once.
                    #[allow(unsafe_code)]
                    self.held.push(unsafe { Charge::from_raw(word, bytes) });
                }
            }
            _ if self.raw.is_empty() => {}
            9..12 => {
                let at = self.rng.random_range(0..self.raw.len());
                let (group, held) = &mut self.raw[at];
                let part = bytes.min(*held);
                group.raw().uncharge(Bytes(part));
                *held -= part;
            }
            _ => {
                let at = self.rng.random_range(0..self.raw.len());
                let (group, held) = self.raw.swap_remove(at);
                group.raw().uncharge(Bytes(held));
            }
        }
    }

    pub(crate) fn uncharge_raw(&mut self) {
        self.raw
            .drain(..)
            .for_each(|(group, held)| group.raw().uncharge(Bytes(held)));
    }

    /// To another thread, or what others have sent to this one.
    pub(crate) fn post(&mut self, inboxes: &[Mutex<Vec<Charge>>]) {
        let inbox = &inboxes[self.rng.random_range(0..THREADS)];
        if self.rng.random_bool(0.7) {
            lock(inbox).extend(self.pick());
        } else {
            self.held.append(&mut lock(inbox));
        }
    }

    /// A charge becomes another.
    pub(crate) fn turn(&mut self, world: &World) {
        let Some(mut charge) = self.pick() else {
            return;
        };
        let bytes = self.bytes();
        let had = charge.bytes();
        let result = match self.rng.random_range(0..10) {
            0 => charge.grow(Bytes(bytes)),
            1 => charge.resize(Bytes(bytes)),
            2 => {
                world.forced.run(|| charge.force_grow(Bytes(bytes)));
                Ok(())
            }
            3 => {
                charge.shrink(Bytes(bytes));
                Ok(())
            }
            4 => {
                self.held.extend(charge.split(Bytes(bytes.min(had))));
                Ok(())
            }
            5 => {
                self.held.push(charge.take());
                Ok(())
            }
            6 | 7 => {
                if let Some(other) = self.pick()
                    && let Err(refused) = charge.merge(other)
                {
                    self.held.push(refused.into_charge());
                }
                Ok(())
            }
            _ => charge.transfer(&world.any_group(&mut self.rng)),
        };
        if let Err(error) = result {
            assert_eq!(charge.bytes(), had, "{error}");
            self.refused(&error);
        }
        self.held.push(charge);
    }
}
