//! Real threads on random trees: charges, frees on other threads, forced charges, moving limits,
//! drains, switches, counters that come and go, threads that end.
//!
//! The threads rest a thousand times or more. Then the test compares every counter with what it
//! knows to be charged, `verify()` compares the tree with its audit, and a charge of exactly what
//! is left is admitted. All the time a sampler looks for a usage above its limit.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations (default 5 * 10^6, a fifth of it without
//! optimisation: some seconds). The long form:
//!
//! `MEMCG_STRESS_OPS=1000000000 cargo test --release --test stress counters:: -- --nocapture`

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use memcg::barrier::BarrierMode;
use memcg::{CounterConfig, PageCounter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::forced::Forced;
use crate::support::reclaimers::lock;
use crate::support::stretches::{stretches, watched};
use crate::support::turns::turn;

const THREADS: usize = 4;
const OPS: u64 = if cfg!(debug_assertions) {
    1_000_000
} else {
    5_000_000
};
const POINTS_MIN: u64 = 1_000;
/// A longer run has more quiescent points, not longer stretches without one.
const OPS_PER_POINT_MAX: u64 = 50_000;
/// Quiescent points in the life of one tree and one set of threads.
const POINTS_PER_TREE: u64 = 25;
const COUNTERS: usize = 20;
/// The first counters stay for the life of their tree; the others are leaves and are replaced.
const PERMANENT: usize = 12;
const SAMPLES_MIN: u64 = 1_000;

// === impl Node ===

struct Node {
    counter: PageCounter,
    parent: Option<usize>,
    /// Counts the counters that stood in this place; what is held of an earlier one is gone with
    /// it.
    generation: u32,
    /// Units charged to this counter, and to passing children of it.
    tally: AtomicI64,
    /// One setter at a time. What each worker's count of steps was when the max was last set.
    setter: Mutex<Vec<u64>>,
}

impl Node {
    fn new(counter: PageCounter, parent: Option<usize>, generation: u32) -> Self {
        Self {
            counter,
            parent,
            generation,
            tally: AtomicI64::new(0),
            setter: Mutex::default(),
        }
    }

    fn add(&self, units: u64) {
        self.tally.fetch_add(units as i64, Ordering::Relaxed);
    }

    fn sub(&self, units: u64) {
        self.tally.fetch_sub(units as i64, Ordering::Relaxed);
    }

    fn set_max(&self, max: u64, steps: &Steps) {
        let mut setter = lock(&self.setter);
        let set = self.counter.set_max(max);
        *setter = steps.now();
        if let Err(busy) = set {
            assert_eq!(busy.level, self.counter.id(), "{busy}");
            assert!(busy.usage > max, "{busy}");
        }
    }

    /// Looks once; `false` where usage may rightly be above max: a max is being set, a forced
    /// charge is under way, or a walk that began under an earlier max may not have been undone yet.
    ///
    /// Forced excess is read before usage: while no charge is forced it only falls, so it was at
    /// least as large as that when usage was read.
    fn sample(&self, steps: &Steps, forced_charges: &Forced) -> bool {
        let Ok(setter) = self.setter.try_lock() else {
            return false;
        };
        let Some(still) = forced_charges.still() else {
            return false;
        };
        if !steps.are_past(&setter) {
            return false;
        }
        let counter = &self.counter;
        let forced = counter.forced();
        let max = counter.max();
        let usage = counter.usage();
        if forced_charges.still() != Some(still) {
            return false;
        }
        assert!(
            usage.saturating_sub(forced) <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            counter.id()
        );
        true
    }
}

// === impl Steps ===

/// Counts what each worker begins and ends: odd while it is in a step.
#[derive(Default)]
struct Steps([AtomicU64; THREADS]);

impl Steps {
    fn run(&self, thread: usize, step: impl FnOnce()) {
        self.0[thread].fetch_add(1, Ordering::SeqCst);
        step();
        self.0[thread].fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> Vec<u64> {
        self.0
            .iter()
            .map(|steps| steps.load(Ordering::SeqCst))
            .collect()
    }

    /// Every step that was under way then has ended.
    fn are_past(&self, then: &[u64]) -> bool {
        self.now()
            .iter()
            .zip(then)
            .all(|(now, then)| then % 2 == 0 || now != then)
    }
}

// === impl Tree ===

struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    fn random(rng: &mut SmallRng) -> Self {
        let mut config = CounterConfig::new()
            .audit(true)
            .batch([64, 64, 2, 16, 200][rng.random_range(0..5)])
            .adaptive(rng.random_bool(0.7));
        if rng.random_bool(0.3) {
            config = config.barrier(BarrierMode::Fence);
        }
        if rng.random_bool(0.3) {
            config = config.budget(rng.random_range(0..5_000));
        }
        let mut nodes = vec![Node::new(PageCounter::root(config), None, 0)];
        while nodes.len() < COUNTERS {
            let parent = rng.random_range(0..nodes.len().min(PERMANENT));
            let child = nodes[parent].counter.child();
            nodes.push(Node::new(child, Some(parent), 0));
        }
        Self { nodes }
    }

    fn root(&self) -> &PageCounter {
        &self.nodes[0].counter
    }

    fn path(&self, index: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(index), |&index| self.nodes[index].parent)
    }

    /// The units charged in each subtree, by the test's own count.
    fn live(&self) -> Vec<u64> {
        let mut live = vec![0; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let tally = self.nodes[index].tally.load(Ordering::Relaxed);
            self.path(index).for_each(|level| live[level] += tally);
        }
        live.into_iter()
            .map(|units| u64::try_from(units).expect("no more is freed than was charged"))
            .collect()
    }

    /// No thread charges: everything must add up.
    fn check(&self, rng: &mut SmallRng) {
        let live = self.live();
        let verdict = self.root().verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        for (node, &live) in self.nodes.iter().zip(&live) {
            let counter = &node.counter;
            let usage = counter.usage();
            let stocked = counter.stocked();
            let forced = counter.forced();
            let max = counter.max();
            assert_eq!(
                (counter.live(), usage),
                (live, live + stocked),
                "{}",
                counter.id()
            );
            assert!(
                stocked <= counter.stocked_bound(),
                "{}: {stocked} stocked",
                counter.id()
            );
            let ordinary = usage
                .checked_sub(forced)
                .expect("what was forced in is part of usage");
            assert!(
                ordinary <= max,
                "{}: usage {usage}, forced {forced}, max {max}",
                counter.id()
            );
        }
        let counts = self.root().counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
        self.check_never_refused(&live, rng.random_range(0..self.nodes.len()));
    }

    /// All that is left below every limit is admitted to the unit, wherever the credit is; one more
    /// is not.
    fn check_never_refused(&self, live: &[u64], index: usize) {
        let counter = &self.nodes[index].counter;
        let margin = |level: usize| self.nodes[level].counter.max().saturating_sub(live[level]);
        let margin = self
            .path(index)
            .map(margin)
            .min()
            .expect("a path has a level");
        if margin > 1 << 40 {
            return;
        }
        for charge in [PageCounter::charge, PageCounter::try_charge] {
            charge(counter, margin)
                .unwrap_or_else(|refused| panic!("{margin} are left: {refused}"));
            counter.uncharge(margin);
            let refused = charge(counter, margin + 1).expect_err("one more than is left");
            assert!(refused.usage + margin + 1 > refused.max, "{refused}");
        }
    }

    /// A leaf goes, sometimes with units still charged to it, and another takes its place.
    fn replace(&mut self, rng: &mut SmallRng) {
        let index = rng.random_range(PERMANENT..COUNTERS);
        let parent = rng.random_range(0..PERMANENT);
        let generation = self.nodes[index].generation + 1;
        let next = Node::new(self.nodes[parent].counter.child(), Some(parent), generation);
        let old = std::mem::replace(&mut self.nodes[index], next);
        if rng.random_bool(0.5) {
            old.counter.uncharge(old.tally.into_inner() as u64);
        }
    }
}

