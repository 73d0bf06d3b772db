//! The error of a read: reached from below, and attacked.
//!
//! The bound of a stale read, in grains, is what has been announced since the last flush that
//! covered the group, and half a batch for each thread and group that are listed. `read()` flushes
//! where that is above their number times the batch.

use memcg::figures::Stats;
use memcg::{Freshness, Group, Runtime, StatKey, Unit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Other, assert_exact, assert_honest, build, create, let_idle};

const BATCH: u64 = 64;
const STAT: StatKey = StatKey::WORKINGSET_REFAULT;

/// Some threads write to one group or to some, and a thread reads without a flush.
struct Reach {
    runtime: Runtime,
    groups: Vec<Group>,
    others: Vec<Other>,
}

impl Reach {
    fn new(writers: usize, groups: usize) -> Self {
        let runtime = build(Runtime::builder().stat_batch(BATCH));
        let top = create(&runtime.root(), "top");
        let groups = (0..groups)
            .map(|number| create(&top, &number.to_string()))
            .collect();
        Self {
            runtime,
            groups,
            others: (0..writers).map(|_| Other::spawn()).collect(),
        }
    }

    fn add_units(&self, other: usize, group: usize, units: u64) {
        self.others[other].add_units(&self.groups[group], STAT, units);
    }

    /// The thresholded read, of the root and without a flush: value and error.
    #[track_caller]
    fn read(&self) -> (u64, u64) {
        let before = self.runtime.counts().flushes;
        let stats = self.runtime.root().read(Freshness::Threshold);
        assert_eq!(
            self.runtime.counts().flushes,
            before,
            "a flush: the bound had become too large"
        );
        (stats.get(STAT).unsigned_abs(), stats.max_error())
    }
}

/// One of them writes on, and announces it, but not so much that a read minds: the error comes as
/// near to the most as the pieces in which a thread announces allow.
#[test]
fn a_read_is_off_by_almost_all_of_what_it_may_be() {
    const PIECE: u64 = BATCH / 2 + 1;
    for writers in [2_u64, 4, 8] {
        let reach = Reach::new(writers as usize, 1);
        for other in 1..writers {
            reach.add_units(other as usize, 0, BATCH / 2);
        }
        let most = writers * BATCH;
        // So many announcements still fit, and what is not announced yet.
        let pieces = (most - writers * BATCH / 2) / PIECE;
        reach.add_units(0, 0, pieces * PIECE + BATCH / 2);
        let missing = pieces * PIECE + writers * BATCH / 2;
        assert_eq!(reach.read(), (0, missing), "{writers} writers");
        assert!(
            missing <= most && missing + PIECE > most,
            "{missing} of {most}"
        );
        // One more, and the next read flushes.
        reach.add_units(0, 0, 1);
        let flushes = reach.runtime.counts().flushes;
        let stats = reach.runtime.root().read(Freshness::Threshold);
        assert_eq!(stats.get(STAT), missing as i64 + 1);
        assert!(stats.max_error() <= most && reach.runtime.counts().flushes == flushes + 1);
    }
}

/// A byte counts as a grain, as do 4,096 of them.
#[test]
fn a_part_of_a_grain_counts_as_one() {
    for (delta, grains) in [(1, 1), (4_096, 1), (-4_096, 1), (4_097, 2), (-8_191, 2)] {
        let runtime = build(Runtime::builder().stat_batch(BATCH));
        let root = runtime.root();
        let adds = BATCH / 2 / grains;
        for _ in 0..adds {
            root.stat_add(StatKey::ANON, delta);
        }
        let stale = root.read(Freshness::Stale);
        assert_eq!(
            (stale.max_error(), stale.max_error_of(StatKey::ANON)),
            (32, 32 * 4_096),
            "{delta}"
        );
        assert_eq!(stale.max_error_of(STAT), 32);
        assert_honest(&stale, StatKey::ANON, delta * adds as i64);
        root.stat_add(StatKey::ANON, delta);
        assert_eq!(
            root.read(Freshness::Stale).max_error(),
            32 + (adds + 1) * grains,
            "{delta}: it has announced"
        );
    }
}

