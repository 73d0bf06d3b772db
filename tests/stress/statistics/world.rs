//! Groups that come and go, and what is true of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::barrier::BarrierMode;
use memcg::errors::CreateError;
use memcg::{Charge, Freshness, Group, Limits, Runtime, StatKey, Unit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::support::reclaimers::lock;

/// Groups that stay for the life of their tree, and places for those that do not.
const PERMANENT: usize = 6;
const PASSING: usize = 24;
/// Charges that a thread keeps.
const HELD: usize = 40;

/// Additions to one group, for as long as any thread asks: they outlive the group.
pub(crate) struct Truth {
    /// Among all of the tree's; a parent comes before its children.
    number: usize,
    parent: Option<usize>,
    gauge: AtomicI64,
    grows: AtomicI64,
}

/// A group with its truth.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) group: Group,
    truth: Arc<Truth>,
}

/// One runtime and its groups.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    /// Goes up and down.
    gauge: StatKey,
    /// Only goes up.
    pub(crate) grows: StatKey,
    stays: Vec<Known>,
    passing: Vec<Mutex<Option<Known>>>,
    all: Mutex<Vec<Arc<Truth>>>,
}

impl World {
    pub(crate) fn random(rng: &mut SmallRng) -> Self {
        let batch = [64, 64, 8, 1, 0][rng.random_range(0..5)];
        let mut builder = Runtime::builder()
            .stat_batch(batch)
            .audit(rng.random_bool(0.3));
        if rng.random_bool(0.3) {
            builder = builder.barrier(BarrierMode::Fence);
        }
        // The last of all items now and then.
        let others = [0, 5, 49][rng.random_range(0..3)];
        for number in 0..others {
            builder.stat(&format!("other{number}"), Unit::Events);
        }
        let gauge = [StatKey::ANON, builder.stat("gauge", Unit::Bytes)][rng.random_range(0..2)];
        let grows = builder.stat("grows", Unit::Events);
        let runtime = builder.build().expect("a configuration that holds");
        let root = Arc::new(Truth {
            number: 0,
            parent: None,
            gauge: AtomicI64::new(0),
            grows: AtomicI64::new(0),
        });
        let mut world = Self {
            stays: vec![Known {
                group: runtime.root(),
                truth: Arc::clone(&root),
            }],
            passing: (0..PASSING).map(|_| Mutex::default()).collect(),
            all: Mutex::new(vec![root]),
            runtime,
            gauge,
            grows,
        };
        while world.stays.len() < PERMANENT {
            let parent = world.stays[rng.random_range(0..world.stays.len())].clone();
            let name = format!("stay{}", world.stays.len());
            let stay = world.create(&parent, &name).expect("a name");
            world.stays.push(stay);
        }
        world
    }

    fn create(&self, parent: &Known, name: &str) -> Result<Known, CreateError> {
        let group = parent.group.create(name, Limits::new())?;
        let mut all = lock(&self.all);
        let truth = Arc::new(Truth {
            number: all.len(),
            parent: Some(parent.truth.number),
            gauge: AtomicI64::new(0),
            grows: AtomicI64::new(0),
        });
        all.push(Arc::clone(&truth));
        Ok(Known { group, truth })
    }

    pub(crate) fn any(&self, rng: &mut SmallRng) -> Known {
        match rng.random_range(0..PERMANENT + 2 * PASSING) {
            stay if stay < PERMANENT => self.stays[stay].clone(),
            place => {
                let passing = lock(&self.passing[(place - PERMANENT) % PASSING]).clone();
                passing.unwrap_or_else(|| self.stays[place % PERMANENT].clone())
            }
        }
    }

