//! A gauge that some threads raise and others lower, at once: its threads are read one after the
//! other, so a figure may be one that the gauge never had. How far off it may be is what the read
//! says.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Done, ops};
use crate::support::turns::turn;

const STAT: StatKey = StatKey::WORKINGSET_REFAULT;
/// The gauge is never below 0, and never above this.
const MOST: i64 = 55;
/// Each has a group of its own at each level; half of them raise the gauge, half lower it.
const WRITERS: usize = 4;
const LEVELS: usize = 12;

struct Gauge {
    runtime: Runtime,
    levels: Vec<Group>,
    /// The units that may yet be added, and those that may be taken off again.
    free: AtomicI64,
    raised: AtomicI64,
    /// Units moved up or down: told before, and after.
    begun: AtomicU64,
    done: AtomicU64,
}

impl Gauge {
    fn new(builder: RuntimeBuilder) -> Self {
        let runtime = builder.build().expect("a configuration");
        let mut levels = vec![runtime.root()];
        for _ in 1..LEVELS {
            levels.push(
                levels[levels.len() - 1]
                    .create("below", Limits::new())
                    .expect("a name"),
            );
        }
        let zero = || AtomicU64::new(0);
        Self {
            runtime,
            levels,
            free: AtomicI64::new(MOST),
            raised: AtomicI64::new(0),
            begun: zero(),
            done: zero(),
        }
    }

    /// Moves at most so many units: up or down, and the gauge is within its range all the time.
    fn step(&self, up: bool, level: usize, units: i64) {
        let (from, to) = if up {
            (&self.free, &self.raised)
        } else {
            (&self.raised, &self.free)
        };
        let mut taken = 0;
        let take = |left: i64| {
            taken = left.min(units);
            (taken > 0).then_some(left - taken)
        };
        if from
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_err()
        {
            return std::thread::yield_now();
        }
        self.begun.fetch_add(taken.unsigned_abs(), Ordering::SeqCst);
        self.levels[level].stat_add(STAT, if up { taken } else { -taken });
        self.done.fetch_add(taken.unsigned_abs(), Ordering::SeqCst);
        to.fetch_add(taken, Ordering::SeqCst);
    }

    /// The error of an exact read: enough for a gauge within its range, and no more than was moved
    /// meanwhile.
    fn look(&self) -> u64 {
        let done = self.done.load(Ordering::SeqCst);
        let exact = self.levels[0].read(Freshness::Exact);
        let begun = self.begun.load(Ordering::SeqCst);
        let found = exact.get(STAT);
        let error = exact.max_error();
        let off = if found < 0 {
            -found
        } else {
            (found - MOST).max(0)
        };
        assert!(
            off.unsigned_abs() <= error,
            "a gauge of 0 to {MOST} was read as {found}, at most {error} off"
        );
        assert!(
            error <= begun - done,
            "an error of {error}, and {} units were moved",
            begun - done
        );
        error
    }

    /// No thread moves it.
    fn assert_quiet(&self) {
        let exact = self.levels[0].read(Freshness::Exact);
        let truth = MOST - self.free.load(Ordering::SeqCst);
        assert_eq!((exact.get(STAT), exact.max_error()), (truth, 0));
    }
}

/// While it moves, an exact read says by how much it may be off; when it rests, nothing is.
#[test]
fn an_exact_read_of_a_gauge_tells_what_moved_meanwhile() {
    let _turn = turn(module_path!());
    let plain = Runtime::builder;
    for (seed, builder) in (0..).zip([plain(), plain().stat_batch(2), plain().stat_batch(64)]) {
        let gauge = Gauge::new(builder);
        let over = AtomicBool::new(false);
        let looks = ops() / 1_000;
        // Reads beside which it moved.
        let mut beside = 0;
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let gauge = &gauge;
                let over = &over;
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(seed * 10 + writer as u64);
                    while !over.load(Ordering::Relaxed) {
                        gauge.step(
                            writer % 2 == 0,
                            rng.random_range(0..LEVELS),
                            rng.random_range(1..20),
                        );
                    }
                });
            }
            let _over = Done(&over);
            for _ in 0..10_000 * looks {
                beside += u64::from(gauge.look() > 0);
                if beside == looks {
                    break;
                }
            }
        });
        gauge.assert_quiet();
        println!(
            "{beside} reads beside writers, {:?}",
            gauge.runtime.counts()
        );
        assert_eq!(
            beside, looks,
            "hardly any thread moved it while it was read"
        );
    }
}