/// All items share the bound: many of them a little are as much as one of them a lot.
#[test]
fn all_items_share_one_bound() {
    let mut builder = Runtime::builder().stat_batch(BATCH);
    let stats: Vec<StatKey> = (0..40)
        .map(|number| builder.stat(&format!("item{number}"), Unit::Events))
        .collect();
    let runtime = build(builder);
    let root = runtime.root();
    for (number, &stat) in (1..).zip(&stats) {
        root.stat_add(stat, 1);
        let stale = root.read(Freshness::Stale);
        assert!(
            stale.max_error() >= number,
            "{number} additions, an error of {}",
            stale.max_error()
        );
    }
    let read = root.read(Freshness::Threshold);
    assert!(read.max_error() <= BATCH);
    for stat in stats {
        assert_honest(&read, stat, 1);
    }
}

/// The bound that was asked for is kept, with as few flushes as that needs.
#[test]
fn a_read_flushes_only_where_it_must() {
    let runtime = build(Runtime::builder().stat_batch(BATCH));
    let root = runtime.root();
    let mut flushes = 0;
    for sum in 1..=10_000_i64 {
        root.stat_add(STAT, 1);
        let before = runtime.counts().flushes;
        let within = root.read(Freshness::Within(1_000));
        flushes += runtime.counts().flushes - before;
        assert!(within.max_error() <= 1_000);
        assert_honest(&within, STAT, sum);
    }
    assert!(
        (9..=11).contains(&flushes),
        "{flushes} flushes for 10,000 units, of which 1,000 may be missing"
    );
}

// === The attack ===

/// One that knows how bounds are kept, and what is true.
struct Attack {
    rng: SmallRng,
    runtime: Runtime,
    stats: Vec<StatKey>,
    groups: Vec<Group>,
    /// Of each group, of each item.
    own: Vec<Vec<i64>>,
    parents: Vec<usize>,
    others: Vec<Other>,
    /// Pairs of a thread and a group that ever wrote.
    written: std::collections::HashSet<(u64, usize)>,
    /// Threads begun.
    begun: u64,
    threads: Vec<u64>,
    batch: u64,
}

const GROUPS: usize = 12;
const THREADS: usize = 4;

impl Attack {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let batch = [64, 64, 64, 8, 2, 1, 0, 300][rng.random_range(0..8)];
        let mut builder = Runtime::builder().stat_batch(batch);
        let mut stats = vec![StatKey::ANON, StatKey::SOCK, STAT];
        for (number, unit) in [Unit::Events, Unit::Bytes, Unit::Nanoseconds]
            .into_iter()
            .enumerate()
        {
            stats.push(builder.stat(&format!("item{number}"), unit));
        }
        let runtime = build(builder);
        let mut groups = vec![runtime.root()];
        let mut parents = vec![0];
        while groups.len() < GROUPS {
            // Rather deep than wide.
            let parent = rng.random_range(groups.len().saturating_sub(3)..groups.len());
            groups.push(create(&groups[parent], &groups.len().to_string()));
            parents.push(parent);
        }
        Self {
            own: vec![vec![0; stats.len()]; GROUPS],
            rng,
            runtime,
            stats,
            groups,
            parents,
            others: (0..THREADS).map(|_| Other::spawn()).collect(),
            written: Default::default(),
            begun: THREADS as u64,
            threads: (0..THREADS as u64).collect(),
            batch,
        }
    }

    fn is_within(&self, group: usize, top: usize) -> bool {
        let mut at = group;
        while at != top && at != 0 {
            at = self.parents[at];
        }
        at == top
    }

    fn truth(&self, top: usize, item: usize) -> i64 {
        (0..GROUPS)
            .filter(|&group| self.is_within(group, top))
            .map(|group| self.own[group][item])
            .sum()
    }

    fn delta(&mut self, item: usize) -> i64 {
        let grain = i64::try_from(self.max_grain(item)).expect("small");
        let half = (self.batch / 2) as i64;
        let size = match self.rng.random_range(0..10) {
            0 => 0,
            // Just what is not announced yet, and one more.
            1 => half * grain,
            2 => half * grain + 1,
            3 => (half + 1) * grain,
            4 => self.rng.random_range(0..100 * grain),
            5 => 1 << self.rng.random_range(0..50),
            6 => grain - 1,
            _ => self.rng.random_range(1..4),
        };
        if self.rng.random_bool(0.5) {
            size
        } else {
            -size
        }
    }

    fn max_grain(&self, item: usize) -> u64 {
        let stat = self.stats[item];
        self.runtime
            .items()
            .find(|known| known.stat == stat)
            .expect("declared")
            .unit
            .grain()
    }

    fn step(&mut self) {
        let thread = self.rng.random_range(0..THREADS);
        let group = self.rng.random_range(0..GROUPS);
        match self.rng.random_range(0..100) {
            // In most cases each looks at the others' work.
            0..70 => {
                let item = self.rng.random_range(0..self.stats.len());
                for _ in 0..self.rng.random_range(1..5) {
                    let delta = self.delta(item);
                    self.others[thread].add(&self.groups[group], self.stats[item], delta);
                    self.own[group][item] += delta;
                }
                self.written.insert((self.threads[thread], group));
            }
            // Of one in the middle of the tree, or of a leaf.
            70..85 => self.groups[group].inspect().flush(),
            85..90 => {
                let group = self.groups[group].clone();
                self.others[thread].run(move || drop(group.read(Freshness::Threshold)));
            }
            // Every thread goes idle and off the lists.
            90..92 => let_idle(&self.runtime),
            92 => (0..6).for_each(|_| self.groups[group].inspect().flush()),
            93..95 => {
                self.others[thread] = Other::spawn();
                self.threads[thread] = self.begun;
                self.begun += 1;
            }
            _ => {
                let most = self.rng.random_range(0..500);
                let within = self.groups[group].read(Freshness::Within(most));
                assert!(within.max_error() <= most);
                self.check(group, &within);
            }
        }
    }

    #[track_caller]
    fn check(&self, group: usize, stats: &Stats) {
        for (item, &stat) in self.stats.iter().enumerate() {
            assert_honest(stats, stat, self.truth(group, item));
            let own = self.own[group][item];
            let local = stats.local(stat);
            assert!(
                own.abs_diff(local) <= stats.max_error_of(stat),
                "{stat:?}: {own} of its own was read as {local}"
            );
        }
    }

    /// Everything that can be read without changing what is there; then, for one group, more.
    fn look(&mut self) {
        for group in 0..GROUPS {
            self.check(group, &self.groups[group].read(Freshness::Stale));
        }
        let group = self.rng.random_range(0..GROUPS);
        let pairs = self
            .written
            .iter()
            .filter(|&&(_, written)| self.is_within(written, group))
            .count() as u64;
        match self.rng.random_range(0..30) {
            0..4 => {
                let read = self.groups[group].read(Freshness::Threshold);
                assert!(
                    read.max_error() <= pairs * self.batch,
                    "{} of {pairs} writers",
                    read.max_error()
                );
                self.check(group, &read);
            }
            4 => {
                let exact = self.groups[group].read(Freshness::Exact);
                assert_eq!(exact.max_error(), 0);
                self.check(group, &exact);
            }
            _ => {}
        }
    }
}