// === impl Lane ===

/// Something that one thread hands to another.
enum Parcel {
    /// Units to free.
    Held(Held),
    /// A counter to drop, the place its parent stands in, and what is charged to it.
    Passing(PageCounter, usize, u64),
}

#[derive(Clone, Copy)]
struct Held {
    index: usize,
    generation: u32,
    units: u64,
}

/// The state of a worker from one thread to the next.
struct Lane {
    rng: SmallRng,
    held: Vec<Held>,
}

/// The state that all threads see.
struct Stress {
    tree: RwLock<Tree>,
    lanes: Vec<Mutex<Lane>>,
    inboxes: Vec<Mutex<Vec<Parcel>>>,
    steps: Steps,
    forced: Forced,
    ops: AtomicU64,
    refusals: AtomicU64,
}

impl Lane {
    fn units(&mut self) -> u64 {
        match self.rng.random_range(0..10) {
            0 => self.rng.random_range(0..200),
            1 => 64,
            _ => self.rng.random_range(1..16),
        }
    }

    fn step(&mut self, stress: &Stress, tree: &Tree) {
        let index = self.rng.random_range(0..tree.nodes.len());
        let node = &tree.nodes[index];
        match self.rng.random_range(0..4_000) {
            0..8 => self.set_max(stress, node),
            8 => node
                .counter
                .set_batch([0, 1, 2, 16, 64, 64, 200][self.rng.random_range(0..7)]),
            9..12 => drop(node.counter.drain()),
            12..16 => node.counter.set_min(self.units()),
            16..20 => node.counter.set_low(self.units()),
            20..30 => {
                std::hint::black_box((
                    node.counter.live(),
                    node.counter.peak(),
                    node.counter.stocked_bound(),
                ));
            }
            30..50 => {
                let units = self.units();
                stress.forced.run(|| node.counter.force_charge(units));
                self.keep(stress, node, index, units);
            }
            50..70 => self.passing(stress, tree),
            70..100 => self.open(stress, tree),
            100..2_050 => self.charge(stress, tree, index),
            _ => self.free_one(tree),
        }
    }

