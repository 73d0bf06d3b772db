//! The thread that works for charges which never block: what holds it up, and how it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use memcg::{Bytes, Event, OnFull, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, QUICK, bare, blocking, build, call, charge, charged_in_the_end,
    left_empty, limited, local, lock, until, would_block,
};

/// A reclaimer that blocks holds up no charge, and is called once however many charges are refused
/// meanwhile. Work that was left meanwhile is done afterwards.
#[test]
fn a_reclaimer_that_blocks_holds_up_no_charge() {
    let runtime = left_empty(build(bare()));
    let [group, other] = ["q", "other"].map(|name| limited(&runtime.root(), name, 10 * KIB));
    let mut held = charge(&group, 10 * KIB);
    let (go_on, calls, reclaimer) = blocking();
    let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    let log = Log::default();
    let (cache, _of_cache) = Cache::of(&other, 10 * KIB, &log);
    let started = Instant::now();
    would_block(group.charge_with(1, OnFull::Start));
    until("it is called", || calls.load(Ordering::SeqCst) == 1);
    for _ in 0..1_000 {
        would_block(group.charge_with(1, OnFull::Start));
        would_block(other.charge_with(1, OnFull::Start));
    }
    assert!(started.elapsed() < QUICK && log.is_empty());
    assert_eq!(calls.load(Ordering::SeqCst), 1, "one at a time");
    held.shrink(Bytes(KIB));
    drop(
        group
            .charge_with(Bytes(KIB), OnFull::Start)
            .expect("given back"),
    );
    drop(go_on);
    drop(charged_in_the_end(&other, 1));
    assert!(cache.bytes() < 10 * KIB, "asked afterwards");
}

/// A listener that blocks holds up no reclaim, neither that of its own group nor that of others.
/// Later it learns all.
#[test]
fn a_listener_that_blocks_holds_up_no_reclaim() {
    let runtime = left_empty(build(bare()));
    let [group, other] = ["q", "other"].map(|name| limited(&runtime.root(), name, 10 * KIB));
    let log = Log::default();
    let (cache, _registration) = Cache::of(&group, 10 * KIB, &log);
    let (of_other, _other_registration) = Cache::of(&other, 10 * KIB, &log);
    let (go_on, blocks) = mpsc::channel::<()>();
    let blocks = Mutex::new(blocks);
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let times = Arc::new(AtomicU64::new(0));
    let all = Arc::clone(&times);
    let _listener = group.on_event(Event::Max, move |happened| {
        count.fetch_add(1, Ordering::SeqCst);
        all.fetch_add(happened.times(), Ordering::SeqCst);
        let _ = lock(&blocks).recv();
    });
    would_block(group.charge_with(1, OnFull::Start));
    until("it is called", || calls.load(Ordering::SeqCst) == 1);
    for (group, cache) in [(&group, &cache), (&other, &of_other), (&group, &cache)] {
        drop(charged_in_the_end(group, KIB));
        cache.add(group.headroom()).expect("it fits");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1, "it is in its first call");
    drop(go_on);
    until("it knows all", || {
        times.load(Ordering::SeqCst) == local(&group, Event::Max)
    });
}

/// A reclaimer that blocks holds up no listener.
#[test]
fn a_reclaimer_that_blocks_holds_up_no_listener() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let _held = charge(&group, 10 * KIB);
    let (go_on, blocked, reclaimer) = blocking();
    let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let _listener = group.on_event(Event::Max, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    would_block(group.charge_with(1, OnFull::Start));
    until("both are called", || {
        blocked.load(Ordering::SeqCst) == 1 && calls.load(Ordering::SeqCst) == 1
    });
    assert_eq!(blocked.load(Ordering::SeqCst), 1, "it is in its first call");
    drop(go_on);
}

/// A panic ends in the thread, which goes on.
#[test]
fn a_reclaimer_that_panics() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let _panics = group.register_reclaimer(call(|_, _| panic!("on purpose")), ReclaimPriority::LOW);
    let log = Log::default();
    let (_cache, _registration) = Cache::of(&group, 100 * KIB, &log);
    drop(charged_in_the_end(&group, 10 * KIB));
    assert!(local(&group, Event::Panic) > 0);
}

/// The drop of the runtime does not wait for a reclaimer that blocks there, and nothing is started
/// any more.
#[test]
fn the_runtime_goes_meanwhile() {
    let runtime = build(bare());
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held = charge(&group, 10 * KIB);
    let (go_on, calls, reclaimer) = blocking();
    let registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    would_block(group.charge_with(1, OnFull::Start));
    until("it is called", || calls.load(Ordering::SeqCst) == 1);
    would_block(group.charge_with(1, OnFull::Start));
    let started = Instant::now();
    drop(runtime);
    assert!(started.elapsed() < QUICK);
    assert!(matches!(group.charge_with(1, OnFull::Start), Err(error) if error.is_offline()));
    drop(go_on);
    drop(registration);
    assert_eq!(
        calls.load(Ordering::SeqCst),
        1,
        "what was left to it is not begun"
    );
    assert_eq!(group.live(), 10 * KIB);
    drop((held, group));
}

/// A burst, then none for so long that the thread has ended, then another: it starts again.
#[test]
fn it_starts_again() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", MIB);
    let log = Log::default();
    let (cache, _registration) = Cache::of(&group, MIB, &log);
    for wait in [0, 0, 1_200] {
        std::thread::sleep(std::time::Duration::from_millis(wait));
        log.take();
        let held = charged_in_the_end(&group, 10 * KIB);
        drop(held);
        cache.add(group.headroom()).expect("it fits");
    }
}
