//! Many threads at once: they precharge, account, hand guards to each other, migrate, merge,
//! transfer, take groups offline, while readers look. At quiescent points, on all of them, what is
//! read is what is held, to the byte.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, as for the test program `stress`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use memcg::kmem::NumaTable;
use memcg::kmem::{Kmem, NodeId, Placement, PrechargeBound};
use memcg::{Bytes, CounterKey, Freshness, Group, GroupId, Limit, Runtime, StatKey};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{assert_empty, assert_sums, left_empty, machine, node};
use crate::support::reclaimers::lock;
use crate::support::stretches::stretches;
use crate::support::trees::{assert_sound, build, create, limited};

const THREADS: usize = 3;
const OPS: u64 = if cfg!(debug_assertions) {
    60_000
} else {
    600_000
};
/// Quiescent points in the life of one tree.
const POINTS: u64 = 10;
const HELD_MAX: usize = 24;
/// The root's max in bytes.
const MAX: u64 = 2_000_000;

/// A tree in which leaves come and go.
struct World {
    runtime: Runtime,
    nodes: Vec<NodeId>,
    toptier: CounterKey,
    fast: Vec<NodeId>,
    parents: Vec<Group>,
    leaves: Vec<RwLock<Group>>,
    inboxes: Vec<Mutex<Vec<Kmem>>>,
    /// Bytes that are accounted, before they are and until they are not any more.
    most: AtomicI64,
}

fn world(rng: &mut SmallRng) -> World {
    let nodes = rng.random_range(1..=8);
    let mut numbers: Vec<u16> = (0..nodes)
        .map(|at| at * rng.random_range(1..4) + at * 5)
        .collect();
    numbers.dedup();
    let builder = Runtime::builder()
        .audit(true)
        .max(Limit::Bytes(MAX))
        .topology(machine(&numbers));
    let batch = [0, 512, 4_096][rng.random_range(0..3)];
    let stat_batch = [0, 4, 64, 1_024][rng.random_range(0..4)];
    let mut builder = builder
        .batch(Bytes(batch))
        .stat_batch(stat_batch)
        .adaptive(rng.random_bool(0.5));
    let nodes: Vec<NodeId> = numbers.into_iter().map(node).collect();
    let fast: Vec<NodeId> = nodes[..nodes.len().div_ceil(2)].to_vec();
    let toptier = builder.tier("toptier", fast.clone());
    let runtime = build(builder);
    let root = runtime.root();
    let parents: Vec<Group> = (0..3_u64)
        .map(|number| {
            limited(
                &root,
                &format!("p{number}"),
                [u64::MAX >> 1, 900_000, 300_000][number as usize],
            )
        })
        .collect();
    let leaves = (0..6)
        .map(|number| RwLock::new(create(&parents[number % 3], &format!("l{number}"))))
        .collect();
    let inboxes = (0..THREADS).map(|_| Mutex::default()).collect();
    World {
        runtime,
        nodes,
        toptier,
        fast,
        parents,
        leaves,
        inboxes,
        most: AtomicI64::new(0),
    }
}

