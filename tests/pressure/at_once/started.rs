//! A charge that never blocks, and what a thread of the runtime does for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use memcg::expert::FixedBatch;
use memcg::{Bytes, Event, Limit, OnFull, OomPolicy, Priority, ReclaimCause};

use super::{
    Cache, KIB, Log, MIB, assert_empty, assert_sound, bare, build, call, charge, charged_in_the_end, create,
    credit_elsewhere, kinds, limited, local, lock, refused, stocked, until, would_block,
};

/// A thread, and its name.
type On = (ThreadId, Option<String>);

/// The reclaimers are asked as by a charge that blocks, and not on the charger's thread.
#[test]
fn reclaimers_are_asked_elsewhere() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let log = Log::default();
        let cache = Cache::alone(&group, 80 * KIB, &log);
        let on = Arc::new(Mutex::new(Vec::<On>::new()));
        let (seen, evicts) = (Arc::clone(&on), Arc::clone(&cache));
        let reclaimer = call(move |want, context| {
            let current = thread::current();
            lock(&seen).push((current.id(), current.name().map(str::to_string)));
            assert_eq!((context.cause(), context.target().path().as_str()), (ReclaimCause::Full, "/q"));
            evicts.evict(want)
        });
        let registration = group.register_reclaimer(reclaimer, Priority::LOW);
        would_block(group.try_charge_with(Bytes(30 * KIB), OnFull::Start));
        let held = charged_in_the_end(&group, 30 * KIB);
        let on = std::mem::take(&mut *lock(&on));
        let is_elsewhere = |(id, name): &On| *id != thread::current().id() && name.as_deref() == Some("memcg-reclaim");
        assert!(!on.is_empty() && on.iter().all(is_elsewhere), "{on:?}");
        assert_eq!(local(&group, Event::Panic), 0, "an assertion inside failed");
        assert!(local(&group, Event::Max) > 0, "the thread counts it");
        drop((held, registration, cache, group));
        assert_empty(&runtime);
    }
}

/// Listeners are foreign code, too.
#[test]
fn listeners_are_called_elsewhere() {
    let runtime = build(bare());
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let log = Log::default();
    let (cache, registration) = Cache::of(&group, 80 * KIB, &log);
    let here = Arc::new(AtomicU64::new(0));
    let elsewhere = Arc::new(AtomicU64::new(0));
    let (counts, own) = ([Arc::clone(&here), Arc::clone(&elsewhere)], thread::current().id());
    let listener = group.on_event(Event::Max, move |_| {
        counts[usize::from(thread::current().id() != own)].fetch_add(1, Ordering::SeqCst);
    });
    drop(charged_in_the_end(&group, 30 * KIB));
    until("it is called", || elsewhere.load(Ordering::SeqCst) > 0);
    assert_eq!(here.load(Ordering::SeqCst), 0);
    drop((listener, registration, cache, group));
    assert_empty(&runtime);
}

/// Where nothing could be done nothing is started.
#[test]
fn nothing_to_start() {
    for builder in [bare(), stocked()] {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let mut held = group.try_charge_with(Bytes(4 * KIB), OnFull::Start).expect("it fits");
        held.merge(group.try_charge_with(Bytes(6 * KIB), OnFull::Start).expect("it fits")).expect("of the same group");
        refused(group.try_charge_with(1, OnFull::Start));
        assert_eq!((held.bytes(), local(&group, Event::Max)), (10 * KIB, 0));
        drop((held, group));
        assert_empty(&runtime);
    }
}

/// Credit of other threads is drained.
#[test]
fn credit_is_drained() {
    let runtime = build(stocked().adaptive(false));
    let group = limited(&runtime.root(), "q", 8 * KIB);
    let other = credit_elsewhere(&group);
    would_block(group.try_charge_with(Bytes(8 * KIB), OnFull::Start));
    drop(charged_in_the_end(&group, 8 * KIB));
    drop((other, group));
    assert_empty(&runtime);
}

/// One group is cancelled, elsewhere.
#[test]
fn a_victim_is_cancelled_elsewhere() {
    for builder in kinds() {
        let runtime = build(builder);
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        domain.set_oom_policy(OomPolicy::Choose);
        let [victim, group] = ["victim", "q"].map(|name| create(&domain, name));
        let gives = Mutex::new(Some(charge(&victim, 100 * KIB)));
        let on = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&on);
        let hook = victim.on_cancel(move |_| {
            lock(&seen).push(thread::current().id());
            drop(lock(&gives).take());
        });
        would_block(group.try_charge_with(Bytes(10 * KIB), OnFull::Start));
        let held = charged_in_the_end(&group, 10 * KIB);
        let on = std::mem::take(&mut *lock(&on));
        assert!(on.len() == 1 && on[0] != thread::current().id());
        assert_eq!((local(&domain, Event::Oom), local(&victim, Event::OomKill)), (1, 1));
        drop((held, hook, victim, group, domain));
        assert_empty(&runtime);
    }
}

/// Above a high the charge is made at once, and the excess is reclaimed elsewhere.
#[test]
fn what_is_above_high_is_reclaimed() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(super::WATCHDOG));
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (cache, registration) = Cache::of(&group, MIB, &log);
        group.set_high(Limit::Bytes(4 * MIB)).expect("a number");
        let held = group.try_charge_with(Bytes(7 * MIB / 2), OnFull::Start).expect("high refuses no charge");
        until("it is reclaimed", || group.usage() <= 4 * MIB);
        assert!(log.take().iter().all(|asked| asked.cause == ReclaimCause::High));
        assert!(local(&group, Event::High) > 0);
        drop((held, registration, cache, group));
        assert_empty(&runtime);
    }
}

/// Threads that ask in each of the three ways beside each other: it adds up, and each gets room in the end.
#[test]
fn all_ways_at_once() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 256 * KIB);
        let log = Log::default();
        let (cache, registration) = Cache::of(&group, 200 * KIB, &log);
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let (group, cache) = (group.clone(), Arc::clone(&cache));
                scope.spawn(move || {
                    for round in 0..60 {
                        let bytes = (number * 7 + round * 3) % 40 * KIB + 1;
                        let _held = match round % 3 {
                            0 => group.try_charge_with(Bytes(bytes), OnFull::Now).ok(),
                            1 => Some(charged_in_the_end(&group, bytes)),
                            _ => group.try_charge(Bytes(bytes)).ok(),
                        };
                        if round % 8 == 7 {
                            let _ = cache.add(8 * KIB);
                        }
                    }
                });
            }
        });
        until("the thread is done", || runtime.verify().is_ok());
        assert_sound(&runtime);
        drop((registration, cache, group));
        assert_empty(&runtime);
    }
}
