//! Many charges at a limit, caches that give back, and victims: no charge is refused while a cache
//! or a victim has memory to give, and a protected group keeps what it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Threads, assert_adds_up, check, runtime};
use crate::sync::lock::{Lock, Rank};
use crate::sync::park;
use crate::{
    Bytes, Charge, Event, Group, Limits, OomPolicy, Reclaim, ReclaimContext, ReclaimPriority,
    Runtime,
};

/// A cache that gives one byte back for each call, as long as it has any.
pub(super) struct ChargeCache(pub(super) Lock<Vec<Charge>>);

impl ChargeCache {
    pub(super) fn of(held: Vec<Charge>) -> Arc<ChargeCache> {
        Arc::new(ChargeCache(Lock::new(Rank::Stocks, held)))
    }

    /// A cache of the group that holds so many bytes.
    fn full(group: &Group, bytes: u64) -> Arc<ChargeCache> {
        ChargeCache::of((0..bytes).map(|_| group.charge(1).unwrap()).collect())
    }
}

impl Reclaim for ChargeCache {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let given = self.0.lock().pop();
        given.map_or(0, |charge| charge.bytes())
    }
}

fn full_caches(batch: u64) {
    let runtime = runtime(12, batch);
    let root = runtime.root();
    let kept = root.create("kept", Limits::new().min(2)).unwrap();
    let kept_cache = ChargeCache::full(&kept, 2);
    let kept_registration = kept.register_reclaimer(kept_cache.clone(), ReclaimPriority::NORMAL);
    let mut threads = Threads::new();
    let mut caches = Vec::new();
    for name in ["a", "b", "c"] {
        let group = root.create(name, Limits::new()).unwrap();
        let cache = ChargeCache::full(&group, 3);
        let registration = group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        caches.push((group.clone(), cache.clone(), registration));
        threads.add((), move |()| {
            for _ in 0..3 {
                let charge = group.charge(1).expect("a cache gives");
                cache.0.lock().push(charge);
            }
        });
    }
    let extra = root.create("extra", Limits::new()).unwrap();
    threads.add(
        extra.register_reclaimer(ChargeCache::full(&extra, 1), ReclaimPriority::NORMAL),
        drop,
    );
    threads.add((), move |()| assert!(extra.reclaim(1).is_ok()));
    threads.join();
    assert_eq!(
        kept.usage(),
        2 + kept.memory().stocked(),
        "a protected group keeps what it has"
    );
    let mut held: Vec<(&Group, u64)> = caches
        .iter()
        .map(|(group, cache, _)| (group, cache.0.lock().len() as u64))
        .collect();
    held.push((&kept, 2));
    assert_adds_up(&runtime, &held);
    for (_, cache, registration) in caches {
        drop(registration);
        let held = std::mem::take(&mut *cache.0.lock());
        drop(held);
    }
    drop(kept_registration);
    drop(kept_cache);
    assert_adds_up(&runtime, &[]);
}

#[test]
fn shuttle_caches_give_to_each_charge() {
    check(300, || full_caches(0));
}

#[test]
fn shuttle_caches_give_to_each_charge_with_stock() {
    check(300, || full_caches(1));
}

/// Hogs with a thread each, which gives back what it holds when the hook is called; three charges
/// that fit only without them.
fn victims(names: &[&str], each: u64) {
    let runtime = Runtime::builder().batch(Bytes(0)).max(6).build().unwrap();
    let root = runtime.root();
    root.set_oom_policy(OomPolicy::Choose);
    let mut hooks = Vec::new();
    let mut victims = Vec::new();
    for name in names {
        let hog = root.create(name, Limits::new()).unwrap();
        let held = hog.charge(Bytes(each)).unwrap();
        let cancelled = Arc::new(AtomicBool::new(false));
        let ends = cancelled.clone();
        let thread = shuttle::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                park(None);
            }
            drop(held);
        });
        let unpark = thread.thread().clone();
        hooks.push(hog.on_cancel({
            let cancelled = cancelled.clone();
            let unpark = unpark.clone();
            move |_| {
                cancelled.store(true, Ordering::SeqCst);
                unpark.unpark();
            }
        }));
        victims.push((thread, cancelled, unpark));
    }
    let mut threads = Threads::new();
    for thread in 0..3 {
        threads.add(
            root.create(&format!("q{thread}"), Limits::new()).unwrap(),
            move |asks| drop(asks.charge(2).expect("a victim makes room")),
        );
    }
    threads.join();
    assert!((1..=names.len() as u64).contains(&root.events().get(Event::OomKill)));
    for (thread, cancelled, unpark) in victims {
        cancelled.store(true, Ordering::SeqCst);
        unpark.unpark();
        thread.join().unwrap();
    }
    drop(hooks);
    assert_eq!(root.waiting_count(), 0);
    assert_adds_up(&runtime, &[]);
}

#[test]
fn shuttle_victims_make_room() {
    check(400, || victims(&["first", "second"], 3));
}

#[test]
fn shuttle_a_victim_for_each_charge() {
    check(300, || victims(&["first", "second", "third"], 2));
}
