//! Calls that drain the stock, and calls that do not.
//!
//! A drain costs a process-wide barrier and takes credit that its owners would have used, so the
//! list of causes is short and closed: a refusal, a lowered limit, a forced charge above a limit, a
//! switch of the batch, the first child, an explicit call. `counts()` is read before and after each
//! of many operations.

use memcg::figures::TreeCounts;
use memcg::{CounterConfig, PageCounter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::support::workers::Other;

const BATCH: u64 = 64;

/// R{A{B}, C}: B and C are charged, A has a distant limit. both of the first children are made, and
/// nothing else that drains has happened.
struct Tree {
    r: PageCounter,
    a: PageCounter,
    b: PageCounter,
    c: PageCounter,
    other: Other,
}

impl Tree {
    fn new(config: CounterConfig) -> Self {
        let r = PageCounter::root(config.batch(BATCH));
        let a = r.child();
        let b = a.child();
        let c = r.child();
        a.set_max(1 << 30).expect("nothing is charged yet");
        Self {
            r,
            a,
            b,
            c,
            other: Other::spawn(),
        }
    }

    /// Credit of two threads below A, and of one in C.
    fn stock_up(&self) {
        [&self.b, &self.c].into_iter().for_each(walk_first);
        // An adaptive stock opens with the next charge and is filled by the one after.
        for _ in 0..2 {
            self.b.charge(1).expect("far from the limit");
            self.other
                .with(&self.b, |b| b.charge(1).expect("far from the limit"));
            self.c.charge(1).expect("unlimited");
        }
    }

    fn drained_by(&self, job: impl FnOnce(&Self)) -> TreeCounts {
        let before = self.r.counts();
        job(self);
        let mut counts = self.r.counts();
        counts.drains -= before.drains;
        counts.drained -= before.drained;
        counts.barriers -= before.barriers;
        counts
    }

    #[track_caller]
    fn assert_quiet(&self, what: &str, job: impl FnOnce(&Self)) {
        let counts = self.drained_by(job);
        assert_eq!(
            (counts.drains, counts.drained, counts.barriers),
            (0, 0, 0),
            "{what} drained"
        );
    }

    /// `job` drains, and it drains what lies below A: both threads' credit for B, no credit for C.
    #[track_caller]
    fn assert_drains_a(&self, what: &str, job: impl FnOnce(&Self)) {
        self.stock_up();
        let below_a = self.a.stocked();
        let elsewhere = self.c.stocked();
        assert!(
            below_a > 0 && elsewhere > 0,
            "there is something to drain, and something to spare"
        );
        let counts = self.drained_by(job);
        assert!(
            counts.drains >= 1 && counts.barriers >= 1,
            "{what} drained nothing"
        );
        assert_eq!(counts.drained, below_a, "{what} drained another sum");
        assert_eq!(self.c.stocked(), elsewhere, "{what} drained a stranger");
        let verdict = self.r.verify();
        assert!(verdict.is_ok(), "{what}: {verdict}");
    }
}

/// The first walk of a counter opens no adaptive stock.
fn walk_first(counter: &PageCounter) {
    counter.charge(1).expect("far from the limit");
    counter.uncharge(1);
}

fn configs() -> [CounterConfig; 2] {
    [
        CounterConfig::new().adaptive(false).audit(true),
        CounterConfig::new().adaptive(true).audit(true),
    ]
}

#[test]
fn settings_that_take_nothing_away_drain_nothing() {
    for tree in configs().map(Tree::new) {
        tree.stock_up();
        tree.assert_quiet("a raised max", |t| t.a.set_max(1 << 31).expect("room"));
        tree.assert_quiet("the same max", |t| t.a.set_max(1 << 31).expect("room"));
        tree.assert_quiet("no max", |t| {
            t.a.set_max(PageCounter::UNLIMITED).expect("room")
        });
        tree.assert_quiet("min", |t| t.b.set_min(10));
        tree.assert_quiet("less min", |t| t.b.set_min(0));
        tree.assert_quiet("low", |t| t.b.set_low(10));
        tree.assert_quiet("less low", |t| t.b.set_low(0));
        tree.assert_quiet("another handle", |t| drop(t.b.clone()));
        tree.assert_quiet("a window", |t| t.b.peak_window().reset());
    }
}

#[test]
fn further_children_drain_nothing() {
    for tree in configs().map(Tree::new) {
        tree.stock_up();
        let mut children = Vec::new();
        tree.assert_quiet("the root's third child", |t| children.push(t.r.child()));
        tree.assert_quiet("A's second child", |t| children.push(t.a.child()));
        tree.assert_quiet("A's third child", |t| children.push(t.a.child()));
    }
}

#[test]
fn threads_that_end_drain_nothing() {
    for mut tree in configs().map(Tree::new) {
        tree.stock_up();
        let stocked = tree.r.stocked();
        let before = tree.r.counts();
        tree.other = Other::spawn();
        let after = tree.r.counts();
        assert_eq!(
            (after.drains, after.drained, after.barriers),
            (before.drains, before.drained, before.barriers)
        );
        assert_eq!(
            tree.r.stocked(),
            stocked,
            "the credit stays where it can be found"
        );
        tree.assert_quiet("a short life", |t| t.other_life());
    }
}

impl Tree {
    /// A thread that charges, frees and ends.
    fn other_life(&self) {
        let b = self.b.clone();
        std::thread::spawn(move || {
            b.charge(5).expect("room");
            b.uncharge(5);
        })
        .join()
        .expect("the thread does not panic")
    }
}

#[test]
fn reading_drains_nothing() {
    for tree in configs().map(Tree::new) {
        tree.stock_up();
        let stocked = tree.r.stocked();
        tree.assert_quiet("reading", |t| {
            for counter in [&t.r, &t.a, &t.b, &t.c] {
                let sums = [
                    counter.usage(),
                    counter.live(),
                    counter.stocked(),
                    counter.stocked_bound(),
                ];
                let history = [
                    counter.peak(),
                    counter.peak_window().peak(),
                    counter.refused_count(),
                ];
                let limits = [counter.max(), counter.min(), counter.low(), counter.batch()];
                let forced = [counter.forced(), counter.forced_total()];
                let below = [counter.children_min_usage(), counter.children_low_usage()];
                std::hint::black_box((sums, history, limits, forced, below));
                std::hint::black_box((
                    counter.id(),
                    counter.parent(),
                    counter.barrier(),
                    counter.counts(),
                ));
                std::hint::black_box(format!("{counter:?} {}", counter.id()));
            }
        });
        tree.assert_quiet("verifying", |t| assert!(t.r.verify().is_ok()));
        assert_eq!(tree.r.stocked(), stocked);
    }
}

#[test]
fn a_refusal_without_stock_below_drains_nothing() {
    let r = PageCounter::root(CounterConfig::new().batch(0).audit(true));
    let a = r.child();
    a.set_max(10).expect("nothing is charged yet");
    a.charge(10).expect("10 of 10");
    let before = r.counts();
    for _ in 0..100 {
        a.charge(1).expect_err("11 of 10");
    }
    let after = r.counts();
    assert_eq!(
        (after.drains, after.barriers),
        (before.drains, before.barriers)
    );
    assert_eq!(a.refused_count(), 100);
}

#[test]
fn thousands_of_ordinary_operations_drain_nothing() {
    for (seed, tree) in configs().map(Tree::new).into_iter().enumerate() {
        let mut rng = SmallRng::seed_from_u64(seed as u64);
        let mut held: Vec<(PageCounter, u64)> = Vec::new();
        let mut max = 1 << 30;
        // A charge above the batch may widen the stock of its counter, with one drain of that.
        let mut widened = 0;
        // One that leaves a new peak may count what is live then by a barrier, which drains nothing.
        let mut counted = 0;
        for step in 0..5_000 {
            let counter = [&tree.a, &tree.b, &tree.c][rng.random_range(0..3)].clone();
            let units = rng.random_range(0..200);
            let elsewhere = rng.random_bool(0.5);
            let what = rng.random_range(0..10);
            let before = tree.r.counts();
            match what {
                0 => {
                    max += 1;
                    tree.a.set_max(max).expect("room");
                }
                1 => counter.set_min(units),
                2..7 if elsewhere => {
                    tree.other.with(&counter, move |counter| {
                        counter.charge(units).expect("room")
                    });
                    held.push((counter, units));
                }
                2..7 => {
                    counter.charge(units).expect("room");
                    held.push((counter, units));
                }
                _ if held.is_empty() => {}
                _ => {
                    let (counter, units) = held.swap_remove(rng.random_range(0..held.len()));
                    tree.other
                        .with(&counter, move |counter| counter.uncharge(units));
                }
            }
            let after = tree.r.counts();
            if after.drains > before.drains && (2..7).contains(&what) && units > tree.r.batch() {
                widened += 1;
                continue;
            }
            let barriers = after.barriers - before.barriers;
            counted += barriers;
            assert!(
                (after.drains, after.drained) == (before.drains, before.drained)
                    && barriers <= u64::from((2..7).contains(&what)),
                "step {step}, operation {what}: {before:?}, {after:?}"
            );
        }
        let steps = 16 * (1 + u64::from(tree.r.peak().ilog2()));
        assert!(
            counted <= 3 * steps,
            "{counted} for {steps} steps at each level"
        );
        assert!(widened <= 3, "once for each counter: {widened}");
        let live: u64 = held.iter().map(|(_, units)| units).sum();
        assert_eq!(tree.r.live(), live);
    }
}

#[test]
fn a_refusal_drains_the_refusing_subtree() {
    for config in configs() {
        Tree::new(config).assert_drains_a("a refusal", |t| {
            let room = t.a.max() - t.a.live();
            assert_eq!(
                t.b.charge(room + 1).expect_err("one too many").level,
                t.a.id()
            );
            assert_eq!(t.a.stocked(), 0);
        });
    }
}

#[test]
fn a_charge_that_needs_the_stock_drains_it() {
    for config in configs() {
        Tree::new(config).assert_drains_a("a charge that fits without the stock only", |t| {
            let room = t.a.max() - t.a.live();
            t.b.charge(room).expect("exactly fits");
            assert_eq!((t.a.stocked(), t.a.usage()), (0, t.a.max()));
        });
    }
}

#[test]
fn a_lowered_max_drains() {
    for config in configs() {
        Tree::new(config).assert_drains_a("a max between live and usage", |t| {
            let live = t.a.live();
            t.a.set_max(live).expect("no more than that is live");
            assert_eq!((t.a.usage(), t.a.stocked()), (live, 0));
        });
    }
}

#[test]
fn a_forced_charge_above_max_drains() {
    for config in configs() {
        Tree::new(config).assert_drains_a("a forced excess", |t| {
            t.b.force_charge(t.a.max());
            assert_eq!(t.a.stocked(), 0, "no hit succeeds above the limit");
            assert_eq!(t.a.usage(), t.a.live());
            assert_eq!(t.a.usage() - t.a.forced(), t.a.max());
        });
    }
}

#[test]
fn a_switch_drains() {
    for config in configs() {
        Tree::new(config).assert_drains_a("switching the stock off", |t| {
            t.a.set_batch(0);
            t.b.charge(1).expect("room");
            t.b.uncharge(1);
            assert_eq!(t.a.stocked(), 0, "off is off");
        });
    }
}

#[test]
fn a_switch_back_on_drains_nothing() {
    for tree in configs().map(Tree::new) {
        tree.stock_up();
        tree.a.set_batch(0);
        tree.assert_quiet("an ordinary life without a stock", |t| {
            for _ in 0..100 {
                t.b.charge(1).expect("room");
                t.b.uncharge(1);
            }
        });
        tree.a.set_batch(BATCH);
        assert_eq!(
            (tree.a.batch(), tree.b.batch(), tree.c.batch()),
            (BATCH, BATCH, BATCH)
        );
        tree.assert_quiet("an ordinary life after it", |t| {
            t.b.charge(1).expect("room")
        });
    }
}

#[test]
fn an_explicit_call_drains_with_one_barrier() {
    for config in configs() {
        let tree = Tree::new(config);
        let more: Vec<PageCounter> = (0..50).map(|_| tree.a.child()).collect();
        for counter in more.iter().chain(&more) {
            counter.charge(1).expect("room");
            tree.other
                .with(counter, |counter| counter.charge(1).expect("room"));
        }
        tree.assert_drains_a("an explicit drain", |t| {
            let counts = t.drained_by(|t| assert!(t.a.drain() > 0));
            assert_eq!(
                (counts.drains, counts.barriers),
                (1, 1),
                "however many counters and threads"
            );
            assert_eq!(t.a.stocked(), 0);
        });
    }
}

#[test]
fn the_first_child_drains_its_parent() {
    for config in configs() {
        let r = PageCounter::root(config.batch(BATCH));
        let a = r.child();
        let other = Other::spawn();
        for _ in 0..2 {
            a.charge(1).expect("unlimited");
            other.with(&a, |a| a.charge(1).expect("unlimited"));
        }
        let stocked = a.stocked();
        let before = r.counts();
        assert!(stocked > 0);
        let b = a.child();
        let after = r.counts();
        assert!(after.drains > before.drains);
        assert_eq!(after.drained - before.drained, stocked);
        assert_eq!((a.usage(), a.stocked()), (4, 0));
        drop(b);
        assert!(r.verify().is_ok());
    }
}

/// The kernel charges nothing to its root, which has no stock for that. Here the root is charged as
/// any group is.
#[test]
fn a_root_with_children_has_its_stock_again() {
    for config in configs() {
        let r = PageCounter::root(config.batch(BATCH));
        walk_first(&r);
        r.charge(1).expect("unlimited");
        r.charge(1).expect("unlimited");
        assert!(r.stocked() > 0);
        let a = r.child();
        assert_eq!(
            (r.usage(), r.stocked()),
            (2, 0),
            "its first child drained it"
        );
        for _ in 0..3 {
            r.charge(1).expect("unlimited");
        }
        let before = r.stocked();
        assert!(before > 0, "the root charges in advance");
        r.charge(1).expect("unlimited");
        assert_eq!((r.stocked(), r.live()), (before - 1, 6), "a hit");
        let b = r.child();
        assert_eq!(r.stocked(), before - 1, "a further child drains nothing");
        drop((a, b));
    }
}

#[test]
fn another_tree_is_not_counted() {
    for config in configs() {
        let tree = Tree::new(config.clone());
        let stranger = Tree::new(config);
        tree.stock_up();
        stranger.stock_up();
        let stocked = tree.r.stocked();
        tree.assert_quiet("another tree", |_| assert!(stranger.r.drain() > 0));
        assert_eq!(tree.r.stocked(), stocked);
    }
}