impl World {
    fn leaf(&self, rng: &mut SmallRng) -> Group {
        let leaf = &self.leaves[rng.random_range(0..self.leaves.len())];
        leaf.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn placement(&self, rng: &mut SmallRng, mut bytes: u64) -> Placement {
        let mut placement = Placement::new();
        for _ in 0..rng.random_range(0..5) {
            let part = rng.random_range(0..=bytes);
            placement.add(self.node(rng), Bytes(part));
            bytes -= part;
        }
        placement
    }

    /// Or none, or one that is not there.
    fn node(&self, rng: &mut SmallRng) -> Option<NodeId> {
        match rng.random_range(0..10) {
            0 => None,
            1 => Some(node(999)),
            _ => Some(self.nodes[rng.random_range(0..self.nodes.len())]),
        }
    }

    fn step(&self, thread: usize, held: &mut Vec<Kmem>, rng: &mut SmallRng) {
        held.append(&mut lock(&self.inboxes[thread]));
        if held.len() >= HELD_MAX {
            self.free(held.swap_remove(rng.random_range(0..HELD_MAX)));
        }
        let at = if held.is_empty() {
            0
        } else {
            rng.random_range(0..held.len())
        };
        match rng.random_range(0..20) {
            _ if held.is_empty() => held.extend(self.allocate(rng)),
            0..=6 => held.extend(self.allocate(rng)),
            7..=9 => self.free(held.swap_remove(at)),
            10 => {
                held[at].migrated(self.node(rng), self.node(rng), rng.random_range(0..5_000));
            }
            11 => {
                drop(held[at].migrate(self.node(rng), self.node(rng), rng.random_range(0..5_000)))
            }
            12 => {
                let bytes = held[at].bytes();
                held[at].relocate(&self.placement(rng, bytes));
            }
            13 => {
                let gone = held[at].shrink(&self.placement(rng, 3_000));
                self.most.fetch_sub(gone.cast_signed(), Ordering::SeqCst);
            }
            14 => drop(held[at].transfer(&self.leaf(rng))),
            15 => {
                let one = held.swap_remove(at);
                let back = match held.last_mut() {
                    Some(last) => last.merge(one).err().map(|back| *back),
                    None => Some(one),
                };
                held.extend(back);
            }
            16 | 17 => lock(&self.inboxes[rng.random_range(0..THREADS)]).push(held.swap_remove(at)),
            18 => self.look(rng),
            _ if rng.random_bool(0.3) => self.replace(rng),
            _ => {}
        }
    }

    fn allocate(&self, rng: &mut SmallRng) -> Option<Kmem> {
        let group = self.leaf(rng);
        let most = rng.random_range(0..20_000);
        let bound = PrechargeBound::from(Bytes(most));
        let is_fast = rng.random_bool(0.3);
        let bound = if is_fast {
            bound.within(&self.fast)
        } else {
            bound
        };
        let precharge = group.precharge(bound).ok()?;
        if rng.random_bool(0.1) {
            return None;
        }
        if rng.random_bool(0.2) {
            std::thread::yield_now();
        }
        let bytes = rng.random_range(0..=most);
        let placement = self.placement(rng, bytes);
        self.most
            .fetch_add(placement.bytes().cast_signed(), Ordering::SeqCst);
        let kmem = precharge.account(&placement);
        assert_eq!(
            (kmem.bytes(), kmem.placement().bytes()),
            (placement.bytes(), placement.bytes())
        );
        Some(kmem)
    }

    fn free(&self, kmem: Kmem) {
        let bytes = kmem.bytes().cast_signed();
        drop(kmem);
        self.most.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// A leaf goes offline, with whatever it holds, and another takes its place.
    fn replace(&self, rng: &mut SmallRng) {
        let at = rng.random_range(0..self.leaves.len());
        let mut leaf = self.leaves[at]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        leaf.offline().expect("no children");
        *leaf = create(&self.parents[at % 3], &format!("l{at}"));
    }

    /// While others write. What is said to be there is bounded by what has been added to and not
    /// yet been taken off, but for what moves: off one group before it is on another.
    fn look(&self, rng: &mut SmallRng) {
        let group = if rng.random_bool(0.5) {
            self.runtime.root()
        } else {
            self.leaf(rng)
        };
        match rng.random_range(0..4) {
            0 => drop(group.numa_stat(StatKey::KERNEL, Freshness::Exact)),
            1 => drop(group.numa_stat(StatKey::KERNEL, Freshness::Stale)),
            2 => drop(NumaTable::of(&group)),
            _ => drop(group.read(Freshness::Threshold)),
        }
    }

    /// No thread runs: everything is what the guards say.
    fn check(&self, lanes: &[MutexGuard<'_, Vec<Kmem>>]) {
        let inboxes: Vec<_> = self.inboxes.iter().map(lock).collect();
        let held: Vec<&Kmem> = lanes
            .iter()
            .chain(&inboxes)
            .flat_map(|lane| lane.iter())
            .collect();
        let mut by_node: HashMap<NodeId, i64> = HashMap::new();
        let mut by_group: HashMap<GroupId, u64> = HashMap::new();
        let mut unplaced = 0_i64;
        let mut on_tier = 0_i64;
        for kmem in &held {
            let placement = kmem.placement();
            assert_eq!(placement.bytes(), kmem.bytes());
            unplaced += placement.unplaced().cast_signed();
            *by_group.entry(kmem.group().id()).or_default() += kmem.bytes();
            for (of, bytes) in placement.nodes() {
                *by_node.entry(of).or_default() += bytes.cast_signed();
                on_tier += if self.fast.contains(&of) {
                    bytes.cast_signed()
                } else {
                    0
                };
            }
        }
        let root = self.runtime.root();
        let sum: i64 = held.iter().map(|kmem| kmem.bytes().cast_signed()).sum();
        let stale = root.numa_stat(StatKey::KERNEL, Freshness::Stale);
        let off = stale.sum().abs_diff(sum);
        assert!(
            off <= stale.max_error().saturating_mul(4_096),
            "{off} off, at most {} grains",
            stale.max_error()
        );
        let now = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
        for &of in &self.nodes {
            assert_eq!(
                now.get(of),
                by_node.get(&of).copied().unwrap_or_default(),
                "node {of}"
            );
        }
        assert_eq!(
            (now.unplaced(), now.sum(), now.max_error()),
            (unplaced, sum, 0)
        );
        assert_eq!(
            (root.live().cast_signed(), self.most.load(Ordering::SeqCst)),
            (sum, sum)
        );
        for leaf in &self.leaves {
            let leaf = leaf.read().unwrap_or_else(PoisonError::into_inner);
            let expected = by_group.get(&leaf.id()).copied().unwrap_or_default();
            let now = leaf.numa_stat(StatKey::KERNEL, Freshness::Exact);
            assert_eq!(
                (leaf.live(), now.sum()),
                (expected, expected.cast_signed()),
                "{}",
                leaf.path()
            );
        }
        let tier = root
            .counter(self.toptier)
            .expect("declared")
            .live()
            .cast_signed();
        assert!(
            on_tier <= tier && tier <= on_tier + unplaced,
            "{on_tier} on the tier, {unplaced} on none, {tier}"
        );
        assert_sums(&self.runtime);
        assert_sound(&self.runtime);
    }
}

#[test]
fn everything_at_once() {
    let ops = std::env::var("MEMCG_STRESS_OPS")
        .ok()
        .and_then(|ops| ops.parse().ok())
        .unwrap_or(OPS);
    let trees = (ops / 15_000).max(3);
    let per_point = (ops / trees / POINTS / THREADS as u64).max(10);
    for seed in 0..trees {
        epoch(seed, per_point);
    }
}

/// The life of one tree.
fn epoch(seed: u64, ops: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let world = world(&mut rng);
    let lanes: Vec<Mutex<Vec<Kmem>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let seeds = seed * 100 + 1..;
    let rngs: Vec<_> = seeds
        .take(THREADS)
        .map(|seed| Mutex::new(SmallRng::seed_from_u64(seed)))
        .collect();
    let work = |thread: usize| {
        let mut held = lock(&lanes[thread]);
        let mut rng = lock(&rngs[thread]);
        (0..ops).for_each(|_| world.step(thread, &mut held, &mut rng));
    };
    stretches(THREADS, POINTS, seed, work, || {
        world.check(&lanes.iter().map(lock).collect::<Vec<_>>())
    });
    drop(lanes);
    let World {
        runtime,
        parents,
        leaves,
        inboxes,
        toptier,
        ..
    } = world;
    drop((parents, leaves, inboxes));
    assert_empty(&runtime);
    let root = runtime.root();
    let tier = root.counter(toptier).expect("declared");
    assert_eq!((tier.live(), tier.forced()), (0, 0));
}

/// A reader beside writers: what it reads exactly is never less than what every thread had
/// accounted before and still has, and never more than what any thread had begun to account.
#[test]
fn a_reader_beside_writers() {
    const ROUNDS: u64 = if cfg!(debug_assertions) {
        4_000
    } else {
        40_000
    };
    for builder in super::kinds(3) {
        let runtime = left_empty(build(builder.stat_batch(8)));
        let root = runtime.root();
        let group = create(&root, "q");
        // Bytes by node, before they are accounted and after.
        let begun = [(); 3].map(|()| AtomicI64::new(0));
        let done = [(); 3].map(|()| AtomicI64::new(0));
        let over = AtomicBool::new(false);
        let _held: Vec<Kmem> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2_u64)
                .map(|seed| {
                    let begun = &begun;
                    let done = &done;
                    let group = &group;
                    scope.spawn(move || {
                        let mut rng = SmallRng::seed_from_u64(seed);
                        let mut all = group.precharge(0).expect("room").account(&Placement::new());
                        for _ in 0..ROUNDS {
                            let of = rng.random_range(0..3_usize);
                            let bytes = rng.random_range(1..9_000_i64);
                            begun[of].fetch_add(bytes, Ordering::SeqCst);
                            let more = super::hold(
                                group,
                                &super::placed(&[(of as u16, bytes.cast_unsigned())]),
                            );
                            done[of].fetch_add(bytes, Ordering::SeqCst);
                            all.merge(more).expect("of one group");
                        }
                        all
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for of in [&group, &root] {
                        let before = done.each_ref().map(|sum| sum.load(Ordering::SeqCst));
                        let exact = of.numa_stat(StatKey::KERNEL, Freshness::Exact);
                        let now: [i64; 3] =
                            std::array::from_fn(|at| exact.get(super::node(at as u16)));
                        let after = begun.each_ref().map(|sum| sum.load(Ordering::SeqCst));
                        assert!(
                            (0..3).all(|at| before[at] <= now[at] && now[at] <= after[at]),
                            "{before:?} {now:?} {after:?}"
                        );
                        // A figure that only grows is never less above, on any node, nor in all.
                        let below = group.numa_stat(StatKey::KERNEL, Freshness::Stale);
                        let above = root.numa_stat(StatKey::KERNEL, Freshness::Stale);
                        assert!(
                            below.iter().all(|(node, bytes)| above.get(node) >= bytes),
                            "{below} below {above}"
                        );
                        let below = group.read(Freshness::Stale);
                        let above = root.read(Freshness::Stale);
                        assert!(above.get(StatKey::KERNEL) >= below.get(StatKey::KERNEL));
                        let before = done.each_ref().map(|sum| sum.load(Ordering::SeqCst));
                        let stale = of.numa_stat(StatKey::KERNEL, Freshness::Stale);
                        let missing = stale.max_error().saturating_mul(4_096).cast_signed();
                        let sum: i64 = before.iter().sum();
                        assert!(
                            stale.sum().saturating_add(missing) >= sum,
                            "{sum} read as {}",
                            stale.sum()
                        );
                    }
                }
            });
            let held = writers
                .into_iter()
                .map(|writer| writer.join().expect("no panic"))
                .collect();
            over.store(true, Ordering::Relaxed);
            reader.join().expect("no panic");
            held
        });
        assert_eq!(super::on::<3>(&root), done.map(AtomicI64::into_inner));
    }
}
