//! Channels without a time limit: each charge that waits is admitted, however the stocks open and
//! close.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use memcg::CentralStock;
use memcg::{Bytes, Charge, Limit, Limits, OnFull, Runtime};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::PATIENCE;
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

const MAX: u64 = 1_000;
const MESSAGES: u64 = if cfg!(debug_assertions) {
    20_000
} else {
    100_000
};
const QUEUES: u64 = 2;

/// Two producers and two consumers below one max. A message has up to all of it, and most have
/// little, so that a stock opens, closes for a charge that lacks it, and opens again.
#[test]
fn each_charge_that_waits_gets_its_turn() {
    let _turn = turn(module_path!());
    for seed in 0..3 {
        let runtime = Runtime::builder()
            .audit(true)
            .build()
            .expect("defaults hold");
        let parent = runtime
            .root()
            .create("parent", Limits::new().max(Limit::Bytes(MAX)))
            .expect("a name");
        let steps = Arc::new(AtomicU64::new(0));
        let waits = AtomicU64::new(0);
        let progress = Arc::clone(&steps);
        let described = parent.clone();
        let describe = Arc::new(move || {
            format!(
                "{} wait, usage {}, live {}",
                described.waiting_count(),
                described.usage(),
                described.live()
            )
        });
        let watchdog = Watchdog::start(
            "channels",
            PATIENCE,
            move || progress.load(Ordering::Relaxed),
            describe,
        );
        thread::scope(|scope| {
            for number in 0..QUEUES {
                let stock =
                    CentralStock::of(&parent.create(number, Limits::new()).expect("a free number"));
                let (to, from) = channel::<Charge>();
                let consumer = stock.clone();
                let steps = &steps;
                let waits = &waits;
                scope.spawn(move || {
                    for charge in from {
                        consumer.give_back(charge);
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(seed * QUEUES + number);
                    for _ in 0..MESSAGES / QUEUES {
                        let most = if rng.random_bool(0.02) { MAX } else { 200 };
                        let bytes = Bytes(rng.random_range(1..=most));
                        let charge = stock.charge_if_room(bytes).unwrap_or_else(|| {
                            waits.fetch_add(1, Ordering::Relaxed);
                            stock
                                .group()
                                .charge_with(bytes, OnFull::Wait(2 * PATIENCE))
                                .expect("its turn comes")
                        });
                        to.send(charge).expect("the consumer listens");
                    }
                });
            }
        });
        drop(watchdog);
        assert_eq!(
            (
                steps.load(Ordering::Relaxed),
                parent.live(),
                parent.waiting_count()
            ),
            (MESSAGES, 0, 0)
        );
        assert!(parent.peak() <= MAX, "{}", parent.peak());
        let verdict = runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        println!(
            "seed {seed}: {MESSAGES} messages, {} went into line, {:?}",
            waits.into_inner(),
            runtime.counts()
        );
        parent.offline_tree();
        runtime.settle();
        assert_eq!(runtime.root().usage(), 0);
    }
}
