//! The work of one thread.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memcg::CentralStock;
use memcg::{Bytes, Charge, ChargeError, Limit, Limits, OnFull};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::world::{BATCHES, MAX, World};
use super::{PAIRS, lock};

/// More is not held, by a queue and by a lane.
const HELD_MAX: usize = 40;

/// The time that a charge may wait: others need the room, too.
const WAIT: Duration = Duration::from_micros(500);

/// The state of a worker from one stretch to the next.
pub(crate) struct Lane {
    rng: SmallRng,
    thread: usize,
    pub(crate) held: Vec<Charge>,
    /// Charges by way of a stock; how often there was credit after a put; groups that were taken
    /// offline.
    pub(crate) taken: u64,
    pub(crate) kept: u64,
    pub(crate) offline: u64,
}

impl Lane {
    pub(crate) fn new(seed: u64, thread: usize) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            thread,
            held: Vec::new(),
            taken: 0,
            kept: 0,
            offline: 0,
        }
    }

    pub(crate) fn end(&mut self) {
        self.held.clear();
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0 => 0,
            1 => self.rng.random_range(0..3_000),
            2 | 3 => [1, 15, 16, 17, 200][self.rng.random_range(0..5)],
            _ => self.rng.random_range(1..400),
        }
    }

    pub(crate) fn step(&mut self, world: &World) {
        // Half of the pairs' threads mostly produce, the others mostly consume.
        match self.rng.random_range(0..100) {
            _ if self.thread >= PAIRS => self.beside(world),
            0..2 => self.keep_one(world),
            2..4 => drop(self.pick()),
            roll if (roll < 80) == (self.thread < PAIRS / 2) => self.produce(world),
            _ => self.consume(world),
        }
    }

    fn produce(&mut self, world: &World) {
        let queue = &world.queues[self.thread % 2];
        if lock(&queue.messages).len() > HELD_MAX {
            return self.consume(world);
        }
        let stock = queue.stock();
        let bytes = Bytes(self.bytes());
        let charge = match stock.charge_if_room(bytes) {
            Some(charge) => Some(charge),
            None if self.rng.random_bool(0.1) => {
                self.checked(bytes, stock.group().charge_with(bytes, OnFull::Wait(WAIT)))
            }
            None => None,
        };
        self.taken += u64::from(charge.is_some());
        lock(&queue.messages).extend(charge);
    }

    fn consume(&mut self, world: &World) {
        let queue = &world.queues[self.thread % 2];
        let message = lock(&queue.messages).pop_front();
        let stock = queue.stock();
        if let Some(charge) = message {
            self.give_back(&stock, charge);
        }
    }

    /// To the stock of its group, or to another one, which drops it.
    fn give_back(&mut self, stock: &CentralStock, charge: Charge) {
        stock.give_back(charge);
        self.kept += u64::from(stock.credit() > 0);
    }

    fn keep_one(&mut self, world: &World) {
        let queue = self.rng.random_range(0..2);
        let bytes = self.bytes();
        self.held
            .extend(world.queues[queue].stock().charge_if_room(Bytes(bytes)));
        self.trim();
    }

    fn trim(&mut self) {
        while self.held.len() > HELD_MAX {
            drop(self.pick());
        }
    }

    fn pick(&mut self) -> Option<Charge> {
        (!self.held.is_empty()).then(|| {
            self.held
                .swap_remove(self.rng.random_range(0..self.held.len()))
        })
    }

    /// There is no other way for a charge to fail here. A refusal is for want of room, or others
    /// are first in line.
    fn checked(&self, bytes: Bytes, charged: Result<Charge, ChargeError>) -> Option<Charge> {
        match charged {
            Ok(charge) => return Some(charge),
            Err(error) if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                assert_eq!(refusal.requested(), bytes.0, "{refusal}")
            }
            Err(error) if error.is_timeout() => {}
            Err(error) if error.is_offline() => assert!(error.group().is_offline()),
            Err(other) => panic!("{other}"),
        }
        None
    }

    /// Whatever is not of a pair.
    fn beside(&mut self, world: &World) {
        let queue = self.rng.random_range(0..2);
        let stock = world.queues[queue].stock();
        let group =
            [&world.parent, &world.beside, stock.group()][self.rng.random_range(0..3)].clone();
        let bytes = Bytes(self.bytes());
        match self.rng.random_range(0..100) {
            0..20 => {
                let charged = self.checked(bytes, group.charge(bytes));
                self.held.extend(charged);
            }
            20..30 => {
                let all = Bytes(self.rng.random_range(0..MAX));
                drop(self.checked(all, group.charge_with(all, OnFull::Wait(WAIT))));
            }
            30..36 => self.poll_once(&group, bytes),
            36..60 => drop(self.pick()),
            60..66 => {
                if let Some(charge) = self.pick() {
                    self.give_back(&stock, charge);
                }
            }
            66..70 => group
                .memory()
                .set_batch(BATCHES[self.rng.random_range(0..5)]),
            70..76 => self.set_max(world, stock.group()),
            76..82 => {
                world.replace(queue);
                self.offline += 1;
            }
            82..85 => drop(group.memory().drain()),
            85..88 => _ = stock.release_credit(),
            88..91 => drop(group.reclaim(1)),
            91..94 => (0..2).for_each(|_| _ = world.runtime.release_idle_credit()),
            94..96 => drop(std::hint::black_box((
                group.live(),
                group.memory().stocked(),
                world.runtime.snapshot(),
            ))),
            96..98 => self.set_high(stock.group()),
            _ if world.forces => self.held.push(group.force_charge(bytes)),
            _ => {}
        }
        self.trim();
    }

    /// In line, and out of it again where it is not admitted at once.
    fn poll_once(&mut self, group: &memcg::Group, bytes: Bytes) {
        let mut waiter = pin!(group.charge_async(bytes));
        for _ in 0..self.rng.random_range(1..4) {
            if let Poll::Ready(charged) = waiter
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                let charged = self.checked(bytes, charged);
                self.held.extend(charged);
                return;
            }
            std::thread::yield_now();
        }
    }

    fn set_max(&mut self, world: &World, queue: &memcg::Group) {
        let limit = match self.rng.random_range(0..6) {
            0 => Limit::Bytes(self.rng.random_range(0..MAX)),
            1 => Limit::Bytes(queue.live()),
            _ => Limit::Unlimited,
        };
        queue.set_max(limit).expect("a number");
        if world.forces {
            let max = if self.rng.random_bool(0.3) {
                self.rng.random_range(0..MAX)
            } else {
                MAX
            };
            world.parent.set_max(Limit::Bytes(max)).expect("a number");
        }
    }

    /// Most of the time there is none: charges above it are delayed.
    fn set_high(&mut self, queue: &memcg::Group) {
        let high = if self.rng.random_bool(0.2) {
            Limit::Bytes(queue.live())
        } else {
            Limit::Unlimited
        };
        queue
            .set_limits(Limits::new().high(high))
            .expect("a number");
        queue
            .set_limits(Limits::new().high(Limit::Unlimited))
            .expect("a number");
    }
}
