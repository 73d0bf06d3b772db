//! A charge that waits has asked for memory before, and goes on asking: a thread does so itself, for
//! a future another thread does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, Group, OnFull, ReclaimPriority, Registration};

use super::{
    Cache, KIB, Log, Polled, WATCHDOG, admitted, assert_woken, blocked, build, call, in_line, join,
    kinds, left_empty, limited, runtimes, until,
};

/// A cache that gives nothing until it is told to.
struct Later {
    cache: Arc<Cache>,
    gives: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    _registration: Registration,
}

fn later(group: &Group, bytes: u64) -> Later {
    let cache = Cache::alone(group, bytes, &Log::default());
    let gives = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU64::new(0));
    let reclaimer = {
        let cache = Arc::clone(&cache);
        let gives = Arc::clone(&gives);
        let asked = Arc::clone(&asked);
        call(move |want, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            if gives.load(Ordering::SeqCst) {
                cache.evict(want)
            } else {
                0
            }
        })
    };
    let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    Later {
        cache,
        gives,
        asked,
        _registration,
    }
}

/// Before any charge gets in line, whichever charge has something gives it.
#[test]
fn first_every_charge_is_asked() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let (cache, _registration) = Cache::of(&group, 100 * KIB, &Log::default());
        let charges = [
            group
                .charge_with(Bytes(20 * KIB), OnFull::Wait(Duration::ZERO))
                .expect("the cache gives"),
            super::block_on(group.charge_async(Bytes(30 * KIB))).expect("the cache gives"),
        ];
        assert_eq!(
            (
                charges[0].bytes(),
                charges[1].bytes(),
                group.waiting_count()
            ),
            (20 * KIB, 30 * KIB, 0)
        );
        assert!(cache.bytes() <= 50 * KIB, "{}", cache.bytes());
    }
}

/// A waiter that finds no reclaimer to ask when it comes into line asks the one that is registered
/// later.
#[test]
fn a_waiter_asks_a_reclaimer_that_comes_later() {
    let runtime = left_empty(build(super::bare().reclaim_time(Duration::from_millis(2))));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let cache = Cache::alone(&group, 100 * KIB, &Log::default());
    let thread = blocked(&group, 20 * KIB, &group);
    let _registration = group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
    let charge = join(thread).expect("the cache gives");
    assert_eq!((charge.bytes(), cache.bytes()), (20 * KIB, 80 * KIB));
}

#[test]
fn a_thread_asks_again() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.reclaim_time(Duration::from_millis(2))));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let thread = blocked(&group, 20 * KIB, &group);
        assert!(
            later.asked.load(Ordering::SeqCst) > 0,
            "before it got in line"
        );
        later.gives.store(true, Ordering::SeqCst);
        let charge = join(thread).expect("the cache gives, and no other charge comes by");
        assert_eq!(charge.bytes(), 20 * KIB);
    }
}

/// A task asks no reclaimer itself: the thread of the tree asks again for it, as a thread that waits
/// asks.
#[test]
fn reclaimers_are_asked_again_for_a_future() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.reclaim_time(Duration::from_millis(2))));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let mut waiter = in_line(&group, 20 * KIB);
        until("it had nothing", || later.asked.load(Ordering::SeqCst) > 0);
        later.gives.store(true, Ordering::SeqCst);
        until("asked again", || waiter.wakes() > 0);
        drop(admitted(&mut waiter));
    }
}

/// A reclaimer that comes while a task waits is asked at once, at the level of the line and at one
/// below it.
#[test]
fn a_reclaimer_that_comes_is_asked_for_a_future() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let below = group.create("below", memcg::Limits::new()).unwrap();
        for cached in [&group, &below] {
            let held = cached.charge(Bytes(100 * KIB)).expect("it is empty");
            let mut waiter = in_line(&group, 20 * KIB);
            let held = std::sync::Mutex::new(held);
            let gives = call(move |want, _| held.lock().unwrap().shrink(Bytes(want)));
            let registration = cached.register_reclaimer(gives, ReclaimPriority::NORMAL);
            until("the new one is asked", || waiter.wakes() > 0);
            drop((admitted(&mut waiter), registration));
            runtime.settle();
        }
    }
}