/// Many items, signs that alternate, deltas large and small and just what is announced, threads
/// that come and go, nested groups, flushes in between, cells that go idle: after each step no read
/// of any group is off by more than it says.
#[test]
fn no_read_is_off_by_more_than_it_says() {
    let seeds = if cfg!(debug_assertions) { 24 } else { 240 };
    for seed in 0..seeds {
        let mut attack = Attack::new(seed);
        for _ in 0..200 {
            attack.step();
            attack.look();
        }
        for group in 0..GROUPS {
            for (item, &stat) in attack.stats.iter().enumerate() {
                assert_exact(
                    &attack.groups[group],
                    stat,
                    attack.truth(group, item),
                    attack.own[group][item],
                );
            }
        }
    }
}

/// The kernel's early stop: a child whose own threshold is passed no longer tells its parent, which
/// stays behind without an end. Here every announcement goes all the way up.
#[test]
fn a_busy_child_does_not_hide_from_its_parent() {
    let runtime = build(Runtime::builder().stat_batch(BATCH));
    let parent = create(&runtime.root(), "parent");
    let [sibling, child] = ["sibling", "child"].map(|name| create(&parent, name));
    sibling.stat_add(STAT, 1);
    child.stat_add(STAT, 63);
    child.stat_add(STAT, 63);
    let mut sum = 127;
    for round in 0..1_000 {
        child.stat_add(STAT, 1);
        sum += 1;
        for group in [&parent, &runtime.root()] {
            let stale = group.read(Freshness::Stale);
            assert_honest(&stale, STAT, sum);
            assert!(
                stale.max_error() <= 127 + round + 1 + 2 * BATCH,
                "and not more than that"
            );
        }
        if round % 100 == 50 {
            // Counts that a flush of the child alone takes over are not missing above.
            child.inspect().flush();
        }
        if round % 37 == 0 {
            let read = parent.read(Freshness::Threshold);
            assert!(read.max_error() <= 2 * BATCH);
            assert_honest(&read, STAT, sum);
        }
    }
    assert_exact(&parent, STAT, sum, 0);
}
