//! A charge that never blocks, and what a thread of the runtime does for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use memcg::{Bytes, Event, Limit, Limits, OnFull, OomPolicy, ReclaimCause, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, bare, build, call, charge, charged_in_the_end, create, credit_elsewhere,
    kinds, left_empty, limited, local, lock, refused, runtimes, stocked, until, would_block,
};

/// A thread, and its name.
type On = (ThreadId, Option<String>);

/// The reclaimers are asked as by a charge that blocks, and not on the charger's thread.
#[test]
fn reclaimers_are_asked_elsewhere() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let log = Log::default();
        let cache = Cache::alone(&group, 80 * KIB, &log);
        let on = Arc::new(Mutex::new(Vec::<On>::new()));
        let seen = Arc::clone(&on);
        let evicts = Arc::clone(&cache);
        let reclaimer = call(move |want, context| {
            let current = thread::current();
            lock(&seen).push((current.id(), current.name().map(str::to_string)));
            assert_eq!(
                (context.cause(), context.target().path().as_str()),
                (ReclaimCause::Full, "/q")
            );
            evicts.evict(want)
        });
        let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::LOW);
        would_block(group.charge_with(Bytes(30 * KIB), OnFull::Start));
        let _held = charged_in_the_end(&group, 30 * KIB);
        let on = std::mem::take(&mut *lock(&on));
        let is_elsewhere = |(id, name): &On| {
            *id != thread::current().id() && name.as_deref() == Some("memcg-reclaim")
        };
        assert!(!on.is_empty() && on.iter().all(is_elsewhere), "{on:?}");
        assert_eq!(local(&group, Event::Panic), 0, "an assertion inside failed");
        assert!(local(&group, Event::Max) > 0, "the thread counts it");
    }
}

/// Listeners are foreign code, too.
#[test]
fn listeners_are_called_elsewhere() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let log = Log::default();
    let (_cache, _registration) = Cache::of(&group, 80 * KIB, &log);
    let here = Arc::new(AtomicU64::new(0));
    let elsewhere = Arc::new(AtomicU64::new(0));
    let counts = [Arc::clone(&here), Arc::clone(&elsewhere)];
    let own = thread::current().id();
    let _listener = group.on_event(Event::Max, move |_| {
        counts[usize::from(thread::current().id() != own)].fetch_add(1, Ordering::SeqCst);
    });
    drop(charged_in_the_end(&group, 30 * KIB));
    until("it is called", || elsewhere.load(Ordering::SeqCst) > 0);
    assert_eq!(here.load(Ordering::SeqCst), 0);
}

/// If nothing could be done, nothing is started.
#[test]
fn nothing_to_start() {
    for builder in [bare(), stocked()] {
        let runtime = left_empty(build(builder));
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let mut held = group
            .charge_with(Bytes(4 * KIB), OnFull::Start)
            .expect("it fits");
        held.merge(
            group
                .charge_with(Bytes(6 * KIB), OnFull::Start)
                .expect("it fits"),
        )
        .expect("of the same group");
        refused(group.charge_with(1, OnFull::Start));
        assert_eq!((held.bytes(), local(&group, Event::Max)), (10 * KIB, 0));
    }
}

/// Credit of other threads is drained.
#[test]
fn credit_is_drained() {
    let runtime = left_empty(build(stocked().adaptive(false)));
    let group = limited(&runtime.root(), "q", 8 * KIB);
    let _other = credit_elsewhere(&group);
    would_block(group.charge_with(Bytes(8 * KIB), OnFull::Start));
    drop(charged_in_the_end(&group, 8 * KIB));
}

/// One group is cancelled, elsewhere.
#[test]
fn a_victim_is_cancelled_elsewhere() {
    for runtime in runtimes() {
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        domain.set_oom_policy(OomPolicy::Choose);
        let [victim, group] = ["victim", "q"].map(|name| create(&domain, name));
        let gives = Mutex::new(Some(charge(&victim, 100 * KIB)));
        let on = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&on);
        let _hook = victim.on_cancel(move |_| {
            lock(&seen).push(thread::current().id());
            drop(lock(&gives).take());
        });
        would_block(group.charge_with(Bytes(10 * KIB), OnFull::Start));
        let _held = charged_in_the_end(&group, 10 * KIB);
        let on = std::mem::take(&mut *lock(&on));
        assert!(on.len() == 1 && on[0] != thread::current().id());
        assert_eq!(
            (local(&domain, Event::Oom), local(&victim, Event::OomKill)),
            (1, 1)
        );
    }
}

/// Above a high the charge is made at once, and the excess is reclaimed elsewhere.
#[test]
fn what_is_above_high_is_reclaimed() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(super::WATCHDOG)));
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (_cache, _registration) = Cache::of(&group, MIB, &log);
        group
            .set_limits(Limits::new().high(Limit::Bytes(4 * MIB)))
            .expect("a number");
        let _held = group
            .charge_with(Bytes(7 * MIB / 2), OnFull::Start)
            .expect("high refuses no charge");
        until("it is reclaimed", || group.usage() <= 4 * MIB);
        assert!(
            log.take()
                .iter()
                .all(|asked| asked.cause == ReclaimCause::High)
        );
        assert!(local(&group, Event::High) > 0);
    }
}
