//! Real threads on statistics: some write to groups that come and go, some flush subtrees, one
//! flushes all now and then, some read without a flush.
//!
//! At quiescent points every group must be exactly what was added to it and below it. Meanwhile a
//! parent that is read after its child shows no less for what only grows, and no read is off by
//! more than it says.
//!
//! * here: the threads; `world`: the groups, and what is true of them;
//! * `own`: what a thread that ends reads, and what a flush shows; `idle`: cells that are written
//!   when they are about to be forgotten;
//! * `gauge`: exact reads of what goes up and down;
//! * `limit`: a limit kept on a statistic.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, as for `counters`.

mod gauge;
mod idle;
mod limit;
mod own;
mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::barrier::BarrierMode;
use memcg::{Freshness, Group, Runtime, RuntimeBuilder, StatKey};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use world::{Lane, World};

use crate::support::turns::turn;

const WRITERS: u64 = 3;
const FLUSHERS: u64 = 2;
const OPS: u64 = if cfg!(debug_assertions) {
    300_000
} else {
    3_000_000
};
/// Each is the end of all threads: the next ones take over their cells.
const OPS_PER_POINT: u64 = 15_000;
const POINTS_PER_TREE: u64 = 5;

fn ops() -> u64 {
    crate::ops(OPS)
}

/// Sets a flag when it goes, by a panic too: no thread waits for a thread that has failed.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

const READS: [Freshness; 4] = [
    Freshness::Stale,
    Freshness::Threshold,
    Freshness::Within(100),
    Freshness::Exact,
];

fn any_read(rng: &mut SmallRng) -> Freshness {
    READS[[0, 0, 0, 0, 1, 1, 2, 3][rng.random_range(0..8)]]
}

/// Flushes subtrees, in one way or the other, until all writers are done.
fn flush(world: &World, seed: u64, done: &AtomicBool) {
    let mut rng = SmallRng::seed_from_u64(seed);
    while !done.load(Ordering::SeqCst) {
        let group = world.any(&mut rng).group;
        match rng.random_range(0..8) {
            0 => drop(group.read(Freshness::Exact)),
            1 => drop(group.read(Freshness::Within(rng.random_range(0..200)))),
            2 => drop(group.inspect().flush_ratelimited()),
            3 => world.runtime.root().inspect().flush(),
            4 => std::thread::sleep(Duration::from_micros(rng.random_range(0..300))),
            _ => group.inspect().flush(),
        }
    }
}

/// Reads a child and then one above it, in any way: what only grows is no less above. Returns how
/// often it looked.
fn compare(world: &World, seed: u64, done: &AtomicBool) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut looks = 0;
    while !done.load(Ordering::SeqCst) {
        let child = world.any(&mut rng).group;
        let above: Vec<Group> = child.ancestors().collect();
        let mut below = child.read(any_read(&mut rng)).get(world.grows);
        let again = child.read(any_read(&mut rng)).get(world.grows);
        assert!(again >= below, "{child:?}: {again} after {below}");
        below = again;
        for parent in &above {
            if rng.random_bool(0.5) {
                let now = parent.read(any_read(&mut rng)).get(world.grows);
                assert!(
                    now >= below,
                    "{parent:?}: {now}, and below it there were {below}"
                );
                below = now;
            }
        }
        looks += 1;
        if looks % 64 == 0 {
            std::thread::yield_now();
        }
    }
    looks
}

/// Work with a quiescent point behind it.
fn stretch(world: &World, lanes: &mut [Lane], seed: u64, ops: u64) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        for flusher in 0..FLUSHERS {
            scope.spawn(move || flush(world, seed * 31 + flusher, done));
        }
        let comparer = scope.spawn(move || compare(world, seed * 37, done));
        let _done = Done(done);
        let writers: Vec<_> = lanes
            .iter_mut()
            .map(|lane| scope.spawn(move || (0..ops / WRITERS).for_each(|_| lane.step(world))))
            .collect();
        for writer in writers {
            if let Err(panic) = writer.join() {
                std::panic::resume_unwind(panic);
            }
        }
        done.store(true, Ordering::SeqCst);
        comparer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn groups_come_and_go_and_every_figure_is_exact() {
    let _turn = turn(module_path!());
    let points = (ops() / OPS_PER_POINT).max(1);
    let begin = Instant::now();
    let mut looks = 0;
    let mut groups = 0;
    let mut unlists = 0;
    for tree in 0..points.div_ceil(POINTS_PER_TREE) {
        let mut rng = SmallRng::seed_from_u64(tree);
        let world = World::random(&mut rng);
        if rng.random_bool(0.7) {
            let period = Duration::from_micros(rng.random_range(20..2_000));
            world.runtime.start_flusher(period).expect("a period");
        }
        let mut lanes: Vec<Lane> = (0..WRITERS)
            .map(|lane| Lane::new(tree * 100 + lane))
            .collect();
        for point in 0..POINTS_PER_TREE {
            looks += stretch(&world, &mut lanes, tree * 1_000 + point, OPS_PER_POINT);
            world.check(&mut rng);
        }
        let counts = world.runtime.counts();
        assert_eq!((counts.foreign_stats, counts.underflows), (0, 0));
        unlists += counts.stat_unlists;
        groups += world.end(lanes, &mut rng);
    }
    println!(
        "{points} quiescent points, {groups} groups, {unlists} cells unlisted, {looks} looks, {:.1?}",
        begin.elapsed()
    );
    assert!(looks > points, "only {looks} looks: they prove nothing");
    assert!(groups > 10 * points, "only {groups} groups came");
    assert!(unlists > points, "only {unlists} cells were ever idle");
}

