//! Real threads on groups: they come and go, charges are made, split, merged, moved, handed to
//! other threads and dropped in any order, limits move.
//!
//! At quiescent points everything that is held is added up by group and compared with what each
//! group says, `verify()` compares the tree with its audit, and exactly what is left must be
//! admitted. All the time a sampler looks for a usage above its limit. In the end of each tree
//! nothing may be left: no usage, no group.
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
use memcg::Charge;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use world::World;

use crate::support::stretches::{stretches, watched};
use crate::support::turns::turn;

pub(crate) use crate::support::reclaimers::lock;

pub(crate) const THREADS: usize = 4;
const OPS: u64 = if cfg!(debug_assertions) {
    1_000_000
} else {
    5_000_000
};
const POINTS_MIN: u64 = 400;
/// A longer run has more quiescent points, not longer stretches without one.
const OPS_PER_POINT_MAX: u64 = 50_000;
/// Quiescent points in the life of one tree and one set of threads.
const POINTS_PER_TREE: u64 = 20;
const SAMPLES_MIN: u64 = 1_000;

// === impl Stress ===

/// The state that all threads see.
struct Stress {
    world: RwLock<Option<World>>,
    lanes: Vec<Mutex<Lane>>,
    inboxes: Vec<Mutex<Vec<Charge>>>,
}

impl Stress {
    fn new(seed: u64) -> Self {
        Self {
            world: RwLock::new(None),
            lanes: (1..=THREADS as u64)
                .map(|thread| Mutex::new(Lane::new(seed + thread)))
                .collect(),
            inboxes: (0..THREADS).map(|_| Mutex::default()).collect(),
        }
    }

    fn world(&self) -> RwLockReadGuard<'_, Option<World>> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize, ops: u64) {
        let mut lane = lock(&self.lanes[thread]);
        let world = self.world();
        let world = world.as_ref().expect("made before the start");
        (0..ops).for_each(|_| lane.step(world, &self.inboxes));
    }

    /// The life of one tree: some stretches of work with a quiescent point after each, then all
    /// goes.
    fn epoch(&self, seed: u64, ops: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        *self.world.write().unwrap_or_else(PoisonError::into_inner) = Some(World::random(&mut rng));
        let rest = || {
            let lanes: Vec<_> = self.lanes.iter().map(lock).collect();
            let inboxes: Vec<_> = self.inboxes.iter().map(lock).collect();
            let held = lanes
                .iter()
                .flat_map(|lane| &lane.held)
                .chain(inboxes.iter().flat_map(|inbox| inbox.iter()));
            let world = self.world();
            let raw = lanes.iter().flat_map(|lane| &lane.raw);
            world.as_ref().expect("still there").check(
                &mut rng,
                &held.collect::<Vec<_>>(),
                &raw.collect::<Vec<_>>(),
            );
        };
        stretches(
            THREADS,
            POINTS_PER_TREE,
            seed,
            |thread| self.work(thread, ops),
            rest,
        );
        self.end(seed.is_multiple_of(3));
    }

    /// All that is held is dropped by a thread that charged none of it, the runtime before it or
    /// after it.
    fn end(&self, runtime_first: bool) {
        let mut world = self
            .world
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .expect("made");
        if runtime_first {
            drop(world.runtime.take());
        }
        for lane in &self.lanes {
            let mut lane = lock(lane);
            lane.held.clear();
            lane.uncharge_raw();
        }
        self.inboxes.iter().for_each(|inbox| lock(inbox).clear());
        world.end();
    }

    /// Looks at every group that stays; returns how many looks were conclusive.
    fn sample(&self) -> u64 {
        self.world().as_ref().map_or(0, |world| {
            world.stays.iter().filter(|stay| world.sample(stay)).count() as u64
        })
    }
}

#[test]
fn groups_come_and_go_and_everything_adds_up() {
    let _turn = turn(module_path!());
    let ops = crate::ops(OPS);
    let points = POINTS_MIN.max(ops / OPS_PER_POINT_MAX);
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
    let refusals: u64 = stress.lanes.iter().map(|lane| lock(lane).refusals).sum();
    println!(
        "{ops} operations, {points} quiescent points, {refusals} refusals, {samples} samples, {:.1?}",
        begin.elapsed()
    );
    assert!(
        samples > SAMPLES_MIN,
        "only {samples} samples: the watch proves nothing"
    );
    assert!(refusals > 0, "no limit was ever reached");
}