    fn set_max(&mut self, stress: &Stress, node: &Node) {
        let max = match self.rng.random_range(0..8) {
            0 => self.rng.random_range(0..100),
            1 => node.counter.live(),
            2 | 3 => node.counter.live() + self.rng.random_range(0..3_000),
            _ => PageCounter::UNLIMITED,
        };
        node.set_max(max, &stress.steps);
    }

    fn charge(&mut self, stress: &Stress, tree: &Tree, index: usize) {
        let units = self.units();
        let charge = if self.rng.random_bool(0.3) {
            PageCounter::try_charge
        } else {
            PageCounter::charge
        };
        match charge(&tree.nodes[index].counter, units) {
            Ok(()) => self.keep(stress, &tree.nodes[index], index, units),
            Err(refused) => {
                assert_eq!(
                    (refused.requester, refused.requested),
                    (tree.nodes[index].counter.id(), units)
                );
                assert!(refused.usage + units > refused.max, "{refused}");
                stress.refusals.fetch_add(1, Ordering::Relaxed);
                (0..4).for_each(|_| self.free_one(tree));
            }
        }
    }

    /// A third is freed by another thread.
    fn keep(&mut self, stress: &Stress, node: &Node, index: usize, units: u64) {
        node.add(units);
        let held = Held {
            index,
            generation: node.generation,
            units,
        };
        if self.rng.random_range(0..3) == 0 {
            self.post(stress, Parcel::Held(held));
        } else {
            self.held.push(held);
        }
    }

    fn post(&mut self, stress: &Stress, parcel: Parcel) {
        let to = self.rng.random_range(0..THREADS);
        lock(&stress.inboxes[to]).push(parcel);
    }

    /// A counter for a moment, with one of its own below it; often its last handle is dropped by
    /// another thread.
    fn passing(&mut self, stress: &Stress, tree: &Tree) {
        let index = self.rng.random_range(0..PERMANENT);
        let node = &tree.nodes[index];
        let passing = node.counter.child();
        let below = passing.child();
        if below.charge(self.units()).is_err() {
            return;
        }
        let units = self.units();
        let charged = if passing.charge(units).is_ok() {
            units
        } else {
            0
        };
        // Charges of the lower one leave with it.
        drop(below);
        node.add(charged);
        if self.rng.random_bool(0.5) {
            self.post(stress, Parcel::Passing(passing, index, charged));
        } else {
            drop(passing);
            node.sub(charged);
        }
    }

    fn open(&mut self, stress: &Stress, tree: &Tree) {
        let mine = self.rng.random_range(0..THREADS);
        let parcels = std::mem::take(&mut *lock(&stress.inboxes[mine]));
        for parcel in parcels {
            match parcel {
                Parcel::Held(held) => self.free(tree, held),
                Parcel::Passing(counter, index, units) => {
                    drop(counter);
                    tree.nodes[index].sub(units);
                }
            }
        }
    }

