//! Several threads at one level: what one asks for no other asks for, and what one gets counts for
//! the others.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use memcg::{
    Bytes, Charge, Event, Group, Limit, Limits, OnFull, Reclaim, ReclaimContext, ReclaimPriority,
};

use super::{Cache, KIB, Log, bare, build, call, charge, create, create_with, left_empty};
use crate::support::waiters::{Polled, until};

const THREADS: usize = 4;

/// Every thread at once, as often as it takes.
fn at_once(work: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let start = &start;
            let work = &work;
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

/// Each thread finds the same bytes above min; together they may not take them twice.
#[test]
fn min_is_kept_a_group_that_asks() {
    let usage = 1_000 * KIB;
    let min = 900 * KIB;
    for _ in 0..20 {
        let runtime = left_empty(build(bare().max(Limit::Bytes(usage))));
        let kept = create_with(
            &runtime.root(),
            "kept",
            Limits::new().min(Limit::Bytes(min)),
        );
        let busy = create(&runtime.root(), "busy");
        let (_cache, _registration) = {
            let cache = Cache::alone(&kept, usage, &Log::default());
            let slow = Arc::clone(&cache);
            let reclaimer = call(move |want, _| {
                std::thread::sleep(Duration::from_micros(200));
                slow.evict(want)
            });
            (
                cache,
                kept.register_reclaimer(reclaimer, ReclaimPriority::NORMAL),
            )
        };
        at_once(|_| drop(busy.charge(Bytes(95 * KIB))));
        assert!(kept.usage() >= min, "{} of {min} left", kept.usage());
    }
}

/// Evicts under its lock, and frees nothing where another thread has it.
struct Tries(Mutex<Vec<Charge>>);

impl Reclaim for Tries {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let Ok(mut entries) = self.0.try_lock() else {
            return 0;
        };
        std::thread::sleep(Duration::from_micros(100));
        let mut freed = 0;
        while freed < want
            && let Some(entry) = entries.pop()
        {
            freed += entry.bytes();
        }
        freed
    }
}

fn tries(group: &Group, entries: u64) -> Arc<Tries> {
    Arc::new(Tries(Mutex::new(
        (0..entries).map(|_| charge(group, KIB)).collect(),
    )))
}

/// A charge that finds the cache at work waits for what comes of it. It is not refused, and low is
/// not broken for it.
#[test]
fn a_cache_at_work_is_not_one_without_memory() {
    let runtime = left_empty(build(bare().max(Limit::Bytes(2_100 * KIB))));
    let root = runtime.root();
    let protected = create_with(
        &root,
        "protected",
        Limits::new().low(Limit::Bytes(100 * KIB)),
    );
    let (kept, _kept_registration) = Cache::of(&protected, 100 * KIB, &Log::default());
    let open = create(&root, "open");
    let busy = create(&root, "busy");
    let cache = tries(&open, 2_000);
    let _registration = open.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
    let refused = AtomicU64::new(0);
    at_once(|_| {
        let held: Vec<_> = (0..100).map(|_| busy.charge(Bytes(KIB))).collect();
        refused.fetch_add(
            held.iter().filter(|held| held.is_err()).count() as u64,
            Ordering::Relaxed,
        );
    });
    assert_eq!(
        (refused.into_inner(), root.events().get(Event::Low)),
        (0, 0)
    );
    assert_eq!(kept.bytes(), 100 * KIB);
}

/// A charge that waits for no thread does not wait for a round on another one: it is refused, or in
/// line, at once. Low is not broken for it.
#[test]
fn undelayed_does_not_wait_for_a_round_of_others() {
    let runtime = left_empty(build(
        bare()
            .max(Limit::Bytes(200 * KIB))
            .reclaim_time(Duration::from_secs(600)),
    ));
    let root = runtime.root();
    let protected = create_with(
        &root,
        "protected",
        Limits::new().low(Limit::Bytes(100 * KIB)),
    );
    let (kept, _kept_registration) = Cache::of(&protected, 100 * KIB, &Log::default());
    let open = create(&root, "open");
    let busy = create(&root, "busy");
    let cache = Cache::alone(&open, 100 * KIB, &Log::default());
    let begun = Arc::new(Barrier::new(2));
    let end = Arc::new(Barrier::new(2));
    let entered = AtomicU64::new(0);
    let _registration = {
        let cache = Arc::clone(&cache);
        let begun = Arc::clone(&begun);
        let end = Arc::clone(&end);
        let reclaimer = call(move |want, _| {
            if entered.fetch_add(1, Ordering::SeqCst) > 0 {
                return 0;
            }
            begun.wait();
            end.wait();
            cache.evict(want)
        });
        open.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| charge(&busy, KIB));
        begun.wait();
        let refused = busy.charge_with(Bytes(KIB), OnFull::Reclaim);
        assert!(
            matches!(&refused, Err(error) if error.is_would_block()),
            "{refused:?}"
        );
        let mut future = std::pin::pin!(busy.charge_async(Bytes(KIB)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(
            (
                root.waiting_count(),
                root.events().get(Event::Low),
                kept.bytes()
            ),
            (1, 0, 100 * KIB)
        );
        end.wait();
        drop(waits.join().expect("the cache gives"));
        assert!(
            future.poll(&mut context).is_ready(),
            "what was given back is for the charge in line"
        );
    });
}

/// A future that came while another thread was asking waits in line, and asks again: that round
/// brings nothing.
#[test]
fn a_future_asks_again_when_others_have() {
    let runtime = left_empty(build(
        bare()
            .max(Limit::Bytes(200 * KIB))
            .reclaim_time(Duration::from_secs(600)),
    ));
    let root = runtime.root();
    let protected = create_with(
        &root,
        "protected",
        Limits::new().low(Limit::Bytes(100 * KIB)),
    );
    let (kept, _kept_registration) = Cache::of(&protected, 100 * KIB, &Log::default());
    let full = create_with(&root, "full", Limits::new().max(Limit::Bytes(100 * KIB)));
    let _held = charge(&full, 100 * KIB);
    let busy = create(&root, "busy");
    let begun = Arc::new(Barrier::new(2));
    let end = Arc::new(Barrier::new(2));
    let entered = AtomicU64::new(0);
    let _registration = {
        let begun = Arc::clone(&begun);
        let end = Arc::clone(&end);
        let reclaimer = call(move |_, _| {
            if entered.fetch_add(1, Ordering::SeqCst) == 0 {
                begun.wait();
                end.wait();
            }
            0
        });
        full.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
    };
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| full.charge(Bytes(KIB)));
        begun.wait();
        let mut future = Polled::new(busy.charge_async(Bytes(KIB)));
        let came = Instant::now();
        assert!(future.poll().is_pending());
        std::thread::sleep(Duration::from_millis(10));
        let waits = future.wakes() == 0 || came.elapsed() >= Duration::from_secs(1);
        assert_eq!(
            (
                root.waiting_count(),
                root.events().get(Event::Low),
                kept.bytes()
            ),
            (1, 0, 100 * KIB)
        );
        end.wait();
        assert!(
            refused.join().expect("no panic there").is_err(),
            "no group gives anything below it"
        );
        assert!(waits, "the other thread's round was for another group");
        drop(
            future
                .finish()
                .expect("what low protects is all that is left"),
        );
        assert!(future.wakes() <= 2);
        until("the round is over", || root.events().get(Event::Low) > 0);
    });
}
