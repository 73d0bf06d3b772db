//! A reclaimer may do everything but reclaim while it is asked. No lock of the library is held.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use memcg::errors::ReclaimError;
use memcg::{
    Bytes, Event, Freshness, Group, Limit, Limits, ReclaimCause, ReclaimPriority, Registration,
    Runtime, StatKey,
};

use super::{
    Cache, Log, MIB, assert_empty, assert_sound, bare, build, call, charge, create, kinds,
    left_empty, lock, runtimes,
};

/// Whatever there is to call, on groups in the way and out of it.
fn everything(runtime: &Runtime, group: &Group, target: &Group, round: u64) {
    let root = runtime.root();
    let name = format!("made{round}");
    for parent in [group, &root] {
        let made = parent
            .create(&name, Limits::new().soft(0).min(1))
            .expect("a name");
        let held = made.force_charge(1);
        assert!(made.inspect().is_in_excess() && made.inspect().descendants_in_excess() == 0);
        let _registration = made.register_reclaimer(call(|_, _| 0), ReclaimPriority::LOW);
        assert_eq!(runtime.group(&made.path()).as_ref(), Some(&made));
        assert_eq!(runtime.find(made.id()).as_ref(), Some(&made));
        let mut moved = root.force_charge(3);
        drop((moved.take(), moved.transfer(&made)));
        made.offline_tree();
        drop(held);
    }
    let other = runtime.group("/other").expect("made before");
    drop(other.charge(10).expect("there is room"));
    for level in [group, target, &other, &root] {
        level
            .set_limits(Limits::new().soft(Limit::Bytes(MIB)))
            .expect("a number");
        level
            .set_limits(Limits::new().soft(Limit::Unlimited))
            .expect("none");
        level.set_limits(Limits::new().low(0)).expect("a number");
        level.set_limits(Limits::new().min(0)).expect("a number");
        level
            .set_max(level.limits().max.expect("always told"))
            .expect("as it was");
        level.memory().set_batch(4_096);
        level.memory().drain();
        level.stat_add(StatKey::FILE, 1);
        level.inspect().flush();
        level.inspect().flush_ratelimited();
        drop((
            level.read(Freshness::Threshold),
            level.read(Freshness::Exact),
            level.memory().peak_window(),
        ));
        assert_eq!(level.events().local().get(Event::Oom), 0);
        let figures = (
            level.usage(),
            level.live(),
            level.memory().stocked(),
            level.forced(),
            level.peak(),
            level.refused_count(),
        );
        std::hint::black_box((
            figures,
            level.memory().effective_min(&target.memory()),
            level.memory().effective_low(&root.memory()),
            level.path(),
        ));
        assert!(level.inspect().descendants().count() >= level.children().len());
    }
    runtime.settle();
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    assert!(runtime.snapshot().to_string().lines().count() > 2);
    std::hint::black_box((
        runtime.counts(),
        runtime.group_count(),
        runtime.dying_count(),
        format!("{runtime:?} {group:?}"),
    ));
}

