//! Above high, memory is asked for first: of which groups, for what, and that none is taken from
//! protected groups.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{Charge, Event, Limit, Limits, ReclaimCause, ReclaimPriority};

use crate::support::reclaimers::{KIB, call, lock};

use super::{
    Cache, Log, MIB, assert_sound, build, call_of, charge, create, left_empty, undelayed, with_high,
};

#[test]
fn those_below_the_level_that_is_above() {
    for builder in undelayed() {
        let runtime = build(builder);
        let root = runtime.root();
        let log = Log::default();
        let top = with_high(&root, "top", 16 * MIB);
        let one = create(&top, "one");
        let other = create(&top, "other");
        let (inside, _inside) = Cache::of(&one, 16 * MIB, &log);
        let (outside, _outside) = Cache::of(&root, 16 * MIB, &log);
        assert!(log.is_empty(), "not above yet");
        let held = charge(&other, 4 * MIB);
        assert!(
            top.live() <= 16 * MIB && inside.bytes() >= 11 * MIB,
            "{} and {}",
            top.live(),
            inside.bytes()
        );
        let asked = log.take();
        assert!(!asked.is_empty());
        for asked in asked {
            assert_eq!(
                (asked.cause, asked.target.as_str()),
                (ReclaimCause::High, "/top"),
                "{asked:?}"
            );
        }
        assert_eq!(outside.bytes(), 16 * MIB);
        assert_sound(&runtime);
        drop(held);
    }
}

/// Each level that is above, for what it is above itself.
#[test]
fn at_each_level_that_is_above() {
    for builder in undelayed() {
        let runtime = build(builder);
        let root = runtime.root();
        let log = Log::default();
        let top = with_high(&root, "top", 32 * MIB);
        let inner = with_high(&top, "inner", 16 * MIB);
        let beside = create(&top, "beside");
        let caches = [&inner, &beside].map(|group| Cache::of(group, 16 * MIB, &log));
        let held = charge(&inner, 8 * MIB);
        assert!(
            inner.live() <= 16 * MIB && top.live() <= 32 * MIB,
            "{} and {}",
            inner.live(),
            top.live()
        );
        assert!(caches[0].0.bytes() <= 8 * MIB, "its own level asks of it");
        let targets: Vec<String> = log.take().into_iter().map(|asked| asked.target).collect();
        assert!(
            targets.iter().any(|target| target == "/top/inner"),
            "{targets:?}"
        );
        assert_sound(&runtime);
        drop((caches, held));
    }
}

/// In the order of any reclaim, and min is never touched.
#[test]
fn protection_holds() {
    for builder in undelayed() {
        let runtime = build(builder);
        let log = Log::default();
        let top = with_high(&runtime.root(), "top", 16 * MIB);
        let kept = top
            .create("kept", Limits::new().min(Limit::Bytes(8 * MIB)))
            .expect("a free name");
        let spent = create(&top, "spent");
        let caches = [&kept, &spent].map(|group| Cache::of(group, 8 * MIB, &log));
        let held = charge(&top, 12 * MIB);
        assert_eq!((kept.live(), spent.live()), (8 * MIB, 0));
        assert!(top.live() == 20 * MIB && log.of("/top/kept").is_empty());
        assert_sound(&runtime);
        drop((caches, held));
    }
}

/// A reclaimer that has nothing to give is not asked for ever.
#[test]
fn what_is_fruitless_ends() {
    for builder in undelayed() {
        let runtime = left_empty(build(builder));
        let group = with_high(&runtime.root(), "q", MIB);
        let asked = Arc::new(AtomicU64::new(0));
        let _registration = {
            let asked = Arc::clone(&asked);
            let reclaimer = call_of(MIB, move |_, _| {
                asked.fetch_add(1, Ordering::SeqCst);
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let _held = charge(&group, 8 * MIB);
        let times = asked.load(Ordering::SeqCst);
        assert!((1..=64).contains(&times), "{times}");
        for _ in 0..100 {
            drop(charge(&group, MIB));
        }
        let more = asked.load(Ordering::SeqCst) - times;
        assert!(more < 1_600, "{more}: not each time as often");
    }
}

/// Memory that high has asked for, max need not: no charge meets the max.
#[test]
fn so_that_max_is_not_met() {
    for builder in undelayed() {
        let runtime = left_empty(build(builder));
        let limits = Limits::new()
            .high(Limit::Bytes(16 * MIB))
            .max(Limit::Bytes(24 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let (cache, _registration) = Cache::of(&group, 0, &Log::default());
        for _ in 0..100 {
            cache.add(MIB).expect("room");
        }
        assert!(group.events().get(Event::High) > 0);
        assert_eq!(
            [Event::Max, Event::Oom].map(|event| group.events().get(event)),
            [0, 0]
        );
        assert!(group.usage() <= 17 * MIB, "{}", group.usage());
    }
}

/// A high that comes below usage asks round after round, while the reclaimer frees something.
#[test]
fn a_high_that_is_lowered_asks_for_all_rounds() {
    for builder in undelayed() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let entries = Mutex::new(
            (0..64)
                .map(|_| charge(&group, 64 * KIB))
                .collect::<Vec<_>>(),
        );
        let given = call(move |_, _| drop_one(&entries));
        let registration = group.register_reclaimer(given, ReclaimPriority::NORMAL);
        group
            .set_limits(Limits::new().high(Limit::Bytes(MIB)))
            .expect("no max");
        assert!(group.live() <= 2 * MIB, "{}", group.live());
        assert_sound(&runtime);
        drop(registration);
    }
}

/// Gives one entry up, whatever is wanted.
fn drop_one(entries: &Mutex<Vec<Charge>>) -> u64 {
    let entry = lock(entries).pop();
    entry.map_or(0, |entry| entry.bytes())
}
