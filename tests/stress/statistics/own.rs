//! What a thread wrote itself it knows: each has an item of its own, so it can tell at once whether a read of any group
//! is right, whatever all the others do meanwhile.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use memcg::expert::BarrierMode;
use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, Stat, Stats, Unit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Done, ops};
use crate::support::turns::turn;

const THREADS: usize = 4;

/// A tree, wide in one place, so that a flush of it is more than one slice of work, and deep in another.
struct Tree {
    runtime: Runtime,
    groups: Vec<Group>,
    parents: Vec<usize>,
    /// One for each thread.
    stats: Vec<Stat>,
}

impl Tree {
    fn new(mut builder: RuntimeBuilder, wide: usize) -> Self {
        let stats = (0..THREADS).map(|thread| builder.stat(&format!("thread{thread}"), Unit::Events)).collect();
        let runtime = builder.build().expect("a configuration");
        let (groups, parents) = (vec![runtime.root()], vec![0]);
        let mut tree = Self { runtime, groups, parents, stats };
        let (mut deep, crowd) = (tree.create(0), tree.create(0));
        for _ in 0..6 {
            deep = tree.create(deep);
        }
        for _ in 0..wide {
            tree.create(crowd);
        }
        tree
    }

    fn create(&mut self, parent: usize) -> usize {
        let number = self.groups.len();
        self.groups.push(self.groups[parent].create(&number.to_string(), Limits::new()).expect("a name"));
        self.parents.push(parent);
        number
    }

    /// From the group to the root.
    fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&at| (at > 0).then(|| self.parents[at]))
    }

    fn any(&self, rng: &mut SmallRng) -> usize {
        // Rather often one that is above many.
        if rng.random_bool(0.5) { rng.random_range(0..10) } else { rng.random_range(0..self.groups.len()) }
    }
}

/// What one thread has added.
struct Own<'a> {
    tree: &'a Tree,
    /// Reads exactly, in most cases, instead of in all ways.
    exact: bool,
    stat: Stat,
    rng: SmallRng,
    subtree: Vec<i64>,
    local: Vec<i64>,
}

impl Own<'_> {
    fn add(&mut self) {
        let group = self.rng.random_range(0..self.subtree.len());
        let delta = match self.rng.random_range(0..8) {
            0 => 10_000,
            1 => -3,
            2 => 40,
            _ => 1,
        };
        self.tree.groups[group].stat_add(self.stat, delta);
        self.local[group] += delta;
        for level in self.tree.levels(group) {
            self.subtree[level] += delta;
        }
    }

    fn check(&self, group: usize, stats: &Stats, how: &str) {
        self.check_within(stats.max_error(), group, stats, how);
    }

    fn check_within(&self, most: u64, group: usize, stats: &Stats, how: &str) {
        let path = self.tree.groups[group].path();
        let pairs = [(self.subtree[group], stats.get(self.stat)), (self.local[group], stats.local(self.stat))];
        for (truth, found) in pairs {
            assert!(truth.abs_diff(found) <= most, "{how} of {path}: {truth} was read as {found}, at most {most} off");
        }
    }

    fn look(&mut self) {
        let at = self.tree.any(&mut self.rng);
        let group = &self.tree.groups[at];
        match if self.exact { self.rng.random_range(0..4) / 3 } else { self.rng.random_range(0..16) } {
            0 => {
                // Others move other items meanwhile: no thread moves this one.
                self.check_within(0, at, &group.read(Freshness::Exact), "an exact read");
            }
            1 => self.check(at, &group.read(Freshness::Threshold), "a thresholded read"),
            2 => {
                let most = self.rng.random_range(0..1_000);
                let within = group.read(Freshness::Within(most));
                assert!(within.max_error() <= most);
                self.check(at, &within, "a read within a bound");
            }
            3 => {
                group.flush();
                // What the flush has published, and what it has taken off the bound, of this group and of others.
                for at in self.tree.levels(at).chain([self.tree.any(&mut self.rng)]).collect::<Vec<_>>() {
                    self.check(at, &self.tree.groups[at].read(Freshness::Stale), "a stale read after a flush");
                }
            }
            _ => self.check(at, &group.read(Freshness::Stale), "a stale read"),
        }
    }
}

fn kinds() -> [RuntimeBuilder; 4] {
    let plain = Runtime::builder;
    [
        plain().stat_batch(64),
        plain().stat_batch(4),
        plain().audit(true).stat_batch(0),
        plain().barrier(BarrierMode::Fence),
    ]
}