#[test]
fn everything_may_be_called() {
    for builder in kinds() {
        let runtime = Arc::new(build(builder));
        let root = runtime.root();
        let rounds = Arc::new(AtomicU64::new(0));
        let group = root
            .create("q", Limits::new().max(Limit::Bytes(10 * MIB)))
            .expect("a name");
        let other = create(&root, "other");
        let cache = Cache::alone(&group, 10 * MIB, &Log::default());
        let causes = Arc::new(Mutex::new(Vec::new()));
        let registration = {
            let runtime = Arc::clone(&runtime);
            let cache = Arc::clone(&cache);
            let rounds = Arc::clone(&rounds);
            let causes = Arc::clone(&causes);
            let reclaimer = call(move |want, context| {
                lock(&causes).push(context.cause());
                let round = rounds.fetch_add(1, Ordering::SeqCst);
                everything(&runtime, &context.group(), &context.target(), round);
                cache.evict(want)
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let held = charge(&group, MIB);
        assert_eq!(group.set_max(Limit::Bytes(8 * MIB)).expect("a number"), 0);
        group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        for cause in [
            ReclaimCause::Full,
            ReclaimCause::Lowered,
            ReclaimCause::Asked,
        ] {
            assert!(lock(&causes).contains(&cause), "{cause:?}");
        }
        assert_eq!(
            group.events().get(Event::Panic),
            0,
            "an assertion inside failed"
        );
        assert_sound(&runtime);
        drop((registration, cache, held, group, other));
        assert_empty(&runtime);
    }
}

/// It drops what it is registered with, and what is registered beside it; its group goes offline
/// under it.
#[test]
fn it_may_end_itself() {
    for offline in [false, true] {
        for builder in kinds() {
            let runtime = left_empty(build(builder.max(Limit::Bytes(10 * MIB))));
            let root = runtime.root();
            let group = create(&root, "q");
            let cache = Cache::alone(&group, 10 * MIB, &Log::default());
            let calls = Arc::new(AtomicU64::new(0));
            let registrations: Arc<Mutex<Vec<Registration>>> = Arc::default();
            for _ in 0..2 {
                let cache = Arc::clone(&cache);
                let calls = Arc::clone(&calls);
                let mine = Arc::clone(&registrations);
                let reclaimer = call(move |want, context| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    let ours = std::mem::take(&mut *lock(&mine));
                    drop(ours);
                    if offline {
                        context.group().offline().expect("no children");
                    }
                    cache.evict(want.max(MIB))
                });
                let registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
                lock(&registrations).push(registration);
            }
            let _held = charge(&root, MIB);
            assert_eq!(calls.load(Ordering::SeqCst), 1, "the first ended both");
            assert!(cache.bytes() <= 9 * MIB);
            assert!(root.charge(Bytes(10 * MIB)).is_err());
            assert_eq!(calls.load(Ordering::SeqCst), 1);
            assert_sound(&runtime);
        }
    }
}

/// Two threads in two reclaimers, each of which ends the other: neither waits for the other.
#[test]
fn they_may_end_each_other() {
    for runtime in runtimes() {
        let groups = ["x", "y"].map(|name| create(&runtime.root(), name));
        let registrations: Arc<[Mutex<Option<Registration>>; 2]> = Arc::default();
        let both_inside = Arc::new(Barrier::new(2));
        let caches = groups
            .each_ref()
            .map(|group| Cache::alone(group, MIB, &Log::default()));
        for (at, group) in groups.iter().enumerate() {
            let registrations = Arc::clone(&registrations);
            let both_inside = Arc::clone(&both_inside);
            let cache = Arc::clone(&caches[at]);
            let all = Arc::clone(&registrations);
            let reclaimer = call(move |_, _| {
                both_inside.wait();
                let other = lock(&all[1 - at]).take();
                drop(other);
                cache.evict(u64::MAX)
            });
            *lock(&registrations[at]) =
                Some(group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL));
        }
        std::thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| {
                    assert_eq!(
                        group
                            .reclaim(Bytes(MIB))
                            .expect("not inside a reclaimer")
                            .freed,
                        MIB
                    )
                });
            }
        });
        assert!(
            registrations
                .iter()
                .all(|registration| lock(registration).is_none())
        );
        assert_sound(&runtime);
    }
}