/// Others that ask do so for a charge that is first.
#[test]
fn others_ask_for_a_future() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let mut waiter = in_line(&group, 20 * KIB);
        later.gives.store(true, Ordering::SeqCst);
        until("what others reclaim is handed over", || {
            drop(group.charge(Bytes(KIB)));
            waiter.wakes() > 0
        });
        drop(admitted(&mut waiter));
    }
}

/// A future asks when it comes into line, and not at each poll: a task may poll it for other
/// reasons.
#[test]
fn a_future_that_is_polled_again_asks_no_more() {
    for builder in kinds() {
        // The thread that asks for it has longer pauses than this test takes.
        let runtime = left_empty(build(builder.reclaim_time(WATCHDOG)));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let mut waiter = in_line(&group, 20 * KIB);
        until("asked once", || later.asked.load(Ordering::SeqCst) > 0);
        let asked = later.asked.load(Ordering::SeqCst);
        for _ in 0..10 {
            assert!(waiter.poll().is_pending());
        }
        assert_eq!(later.asked.load(Ordering::SeqCst), asked);
    }
}

/// Asked for by its owner, from outside.
#[test]
fn what_is_reclaimed_on_request_is_handed_over() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let mut waiter = in_line(&group, 20 * KIB);
        later.gives.store(true, Ordering::SeqCst);
        until("asked again", || {
            group
                .reclaim(Bytes(20 * KIB))
                .expect("not inside a reclaimer");
            later.cache.bytes() < 100 * KIB
        });
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

/// Threads that wait all ask, and share what comes.
#[test]
fn several_threads_ask_again() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.reclaim_time(Duration::from_millis(2))));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let later = later(&group, 100 * KIB);
        let threads: Vec<_> = (0..4).map(|_| blocked(&group, 20 * KIB, &group)).collect();
        later.gives.store(true, Ordering::SeqCst);
        let charges: Vec<_> = threads
            .into_iter()
            .map(|thread| join(thread).expect("the cache gives"))
            .collect();
        assert_eq!(charges.len(), 4);
    }
}

/// Promised memory comes on another thread, and goes to a charge that is first.
#[test]
fn what_was_promised_is_handed_over() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let cache = Cache::alone(&group, 100 * KIB, &Log::default());
        let (asked, to_free) = std::sync::mpsc::channel();
        let _registration = {
            let reclaimer = call(move |_, context| {
                asked.send(context.promise()).expect("a thread frees");
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let mut waiter = in_line(&group, 20 * KIB);
        let later = to_free.recv().expect("it has been asked");
        let freed = cache.evict(20 * KIB);
        assert_woken(&waiter, true);
        later.report(freed);
        drop(admitted(&mut waiter));
    }
}

/// A reclaimer promises memory, and max is lowered below the charge: the future is refused for
/// good.
#[test]
fn what_was_promised_does_not_help_a_charge_above_max() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let _held = group.force_charge(Bytes(100 * KIB));
        let (asked, promises) = std::sync::mpsc::channel();
        let _registration = {
            let reclaimer = call(move |_, context| {
                context.group().set_max(Bytes(50 * KIB)).expect("bytes");
                asked.send(context.promise()).expect("the test keeps it");
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let ended = Polled::new(group.charge_async(Bytes(60 * KIB))).finish();
        assert!(
            matches!(ended, Err(ref error) if error.is_over_limit()),
            "{ended:?}"
        );
        assert!(promises.recv_timeout(WATCHDOG).is_ok(), "it promises");
    }
}

/// A reclaimer that needs a buffer to evict is not held up by the charges for which it evicts.
#[test]
fn a_reclaimer_need_not_stand_in_line() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let cache = Cache::alone(&group, 80 * KIB, &Log::default());
        let gives = Arc::new(AtomicBool::new(false));
        let _registration = {
            let cache = Arc::clone(&cache);
            let gives = Arc::clone(&gives);
            let reclaimer = call(move |want, context| {
                if !gives.load(Ordering::SeqCst) {
                    return 0;
                }
                let Ok(_buffer) = context.group().charge(Bytes(4 * KIB)) else {
                    return 0;
                };
                cache.evict(want)
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let mut waiter = in_line(&group, 30 * KIB);
        // Until no charge may pass it any more.
        while group.charge(Bytes(KIB)).is_ok() {}
        gives.store(true, Ordering::SeqCst);
        for _ in 0..1_000 {
            if waiter.wakes() == 0 {
                group
                    .reclaim(Bytes(30 * KIB))
                    .expect("not inside a reclaimer");
            }
        }
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}