/// Writers that know what they wrote, beside flushers of everything and with cells that go idle.
#[test]
fn a_thread_reads_what_it_wrote() {
    let _turn = turn(module_path!());
    let rounds = ops() / 200;
    for (round, (builder, wide)) in
        (0..).zip(kinds().into_iter().cycle().zip([10, 400, 100, 300, 200, 50, 700, 500, 90, 150]))
    {
        let tree = Tree::new(builder, wide);
        tree.runtime.start_flusher(Duration::from_micros(300)).expect("a period");
        let (over, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (tree, over, done) = (&tree, &over, &done);
            for (seed, &stat) in (0..).zip(&tree.stats) {
                scope.spawn(move || {
                    let _done = Done(done);
                    let zeros = vec![0; tree.groups.len()];
                    let rng = SmallRng::seed_from_u64(seed);
                    let exact = round % 3 > 0;
                    let mut own = Own { tree, exact, stat, rng, subtree: zeros.clone(), local: zeros };
                    for _ in 0..rounds / THREADS as u64 {
                        (0..own.rng.random_range(1..40)).for_each(|_| own.add());
                        (0..own.rng.random_range(1..10)).for_each(|_| own.look());
                        if own.rng.random_bool(0.01) {
                            // Off the lists.
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                    over.fetch_add(1, Ordering::SeqCst);
                    // The others go on; what this one wrote stays as it is.
                    while over.load(Ordering::SeqCst) < THREADS as u64 && !done.load(Ordering::SeqCst) {
                        own.look();
                        std::thread::yield_now();
                    }
                    for at in 0..tree.groups.len() {
                        let exact = tree.groups[at].read(Freshness::Exact);
                        assert_eq!((exact.get(stat), exact.local(stat)), (own.subtree[at], own.local[at]));
                    }
                });
            }
        });
        assert_eq!(over.load(Ordering::SeqCst), THREADS as u64, "a thread panicked, see above");
        println!("{wide} groups beside each other: {:?}", tree.runtime.counts());
    }
}

// === What a reader may see in between ===

/// R{A{B{C...}}}, written at the bottom and flushed there: a thread that reads from the bottom up, without a flush, sees no
/// less above than below.
#[test]
fn a_flush_shows_nothing_below_before_it_shows_above() {
    let _turn = turn(module_path!());
    const DEPTH: usize = 100;
    let runtime = Runtime::builder().build().expect("defaults hold");
    let mut levels = vec![runtime.root()];
    for depth in 0..DEPTH {
        levels.push(levels[depth].create("below", Limits::new()).expect("a name"));
    }
    let stat = Stat::WORKINGSET_REFAULT;
    let writes = ops() / 50;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (levels, done) = (&levels, &done);
        scope.spawn(move || {
            let _done = Done(done);
            for _ in 0..writes {
                levels[DEPTH].stat_add(stat, 1);
                levels[DEPTH].flush();
            }
        });
        let (mut looks, mut last) = (0, 0);
        while !done.load(Ordering::SeqCst) {
            let mut below = 0;
            for level in [DEPTH, DEPTH - 1, DEPTH / 2, 1, 0] {
                let now = levels[level].read(Freshness::Stale).get(stat);
                assert!(now >= below, "level {level}: {now}, and {below} below");
                below = now;
            }
            assert!(below >= last);
            last = below;
            looks += 1;
        }
        println!("{looks} looks at {writes} flushes");
    });
    assert_eq!(levels[0].read(Freshness::Stale).get(stat), writes as i64);
}

// === Threads past their end ===

/// Counts when its thread ends, for one group after the other, together with the others that end.
struct AtExit {
    tree: Arc<Tree>,
    thread: usize,
    meet: Arc<Barrier>,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        let (stat, root) = (self.tree.stats[self.thread], &self.tree.groups[0]);
        let before = root.read(Freshness::Exact).get(stat);
        for (number, group) in (1..).zip(&self.tree.groups[1..]) {
            self.meet.wait();
            group.stat_add(stat, 1_000);
            let exact = if number % 2 == 0 { root.read(Freshness::Exact).get(stat) - before } else { 1_000 * number };
            let own = group.read(Freshness::Exact);
            assert_eq!(exact, 1_000 * number, "group {number}");
            assert!(own.get(stat) >= 1_000, "group {number}: {} of its own", own.get(stat));
        }
    }
}

thread_local! {
    static EARLIER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// All of them write to the same group for the first time at the same time, when they have no cells of their own any
/// more: each finds what it wrote.
#[test]
fn threads_past_their_end_read_what_they_wrote() {
    let _turn = turn(module_path!());
    for _ in 0..ops() / 100_000 {
        let tree = Arc::new(Tree::new(Runtime::builder(), 300));
        // Whatever the order of destructors: half of them run when the thread has nothing any more.
        let meets: [_; 2] = std::array::from_fn(|_| Arc::new(Barrier::new(THREADS)));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let [earlier, later] = meets.clone().map(|meet| AtExit { tree: Arc::clone(&tree), thread, meet });
                std::thread::spawn(move || {
                    EARLIER.set(Some(earlier));
                    later.tree.groups[0].stat_add(Stat::ANON, 1);
                    LATER.set(Some(later));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let exact = tree.groups[0].read(Freshness::Exact);
        for &stat in &tree.stats {
            assert_eq!(exact.get(stat), 2 * 1_000 * (tree.groups.len() as i64 - 1));
        }
        assert_eq!(exact.get(Stat::ANON), THREADS as i64);
    }
}