/// Nor does it reclaim by asking for it, or by lowering a max.
#[test]
fn reclaim_inside_reclaim_is_an_error() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = create(&root, "q");
        let other = create(&root, "other");
        let other_log = Log::default();
        let (_other_cache, _other_registration) = Cache::of(&other, 4 * MIB, &other_log);
        let cache = Cache::alone(&group, 4 * MIB, &Log::default());
        let seen = Arc::new(AtomicU64::new(0));
        let _registration = {
            let cache = Arc::clone(&cache);
            let seen = Arc::clone(&seen);
            let other = other.clone();
            let reclaimer = call(move |want, context| {
                for target in [&other, &context.group(), &context.target()] {
                    let error: ReclaimError =
                        target.reclaim(Bytes(MIB)).expect_err("inside a reclaimer");
                    assert_eq!(&error.group, target);
                    assert!(error.to_string().contains(&target.path()), "{error}");
                }
                assert_eq!(
                    other.set_max(Limit::Bytes(3 * MIB)).expect("a number"),
                    MIB,
                    "stored, not reclaimed for"
                );
                other.set_max(Limit::Unlimited).expect("none");
                seen.fetch_add(1, Ordering::SeqCst);
                cache.evict(want)
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        assert_eq!(group.reclaim(Bytes(MIB)).expect("outside").freed, MIB);
        assert!(seen.load(Ordering::SeqCst) > 0);
        assert_eq!(
            group.events().get(Event::Panic),
            0,
            "an assertion inside failed"
        );
        assert!(other_log.is_empty());
        assert_eq!(other.reclaim(Bytes(MIB)).expect("outside again").freed, MIB);
        assert_sound(&runtime);
    }
}

/// While a reclaimer works other threads do what they like, reclaim of the same level included: it
/// waits for them.
#[test]
fn other_threads_go_on_meanwhile() {
    for builder in kinds() {
        let runtime = Arc::new(build(builder.max(Limit::Bytes(10 * MIB))));
        let root = runtime.root();
        let group = create(&root, "q");
        let other = create(&root, "other");
        let cache = Cache::alone(&group, 9 * MIB, &Log::default());
        let depth = Arc::new(AtomicU64::new(0));
        let registration = {
            let cache = Arc::clone(&cache);
            let depth = Arc::clone(&depth);
            let runtime = Arc::clone(&runtime);
            let other = other.clone();
            let root = root.clone();
            let reclaimer = call(move |want, context| {
                if depth.fetch_add(1, Ordering::SeqCst) == 0 {
                    let group = context.group();
                    let target = context.target();
                    std::thread::scope(|scope| {
                        scope.spawn(|| everything(&runtime, &group, &target, 7));
                    });
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            // It is no reclaimer: a charge of its own reclaims, by asking this very
                            // one.
                            drop(other.charge(Bytes(3 * MIB)).expect("after reclaim"));
                            assert_eq!(
                                root.reclaim(Bytes(MIB)).expect("on another thread").freed,
                                MIB
                            );
                        });
                    });
                }
                cache.evict(want)
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let held = charge(&root, 2 * MIB);
        assert!(depth.load(Ordering::SeqCst) >= 2, "asked by both");
        assert_eq!(group.events().get(Event::Panic), 0);
        assert_sound(&runtime);
        drop((registration, held, cache));
    }
}

/// The context, for each of the ways to come here.
#[test]
fn the_context_says_why() {
    let runtime = build(bare());
    let root = runtime.root();
    let top = root
        .create("top", Limits::new().max(Limit::Bytes(10 * MIB)))
        .expect("a name");
    let group = create(&top, "q");
    let log = Log::default();
    let (_cache, _registration) = Cache::of(&group, 10 * MIB, &log);
    let deadlines = Arc::new(Mutex::new(Vec::new()));
    let _second = {
        let deadlines = Arc::clone(&deadlines);
        let reclaimer = call(move |_, context| {
            assert!(
                context.deadline() > std::time::Instant::now(),
                "600 seconds are not over"
            );
            lock(&deadlines).push((context.group(), context.target()));
            0
        });
        group.register_reclaimer(reclaimer, ReclaimPriority::LOW)
    };
    let held = charge(&group, MIB);
    let asked = log.take();
    assert_eq!(asked.iter().map(|asked| asked.freed).sum::<u64>(), MIB);
    assert!(
        asked
            .iter()
            .all(|a| (a.cause, a.target.as_str()) == (ReclaimCause::Full, "/top")),
        "{asked:?}"
    );
    top.set_max(Limit::Bytes(8 * MIB)).expect("a number");
    let asked = log.take();
    assert!(
        asked
            .iter()
            .all(|a| (a.cause, a.target.as_str()) == (ReclaimCause::Lowered, "/top"))
            && !asked.is_empty()
    );
    root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    let asked = log.take();
    assert!(
        asked
            .iter()
            .all(|a| (a.cause, a.target.as_str()) == (ReclaimCause::Asked, "/"))
            && !asked.is_empty()
    );
    assert!(
        lock(&deadlines)
            .iter()
            .all(|(at, target)| *at == group && (*target == top || *target == root))
    );
    assert_eq!(group.events().get(Event::Panic), 0);
    assert_sound(&runtime);
    drop(held);
    lock(&deadlines).clear();
}

/// Charges when its thread ends.
struct AtExit {
    group: Group,
    admitted: Arc<AtomicU64>,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        let admitted =
            self.group.charge(Bytes(MIB)).is_ok() && self.group.charge(Bytes(MIB)).is_ok();
        self.admitted
            .fetch_add(u64::from(admitted), Ordering::SeqCst);
    }
}