    fn free_one(&mut self, tree: &Tree) {
        if self.held.is_empty() {
            return;
        }
        let held = self
            .held
            .swap_remove(self.rng.random_range(0..self.held.len()));
        self.free(tree, held);
    }

    fn free(&mut self, tree: &Tree, held: Held) {
        let node = &tree.nodes[held.index];
        if node.generation == held.generation {
            node.counter.uncharge(held.units);
            node.sub(held.units);
        }
    }
}

// === impl Stress ===

impl Stress {
    fn new(seed: u64) -> Self {
        let lane = |thread| {
            Mutex::new(Lane {
                rng: SmallRng::seed_from_u64(seed + thread),
                held: Vec::new(),
            })
        };
        Self {
            tree: RwLock::new(Tree::random(&mut SmallRng::seed_from_u64(seed))),
            lanes: (1..=THREADS as u64).map(lane).collect(),
            inboxes: (0..THREADS).map(|_| Mutex::default()).collect(),
            steps: Steps::default(),
            forced: Forced::default(),
            ops: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize, ops: u64) {
        // A thread that panics has done its work, too.
        self.ops.fetch_add(ops, Ordering::Relaxed);
        let mut lane = lock(&self.lanes[thread]);
        let tree = self.tree();
        (0..ops).for_each(|_| self.steps.run(thread, || lane.step(self, &tree)));
    }

    /// The life of one tree: some stretches of work with a quiescent point after each, then
    /// everything is freed.
    fn epoch(&self, seed: u64, points: u64, ops: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        *self.tree.write().unwrap_or_else(PoisonError::into_inner) = Tree::random(&mut rng);
        let rest = || {
            let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
            tree.check(&mut rng);
            tree.replace(&mut rng);
        };
        stretches(THREADS, points, seed, |thread| self.work(thread, ops), rest);
        self.empty();
    }

    /// All is freed, by a thread that charged none of it: nothing may be left.
    fn empty(&self) {
        let tree = self.tree();
        for (lane, inbox) in self.lanes.iter().zip(&self.inboxes) {
            let mut lane = lock(lane);
            for parcel in std::mem::take(&mut *lock(inbox)) {
                match parcel {
                    Parcel::Held(held) => lane.free(&tree, held),
                    Parcel::Passing(counter, index, units) => {
                        drop(counter);
                        tree.nodes[index].sub(units);
                    }
                }
            }
            while !lane.held.is_empty() {
                lane.free_one(&tree);
            }
        }
        let root = tree.root();
        assert_eq!(root.live(), 0);
        root.drain();
        for node in &tree.nodes {
            assert_eq!(
                (node.counter.usage(), node.counter.forced()),
                (0, 0),
                "{}",
                node.counter.id()
            );
        }
        let verdict = root.verify();
        assert!(verdict.is_ok(), "{verdict}");
    }

    /// Looks at every counter; returns how many looks were conclusive.
    fn sample(&self) -> u64 {
        self.tree()
            .nodes
            .iter()
            .filter(|node| node.sample(&self.steps, &self.forced))
            .count() as u64
    }
}

#[test]
fn limits_hold_and_everything_adds_up() {
    let _turn = turn(module_path!());
    let ops = crate::ops(OPS);
    let points = POINTS_MIN.max(ops / OPS_PER_POINT_MAX);
    let ops_per_thread = (ops / points / THREADS as u64).max(1);
    let epochs = points.div_ceil(POINTS_PER_TREE);
    let stress = Stress::new(1);
    let begin = Instant::now();
    let samples = watched(
        || stress.sample(),
        || {
            for epoch in 0..epochs {
                stress.epoch(epoch + 1, POINTS_PER_TREE, ops_per_thread);
            }
        },
    );
    println!(
        "{} operations, {} quiescent points, {} refusals, {samples} samples, {:.1?}",
        stress.ops.load(Ordering::Relaxed),
        epochs * POINTS_PER_TREE,
        stress.refusals.load(Ordering::Relaxed),
        begin.elapsed()
    );
    assert!(
        samples > SAMPLES_MIN,
        "only {samples} samples: the watch proves nothing"
    );
    assert!(
        stress.refusals.load(Ordering::Relaxed) > 0,
        "no limit was ever reached"
    );
}
