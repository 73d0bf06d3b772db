//! Real threads that hand bytes to each other through the central stocks of two groups below one
//! max, while others charge beside them, wait in line, move limits and batches, and take the groups
//! offline and create them again.
//!
//! At quiescent points everything that is held is compared with what each group says, and
//! `verify()` compares the tree with its audit. All the time a sampler looks for a usage above the
//! max, where no charge is forced. In the end of each tree nothing may be left.
//!
//! * here: the threads; `world`: a runtime, its groups, and what must hold; `lane`: what one thread
//!   does;
//! * `channels`: each charge that waits gets its turn.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, as for `counters`.

mod channels;
mod lane;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use lane::Lane;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use world::World;

use crate::support::stretches::{stretches, watched};
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

pub(crate) use crate::support::reclaimers::lock;

/// Those that produce and consume, and those that do all else.
pub(crate) const PAIRS: usize = 4;
const THREADS: usize = PAIRS + 2;
const OPS: u64 = if cfg!(debug_assertions) {
    200_000
} else {
    1_000_000
};
const POINTS_MIN: u64 = 100;
/// A longer run has more quiescent points, not longer stretches without one.
const OPS_PER_POINT_MAX: u64 = 50_000;
/// Quiescent points in the life of one tree and one set of threads.
const POINTS_PER_TREE: u64 = 10;
const SAMPLES_MIN: u64 = 500;

/// For a machine that is busy with other things: so long no thread makes a step.
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Stress ===

/// The state that all threads see.
struct Stress {
    world: RwLock<Option<World>>,
    lanes: Vec<Mutex<Lane>>,
    steps: Arc<AtomicU64>,
    forces: bool,
}

impl Stress {
    fn new(seed: u64, forces: bool) -> Self {
        let lanes = (0..THREADS)
            .map(|thread| Mutex::new(Lane::new(seed * 100 + thread as u64, thread)))
            .collect();
        Self {
            world: RwLock::new(None),
            lanes,
            steps: Arc::default(),
            forces,
        }
    }

    fn world(&self) -> RwLockReadGuard<'_, Option<World>> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize, ops: u64) {
        let mut lane = lock(&self.lanes[thread]);
        let world = self.world();
        let world = world.as_ref().expect("made before the start");
        for _ in 0..ops {
            lane.step(world);
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The life of one tree: some stretches of work with a quiescent point after each, then all
    /// goes.
    fn epoch(&self, seed: u64, ops: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        *self.world.write().unwrap_or_else(PoisonError::into_inner) =
            Some(World::random(self.forces, &mut rng));
        let rest = || {
            let lanes: Vec<_> = self.lanes.iter().map(lock).collect();
            let held: Vec<_> = lanes.iter().flat_map(|lane| &lane.held).collect();
            self.world()
                .as_ref()
                .expect("still there")
                .check(seed, &mut rng, held);
        };
        // Those that move limits make fewer steps: each costs as much as many.
        let work = |thread| {
            let steps = if thread < PAIRS {
                ops
            } else {
                ops.div_ceil(20)
            };
            self.work(thread, steps)
        };
        stretches(THREADS, POINTS_PER_TREE, seed, work, rest);
        let world = self
            .world
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .expect("made");
        self.lanes.iter().for_each(|lane| lock(lane).end());
        world.end();
    }

    fn run(&self, what: &'static str) {
        let ops = crate::ops(OPS);
        let points = POINTS_MIN.max(ops / OPS_PER_POINT_MAX);
        let ops_per_thread = (ops / points / PAIRS as u64).max(1);
        let progress = Arc::clone(&self.steps);
        let begin = Instant::now();
        let watchdog = Watchdog::start(
            what,
            PATIENCE,
            move || progress.load(Ordering::Relaxed),
            Arc::new(String::new),
        );
        let look = || self.world().as_ref().map_or(0, World::sample);
        let samples = watched(look, || {
            (1..=points.div_ceil(POINTS_PER_TREE))
                .for_each(|epoch| self.epoch(epoch, ops_per_thread));
        });
        drop(watchdog);
        let sum = |of: fn(&Lane) -> u64| self.lanes.iter().map(|lane| of(&lock(lane))).sum::<u64>();
        let taken = sum(|lane| lane.taken);
        let kept = sum(|lane| lane.kept);
        let offline = sum(|lane| lane.offline);
        println!(
            "{ops} operations, {points} quiescent points: {taken} taken, {kept} found kept, {offline} groups offline, \
             {samples} samples, {:.1?}",
            begin.elapsed()
        );
        assert!(
            kept > 0 && offline > 0,
            "{kept} found kept, {offline} groups offline"
        );
        assert!(self.forces || samples > SAMPLES_MIN, "{samples} samples");
    }
}

#[test]
fn usage_stays_within_max_and_everything_adds_up() {
    let _turn = turn(module_path!());
    Stress::new(1, false).run("central stocks");
}

#[test]
fn forced_charges_and_moving_limits_add_up() {
    let _turn = turn(module_path!());
    Stress::new(2, true).run("central stocks, forced");
}
