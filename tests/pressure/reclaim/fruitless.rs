//! A reclaimer that frees nothing is remembered, skipped for a while, and asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, Group, Limit, ReclaimPriority, Registration};

use super::{
    Cache, KIB, Log, MIB, assert_sound, bare, build, call, charge, create, create_with, runtimes,
    soft,
};

/// Frees nothing, or, once it is told to, what it is asked for.
struct Dud {
    cache: Arc<Cache>,
    calls: Arc<AtomicU64>,
    useful: Arc<AtomicBool>,
    _registration: Registration,
}

impl Dud {
    fn of(group: &Group, bytes: u64) -> Self {
        let cache = Cache::alone(group, bytes, &Log::default());
        let calls = Arc::new(AtomicU64::new(0));
        let useful = Arc::new(AtomicBool::new(false));
        let reclaimer = {
            let cache = Arc::clone(&cache);
            let calls = Arc::clone(&calls);
            let useful = Arc::clone(&useful);
            call(move |want, _| {
                calls.fetch_add(1, Ordering::SeqCst);
                if useful.load(Ordering::SeqCst) {
                    cache.evict(want)
                } else {
                    0
                }
            })
        };
        let registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
        Dud {
            cache,
            calls,
            useful,
            _registration: registration,
        }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// So much is reclaimed at a time that every group has a turn, and is put back.
fn turn(root: &Group, cache: &Cache) {
    let report = root
        .reclaim(Bytes(2 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(report.freed, 2 * MIB);
    let missing = 64 * MIB - cache.bytes();
    cache.add(missing).expect("no max");
}

/// Longer than what a reclaimer said is true.
fn later() {
    std::thread::sleep(Duration::from_millis(10));
}

/// As long as others give, it is left to the end, for longer each time (`state/history.rs`).
#[test]
fn others_are_asked_before_it() {
    let runtime = build(bare());
    let root = runtime.root();
    let dud = Dud::of(&create(&root, "dud"), 64 * MIB);
    let (cache, _registration) = Cache::of(&create(&root, "cache"), 64 * MIB, &Log::default());
    for _ in 0..1_000 {
        turn(&root, &cache);
    }
    assert!((1..=200).contains(&dud.calls()), "{} calls", dud.calls());
    assert_sound(&runtime);
}

/// A skipped reclaimer is no reason to say no: before a charge is refused every group has been
/// asked.
#[test]
fn no_group_is_refused_for_a_memory() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = create_with(&root, "q", memcg::Limits::new().max(Limit::Bytes(16 * MIB)));
        let dud = Dud::of(&group, 16 * MIB);
        for _ in 0..3 {
            assert!(group.charge(Bytes(MIB)).is_err());
        }
        let fruitless = dud.calls();
        assert!(fruitless > 0);
        later();
        dud.useful.store(true, Ordering::SeqCst);
        let _held = charge(&group, MIB);
        assert!(dud.calls() > fruitless && dud.cache.bytes() <= 15 * MIB);
        assert_sound(&runtime);
    }
}

/// If nothing else is left, each charge asks it before it is refused, however often it freed
/// nothing, unless it has said so a few milliseconds ago.
#[test]
fn one_that_never_frees_anything() {
    for runtime in runtimes() {
        let group = create_with(
            &runtime.root(),
            "q",
            memcg::Limits::new().max(Limit::Bytes(16 * MIB)),
        );
        let dud = Dud::of(&group, 16 * MIB);
        for asked in 1..=20 {
            group.charge(Bytes(MIB)).expect_err("full");
            assert_eq!(dud.calls(), asked);
            later();
        }
        let before = dud.calls();
        for _ in 0..200 {
            group.charge(Bytes(MIB)).expect_err("full");
        }
        assert!(dud.calls() - before <= 200, "once by each of them");
        assert_sound(&runtime);
    }
}

/// Refusals, and reclaim in the background, while it has nothing to give, are no reason to refuse
/// the charges that come once it has something. Where its group has grown it is asked at once.
#[test]
fn no_group_is_given_up() {
    for (grown, marked) in [(false, false), (true, false), (false, true)] {
        let runtime = build(bare());
        let root = runtime.root();
        let limits = memcg::Limits::new().max(Limit::Bytes(16 * MIB));
        let limits = if marked {
            limits.reclaim_above(Bytes(8 * MIB))
        } else {
            limits
        };
        let group = create_with(&root, "q", limits);
        let dud = Dud::of(&group, 15 * MIB);
        for _ in 0..200 {
            assert!(group.charge(Bytes(2 * MIB)).is_err());
        }
        if marked {
            // Rounds of the background, each of which frees nothing.
            std::thread::sleep(Duration::from_millis(400));
        }
        let more = grown.then(|| {
            dud.useful.store(true, Ordering::SeqCst);
            charge(&group, KIB)
        });
        if !grown {
            later();
            dud.useful.store(true, Ordering::SeqCst);
        }
        drop(charge(&group, 2 * MIB));
        assert_sound(&runtime);
        drop(more);
    }
}

/// Nor is low broken while one that is not protected was only skipped.
#[test]
fn no_group_is_unprotected_for_a_memory() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let dud = Dud::of(&create(&root, "dud"), 16 * MIB);
    let kept = create_with(&root, "kept", memcg::Limits::new().low(Limit::Unlimited));
    for _ in 0..3 {
        root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    }
    assert!(dud.calls() > 0);
    let (cache, _registration) = Cache::of(&kept, 16 * MIB, &log);
    later();
    dud.useful.store(true, Ordering::SeqCst);
    assert_eq!(
        root.reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        MIB
    );
    assert_eq!((dud.cache.bytes(), cache.bytes()), (15 * MIB, 16 * MIB));
    assert_sound(&runtime);
}

/// One that has nothing costs no question at all, and is asked as soon as it has something.
#[test]
fn an_empty_group_is_left_alone() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let empty = create_with(&root, "empty", soft(0));
    let (cache, _registration) = Cache::of(&empty, 0, &log);
    let (_other, _other_registration) =
        Cache::of(&create(&root, "cache"), 64 * MIB, &Log::default());
    for _ in 0..100 {
        let report = root
            .reclaim(Bytes(16 * KIB))
            .expect("not inside a reclaimer");
        assert_eq!(report.soft_visited, 0);
    }
    assert!(log.is_empty());
    cache.add(MIB).expect("room");
    assert_eq!(
        root.reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        MIB
    );
    assert_eq!(
        (cache.bytes(), log.order()),
        (0, vec!["/empty".to_string()])
    );
    assert_sound(&runtime);
}
