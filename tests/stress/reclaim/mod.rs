//! Real threads at the limit: eight groups that are full, charges that others have to make room
//! for, reclaimers that are honest, lie, panic or answer later, registrations and groups that come
//! and go, limits that move.
//!
//! At quiescent points everything that is held is added up by group and compared with what each
//! group says, `verify()` compares the tree with its audit and the groups in excess with a recount,
//! and what honest reclaimers could give must be had. All the time a sampler looks for a usage
//! above its limit. In the end of each tree nothing may be left.
//!
//! * here: the threads; `world`: a runtime, its groups, and what must hold; `lane`: what one thread
//!   does.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, as for `counters`.

mod lane;
mod world;

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use lane::Lane;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use world::World;

use crate::support::stretches::{stretches, watched};
use crate::support::turns::turn;

pub(crate) use crate::support::reclaimers::lock;

pub(crate) const THREADS: usize = 4;
const OPS: u64 = if cfg!(debug_assertions) {
    500_000
} else {
    1_250_000
};
const POINTS_MIN: u64 = 400;
/// A longer run has more quiescent points, not longer stretches without one.
const OPS_PER_POINT_MAX: u64 = 20_000;
/// Quiescent points in the life of one tree and one set of threads.
const POINTS_PER_TREE: u64 = 20;
const SAMPLES_MIN: u64 = 1_000;

/// Panics of this message are meant.
pub(crate) const ON_PURPOSE: &str = "on purpose";

/// The state that all threads see.
struct Stress {
    world: RwLock<Option<World>>,
    lanes: Vec<Mutex<Lane>>,
}

impl Stress {
    fn new(seed: u64) -> Self {
        Self {
            world: RwLock::new(None),
            lanes: (1..=THREADS as u64)
                .map(|thread| Mutex::new(Lane::new(seed + thread)))
                .collect(),
        }
    }

    fn world(&self) -> RwLockReadGuard<'_, Option<World>> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize, ops: u64) {
        let mut lane = lock(&self.lanes[thread]);
        let world = self.world();
        let world = world.as_ref().expect("made before the start");
        (0..ops).for_each(|_| lane.step(world));
    }

    /// The life of one tree: some stretches of work with a quiescent point after each, then all
    /// goes.
    fn epoch(&self, seed: u64, ops: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        *self.world.write().unwrap_or_else(PoisonError::into_inner) = Some(World::random(&mut rng));
        let rest = || {
            let mut lanes: Vec<_> = self.lanes.iter().map(lock).collect();
            let world = self.world();
            let world = world.as_ref().expect("still there");
            let held: Vec<_> = lanes.iter().flat_map(|lane| &lane.held).collect();
            world.check(&held);
            lanes.iter_mut().for_each(|lane| lane.rest());
            world.check_reclaimable(&mut rng);
        };
        stretches(
            THREADS,
            POINTS_PER_TREE,
            seed,
            |thread| self.work(thread, ops),
            rest,
        );
        self.lanes.iter().for_each(|lane| lock(lane).held.clear());
        let world = self
            .world
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        world.expect("made").end();
    }

    /// Looks at every group that stays; returns how many looks were conclusive.
    fn sample(&self) -> u64 {
        self.world().as_ref().map_or(0, |world| {
            world.stays.iter().filter(|stay| stay.sample()).count() as u64
        })
    }
}

#[test]
fn every_thread_at_the_limit() {
    let _turn = turn(module_path!());
    let ops = crate::ops(OPS);
    let ops = if cfg!(debug_assertions) {
        ops / 50
    } else {
        ops
    };
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&ON_PURPOSE) {
            before(info);
        }
    }));
    let least = if cfg!(debug_assertions) {
        20
    } else {
        POINTS_MIN
    };
    let points = (ops / OPS_PER_POINT_MAX).max(least);
    let ops_per_thread = (ops / points / THREADS as u64).max(1);
    let stress = Stress::new(1);
    let begin = Instant::now();
    let samples = watched(
        || stress.sample(),
        || {
            (1..=points.div_ceil(POINTS_PER_TREE))
                .for_each(|epoch| stress.epoch(epoch, ops_per_thread));
        },
    );
    let sum = |of: fn(&Lane) -> u64| stress.lanes.iter().map(|lane| of(&lock(lane))).sum::<u64>();
    let refusals = sum(|lane| lane.refusals);
    let admitted = sum(|lane| lane.admitted);
    println!(
        "{ops} operations, {points} points of rest, {admitted} admitted, {refusals} refused, {samples} samples, {:.1?}",
        begin.elapsed()
    );
    assert!(
        samples > SAMPLES_MIN,
        "only {samples} samples: the watch proves nothing"
    );
    assert!(refusals > 0, "no limit was ever reached");
    assert!(admitted > refusals, "hardly any thread was ever admitted");
}