    /// A group in one of the places goes offline, sometimes with all below it, and another takes
    /// the place.
    fn replace(&self, rng: &mut SmallRng) {
        let place = &self.passing[rng.random_range(0..PASSING)];
        let parent = self.any(rng);
        let next = match self.create(&parent, &rng.random_range(0..4 * PASSING).to_string()) {
            Ok(known) => Some(known),
            Err(CreateError::Taken { .. } | CreateError::Offline { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        let Some(old) = std::mem::replace(&mut *lock(place), next) else {
            return;
        };
        if rng.random_bool(0.3) || old.group.offline().is_err() {
            old.group.offline_tree();
        }
        if rng.random_bool(0.5) {
            // Its last words, unless another thread holds it.
            self.add(&old, self.gauge, -3, |delta| {
                old.group.stat_add(self.gauge, delta)
            });
            self.add(&old, self.grows, 1, |delta| {
                old.group.stat_add(self.grows, delta)
            });
        }
    }

    fn add(&self, known: &Known, stat: StatKey, delta: i64, add: impl FnOnce(i64)) {
        add(delta);
        let truth = if stat == self.gauge {
            &known.truth.gauge
        } else {
            &known.truth.grows
        };
        truth.fetch_add(delta, Ordering::Relaxed);
    }

    /// No thread writes: every group that any thread holds is exactly what was added to it, and
    /// below it.
    #[track_caller]
    pub(crate) fn check(&self, rng: &mut SmallRng) {
        let all = lock(&self.all);
        let mut subtree: Vec<[i64; 2]> = all
            .iter()
            .map(|truth| {
                [
                    truth.gauge.load(Ordering::Relaxed),
                    truth.grows.load(Ordering::Relaxed),
                ]
            })
            .collect();
        let own = subtree.clone();
        for number in (1..all.len()).rev() {
            let parent = all[number].parent.expect("no root");
            let below = subtree[number];
            subtree[parent]
                .iter_mut()
                .zip(below)
                .for_each(|(sum, below)| *sum += below);
        }
        let stale = rng.random_bool(0.3);
        if stale {
            self.runtime.root().inspect().flush();
        }
        let mut held: Vec<Known> = self
            .passing
            .iter()
            .filter_map(|place| lock(place).clone())
            .collect();
        held.extend(self.stays.iter().cloned());
        while !held.is_empty() {
            let known = held.swap_remove(rng.random_range(0..held.len()));
            let stats = if stale {
                known.group.read(Freshness::Stale)
            } else {
                known.group.read(Freshness::Exact)
            };
            let number = known.truth.number;
            for (item, stat) in [self.gauge, self.grows].into_iter().enumerate() {
                assert_eq!(
                    (stats.get(stat), stats.local(stat)),
                    (subtree[number][item], own[number][item]),
                    "{stat:?} of {:?}, stale: {stale}",
                    known.group
                );
            }
        }
    }

    /// All goes, in some order. What was added is with the root, exactly. Returns how many groups
    /// there were.
    pub(crate) fn end(self, lanes: Vec<Lane>, rng: &mut SmallRng) -> u64 {
        let root = self.stays[0].clone();
        let mut steps: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(move || drop(lanes)),
            Box::new(move || drop(self.passing)),
            Box::new(move || drop(self.stays)),
            Box::new(move || drop(self.runtime)),
        ];
        while !steps.is_empty() {
            steps.swap_remove(rng.random_range(0..steps.len()))();
        }
        let all = lock(&self.all);
        let sum = |of: fn(&Truth) -> &AtomicI64| {
            all.iter()
                .map(|truth| of(truth).load(Ordering::Relaxed))
                .sum::<i64>()
        };
        let now = root.group.read(Freshness::Exact);
        assert_eq!(now.get(self.gauge), sum(|truth| &truth.gauge));
        assert_eq!(now.get(self.grows), sum(|truth| &truth.grows));
        assert_eq!(
            now.local(self.grows),
            root.truth.grows.load(Ordering::Relaxed)
        );
        all.len() as u64
    }
}

/// The state of a worker from one stretch to the next.
pub(crate) struct Lane {
    rng: SmallRng,
    held: Vec<(Charge, Known)>,
    /// The groups that it writes to for a while. The cells of the others go idle.
    favourites: Vec<Known>,
    gauges: HashMap<usize, i64>,
}

impl Lane {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            held: Vec::new(),
            favourites: Vec::new(),
            gauges: HashMap::new(),
        }
    }

    pub(crate) fn step(&mut self, world: &World) {
        match self.rng.random_range(0..1_000) {
            0..15 => world.replace(&mut self.rng),
            15..25 => {
                let favourites = (0..self.rng.random_range(1..6))
                    .map(|_| world.any(&mut self.rng))
                    .collect();
                self.favourites = favourites;
            }
            25..40 => {
                let known = world.any(&mut self.rng);
                if let Ok(charge) = known.group.charge(self.rng.random_range(0..100)) {
                    self.held.push((charge, known));
                }
                if self.held.len() > HELD {
                    // The last words of a charge.
                    let at = self.rng.random_range(0..HELD);
                    let (charge, known) = self.held.swap_remove(at);
                    world.add(&known, world.grows, 2, |delta| {
                        charge.stat_add(world.grows, delta)
                    });
                    let Known { group, truth } = known;
                    drop(group);
                    charge.stat_add(world.gauge, 5);
                    truth.gauge.fetch_add(5, Ordering::Relaxed);
                }
            }
            40..60 if !self.held.is_empty() => {
                let (charge, known) = &self.held[self.rng.random_range(0..self.held.len())];
                world.add(known, world.grows, 1, |delta| {
                    charge.stat_add(world.grows, delta)
                });
            }
            60..62 => drop(world.any(&mut self.rng).group.read(Freshness::Threshold)),
            _ => {
                let known = match self.favourites.len() {
                    0 => world.any(&mut self.rng),
                    many => self.favourites[self.rng.random_range(0..many)].clone(),
                };
                self.write(world, &known);
            }
        }
    }

    fn write(&mut self, world: &World, known: &Known) {
        match self.rng.random_range(0..4) {
            0 => {
                let delta = self.rng.random_range(1..5);
                world.add(known, world.grows, delta, |delta| {
                    known.group.stat_add(world.grows, delta)
                });
            }
            1 => {
                // It takes back its additions, elsewhere or here.
                let delta = self.gauges.remove(&known.truth.number).unwrap_or(0);
                world.add(known, world.gauge, -delta, |delta| {
                    known.group.stat_add(world.gauge, delta)
                });
            }
            _ => {
                let delta = [1, 100, 4_096, 1 << 20][self.rng.random_range(0..4)];
                *self.gauges.entry(known.truth.number).or_default() += delta;
                world.add(known, world.gauge, delta, |delta| {
                    known.group.stat_add(world.gauge, delta)
                });
            }
        }
    }
}