thread_local! {
    static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// The last words of a thread, while it has a stock or when it has none any more, reclaim like any
/// others, and charges inside do not nest.
#[test]
fn a_thread_that_ends_reclaims() {
    for builder in kinds() {
        for stock_first in [false, true] {
            let runtime = build(builder.clone());
            let group = runtime
                .root()
                .create("q", Limits::new().max(Limit::Bytes(10 * MIB)))
                .expect("a name");
            let cache = Cache::alone(&group, 10 * MIB, &Log::default());
            let depth = Arc::new(AtomicU64::new(0));
            let nested = Arc::new(AtomicU64::new(0));
            let _registration = {
                let cache = Arc::clone(&cache);
                let depth = Arc::clone(&depth);
                let nested = Arc::clone(&nested);
                let reclaimer = call(move |want, context| {
                    let inside = depth.fetch_add(1, Ordering::SeqCst);
                    if inside == 0 {
                        let refused = context.group().charge(Bytes(10 * MIB));
                        let right = matches!(&refused, Err(error) if error.is_in_reclaim());
                        nested.fetch_add(u64::from(!right), Ordering::SeqCst);
                    } else {
                        nested.fetch_add(1, Ordering::SeqCst);
                    }
                    depth.fetch_sub(1, Ordering::SeqCst);
                    cache.evict(want)
                });
                group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
            };
            let admitted = Arc::new(AtomicU64::new(0));
            let at_exit = AtExit {
                group: group.clone(),
                admitted: Arc::clone(&admitted),
            };
            let small = create(&runtime.root(), "small");
            let thread = std::thread::spawn(move || {
                // The first that is made goes last.
                if stock_first {
                    drop(small.charge(1));
                }
                AT_EXIT.set(Some(at_exit));
                drop(small.charge(1));
            });
            thread.join().expect("destructors do not panic");
            assert_eq!(
                (
                    admitted.load(Ordering::SeqCst),
                    nested.load(Ordering::SeqCst)
                ),
                (1, 0)
            );
            assert_sound(&runtime);
        }
    }
}

/// A group that went offline while its charge reclaimed, here by the reclaimer itself, is charged
/// no more.
#[test]
fn offline_meanwhile_is_refused() {
    let runtime = left_empty(build(bare().max(Limit::Bytes(MIB))));
    let cached = create(&runtime.root(), "cached");
    let leaving = create(&runtime.root(), "leaving");
    let cache = Cache::alone(&cached, MIB, &Log::default());
    let reclaimer = {
        let cache = Arc::clone(&cache);
        let leaving = leaving.clone();
        call(move |want, _| {
            leaving.offline().expect("no children");
            cache.evict(want)
        })
    };
    let _registration = cached.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    assert!(matches!(leaving.charge(10), Err(error) if error.is_offline()));
    assert_eq!(leaving.usage(), 0);
}

/// No charge inside starts another reclaim, at whatever level, and none is lost: what fits is
/// charged.
#[test]
fn charges_inside_do_not_start_reclaim() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let limited = |name| {
            root.create(name, Limits::new().max(Limit::Bytes(10 * MIB)))
                .expect("a name")
        };
        let group = limited("q");
        let other = limited("other");
        let other_log = Log::default();
        let (_full, _registration) = Cache::of(&other, 10 * MIB, &other_log);
        let cache = Cache::alone(&group, 10 * MIB, &Log::default());
        let seen = Arc::new(AtomicU64::new(0));
        let _registration = {
            let cache = Arc::clone(&cache);
            let seen = Arc::clone(&seen);
            let other = other.clone();
            let reclaimer = call(move |want, context| {
                for full in [&other, &context.group()] {
                    let mut held = full.force_charge(0);
                    let refused = [
                        full.charge(Bytes(MIB)).expect_err("it is full"),
                        held.grow(Bytes(MIB)).expect_err("too"),
                    ];
                    for refused in refused {
                        let Some(by) = refused.over_limit() else {
                            panic!("{refused}")
                        };
                        assert_eq!(
                            (by.group(), by.requester(), by.requested()),
                            (full, full, MIB)
                        );
                        assert!(refused.to_string().contains(&full.path()), "{refused}");
                    }
                }
                // Memory that it has freed itself is room like any other.
                let freed = cache.evict(want + MIB) - MIB;
                drop(context.group().charge(Bytes(MIB)).expect("just given back"));
                seen.fetch_add(1, Ordering::SeqCst);
                freed
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let held = charge(&group, MIB);
        assert!(seen.load(Ordering::SeqCst) > 0);
        assert_eq!(
            group.events().get(Event::Panic),
            0,
            "an assertion inside failed"
        );
        assert!(other_log.is_empty(), "a charge inside has reclaimed");
        // Outside it is as ever.
        drop(charge(&other, MIB));
        assert!(!other_log.is_empty());
        assert_sound(&runtime);
        drop(held);
    }
}