/// R{A{B{C}}}: what is done at each level, and at all below it. Told after it was added, and
/// before.
struct Levels {
    groups: Vec<Group>,
    begun: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
}

impl Levels {
    fn new(runtime: &Runtime) -> Self {
        let mut groups = vec![runtime.root()];
        for name in ["a", "b", "c"] {
            groups.push(
                groups[groups.len() - 1]
                    .create(name, memcg::Limits::new())
                    .expect("a name"),
            );
        }
        let zeros = || groups.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            begun: zeros(),
            done: zeros(),
            groups,
        }
    }

    fn add(&self, level: usize, stat: StatKey, units: u64) {
        for begun in &self.begun[..=level] {
            begun.fetch_add(units, Ordering::SeqCst);
        }
        self.groups[level].stat_add(stat, units as i64);
        for done in &self.done[..=level] {
            done.fetch_add(units, Ordering::SeqCst);
        }
    }

    /// Additions before the read that are not in it are within the bound; those in it have been
    /// begun.
    fn look(&self, level: usize, stat: StatKey, freshness: Freshness) -> u64 {
        let done = self.done[level].load(Ordering::SeqCst);
        let stats = self.groups[level].read(freshness);
        let begun = self.begun[level].load(Ordering::SeqCst);
        let found = u64::try_from(stats.get(stat)).expect("it only grows");
        assert!(
            found <= begun,
            "level {level}: {found} found, {begun} begun"
        );
        let missing = done.saturating_sub(found);
        assert!(
            missing <= stats.max_error(),
            "level {level}: {missing} missing, at most {}",
            stats.max_error()
        );
        missing
    }
}

/// All writers write, pause until they are off the lists, and come back; a read by another thread
/// is never off by more than it says, while flushes of all subtrees run.
#[test]
fn a_read_is_honest_while_others_write() {
    let _turn = turn(module_path!());
    let stat = StatKey::WORKINGSET_REFAULT;
    let rounds = ops() / 2_000;
    let plain = Runtime::builder;
    let kinds: [RuntimeBuilder; 4] = [
        plain().stat_batch(64),
        plain().stat_batch(4),
        plain().stat_batch(1),
        plain().stat_batch(16).barrier(BarrierMode::Fence),
    ];
    for builder in kinds {
        let runtime = builder.build().expect("a configuration");
        let levels = Levels::new(&runtime);
        let writing = AtomicU64::new(WRITERS);
        // Writers go on until a look has missed something.
        let stale = AtomicBool::new(false);
        let (looks, missed) = std::thread::scope(|scope| {
            for seed in 0..WRITERS {
                let levels = &levels;
                let writing = &writing;
                let stale = &stale;
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(seed);
                    let mut round = 0;
                    while round < rounds / WRITERS
                        || (!stale.load(Ordering::Relaxed) && round < 100 * rounds)
                    {
                        round += 1;
                        let level = rng.random_range(0..4);
                        for _ in 0..rng.random_range(1..60) {
                            levels.add(level, stat, [1, 1, 1, 2, 7, 40][rng.random_range(0..6)]);
                        }
                        if rng.random_bool(0.05) {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    }
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
            }
            let levels = &levels;
            let writing = &writing;
            let stale = &stale;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(99);
                while writing.load(Ordering::SeqCst) > 0 {
                    levels.groups[rng.random_range(0..4)].inspect().flush();
                    if rng.random_bool(0.1) {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            });
            let reader = scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(98);
                let mut looks = 0_u64;
                let mut missed = 0;
                while writing.load(Ordering::SeqCst) > 0 {
                    missed += levels.look(rng.random_range(0..4), stat, any_read(&mut rng));
                    looks += 1;
                    stale.store(missed > 0, Ordering::Relaxed);
                }
                (looks, missed)
            });
            reader
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        for (level, group) in levels.groups.iter().enumerate() {
            assert_eq!(
                group.read(Freshness::Exact).get(stat) as u64,
                levels.done[level].load(Ordering::SeqCst)
            );
        }
        println!(
            "{looks} looks, {missed} units missed, {:?}",
            runtime.counts()
        );
        assert!(
            looks > 0 && missed > 0,
            "{looks} looks, {missed} missed: nothing was ever stale"
        );
    }
}
