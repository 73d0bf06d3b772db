//! Each cache fills its budget, gives back for another group, keeps its own limit, and is never above any.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use memcg::{ChargeError, Group, Limits, Runtime};
use memcg_examples_caches::{Entry, FoyerCache, MokaCache, OVERHEAD, QuickCache};

const KIB: usize = 1024;
const BUDGET: usize = 4096 * KIB;
const ENTRY: usize = 4 * KIB;

trait Get: Send + Sync {
    fn load(&self, key: u64, len: usize, load: &dyn Fn() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError>;

    fn get(&self, key: u64, len: usize) -> Result<Arc<Entry>, ChargeError> {
        self.load(key, len, &|| vec![key as u8; len])
    }
}

macro_rules! gets {
    ($($cache:ty)*) => {$(
        impl Get for $cache {
            fn load(&self, key: u64, len: usize, load: &dyn Fn() -> Vec<u8>) -> Result<Arc<Entry>, ChargeError> {
                <$cache>::get(self, key, len, load)
            }
        }
    )*};
}

gets!(QuickCache FoyerCache MokaCache);

type Make = Box<dyn Fn() -> Box<dyn Get>>;

/// Each cache, by its name, with the capacity in bytes.
fn caches(group: &Group, capacity: usize) -> Vec<(&'static str, Make)> {
    let [quick, foyer, moka] = [0; 3].map(|_| group.clone());
    vec![
        ("quick_cache", Box::new(move || Box::new(QuickCache::new(&quick, BUDGET / ENTRY, capacity as u64)))),
        ("foyer", Box::new(move || Box::new(FoyerCache::new(&foyer, capacity)))),
        ("moka", Box::new(move || Box::new(MokaCache::new(&moka, capacity as u64)))),
    ]
}

fn scene() -> (Runtime, Group, Group) {
    let runtime = Runtime::builder().max(BUDGET).audit(true).build().unwrap();
    let [cache, query] = ["cache", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    (runtime, cache, query)
}

#[track_caller]
fn assert_sound(runtime: &Runtime, name: &str) {
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{name}: {verdict}");
}

#[test]
fn a_cache_takes_what_is_free_and_gives_back_what_others_need() {
    let (runtime, group, query) = scene();
    for (name, make) in caches(&group, 4 * BUDGET) {
        let cache = make();
        let all = BUDGET / (ENTRY + OVERHEAD);
        for key in 0..2 * all as u64 {
            let entry = cache.get(key, ENTRY).unwrap_or_else(|refused| panic!("{name}: {refused}"));
            assert_eq!((entry.bytes().len(), entry.bytes()[0]), (ENTRY, key as u8));
            assert_eq!(cache.get(key, ENTRY).unwrap().bytes().as_ptr(), entry.bytes().as_ptr(), "{name}: a hit");
        }
        assert!(group.live() > BUDGET as u64 * 8 / 10, "{name}: {} of {BUDGET} bytes are used", group.live());
        // Half of the budget for a query: the cache evicts, and keeps most of the rest.
        let held = query.try_charge(BUDGET / 2).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        assert!(group.live() <= BUDGET as u64 / 2, "{name}");
        assert!(group.live() > BUDGET as u64 / 4, "{name}: {} bytes are left", group.live());
        drop(held);
        // And all of it.
        drop(query.try_charge(BUDGET - 64 * KIB).unwrap_or_else(|refused| panic!("{name}: {refused}")));
        assert!(cache.get(1, ENTRY).is_ok(), "{name}: it goes on");
        drop(cache);
        assert_eq!(group.live(), 0, "{name}: a cache that is dropped gives all back");
        assert_sound(&runtime, name);
    }
}

#[test]
fn a_reader_keeps_its_entry() {
    let (runtime, group, query) = scene();
    for (name, make) in caches(&group, 4 * BUDGET) {
        let cache = make();
        let read = cache.get(7, 1000 * KIB).unwrap();
        let refused = query.try_charge(BUDGET - 500 * KIB).unwrap_err();
        assert!(matches!(refused, ChargeError::Limit(_)), "{name}: {refused}");
        assert!(read.bytes().iter().all(|&byte| byte == 7) && group.live() == read.weight(), "{name}");
        drop(read);
        assert!(query.try_charge(BUDGET - 500 * KIB).is_ok(), "{name}");
        drop(cache);
        assert_sound(&runtime, name);
    }
}

/// The library's own limit evicts, too, and what it evicts is given back.
#[test]
fn its_own_capacity_holds() {
    let (runtime, group, _query) = scene();
    for (name, make) in caches(&group, BUDGET / 4) {
        let cache = make();
        for key in 0..2000 {
            cache.get(key, ENTRY).unwrap();
        }
        // Moka evicts after a while, in later calls.
        for _ in 0..1000 {
            if group.live() <= BUDGET as u64 * 3 / 8 {
                break;
            }
            cache.get(0, ENTRY).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert!(group.live() <= BUDGET as u64 * 3 / 8, "{name}: {} bytes", group.live());
        drop(cache);
        assert_eq!(group.live(), 0, "{name}");
        assert_sound(&runtime, name);
    }
}

#[test]
fn threads_that_load_and_charge_are_never_above_the_budget() {
    let (runtime, group, query) = scene();
    for (name, make) in caches(&group, 4 * BUDGET) {
        let (cache, ends) = (make(), AtomicBool::new(false));
        thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let usage = runtime.root().usage();
                    assert!(usage <= BUDGET as u64, "{name}: {usage}");
                }
            });
            let loads: Vec<_> = (0..2_u64)
                .map(|thread| {
                    let cache = &cache;
                    scope.spawn(move || {
                        for step in 0..3000 {
                            let key = (step * 7 + thread * 13) % 1500;
                            assert!(cache.get(key, ENTRY).is_ok(), "{name}");
                        }
                    })
                })
                .collect();
            for _ in 0..60 {
                drop(query.try_charge(BUDGET / 3).unwrap_or_else(|refused| panic!("{name}: {refused}")));
            }
            loads.into_iter().for_each(|load| load.join().unwrap());
            ends.store(true, Ordering::Relaxed);
            sampler.join().unwrap();
        });
        drop(cache);
        assert_eq!(runtime.root().live(), 0, "{name}");
        assert_sound(&runtime, name);
    }
}

/// A budget with room for eight entries, and 64 threads that want the same one.
#[test]
fn a_key_that_many_want_is_loaded_once() {
    const THREADS: usize = 64;
    const LEN: usize = 64 * KIB;
    for panics in [false, true] {
        let runtime = Runtime::builder().max(8 * LEN).audit(true).build().unwrap();
        let root = runtime.root();
        for (name, make) in caches(&root, 8 * LEN) {
            let (cache, loads, barrier) = (make(), AtomicUsize::new(0), Barrier::new(THREADS));
            let load = || {
                let is_first = loads.fetch_add(1, Ordering::Relaxed) == 0;
                // All others want it by then.
                thread::sleep(Duration::from_millis(30));
                assert!(!panics || !is_first, "the first load fails");
                vec![7; LEN]
            };
            let failed = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        barrier.wait();
                        match catch_unwind(AssertUnwindSafe(|| cache.load(1, LEN, &load))) {
                            Ok(Ok(entry)) => assert_eq!((entry.bytes().len(), entry.bytes()[0]), (LEN, 7)),
                            Ok(Err(refused)) => panic!("{name}: {refused}"),
                            Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                        }
                    });
                }
            });
            let failures = usize::from(panics);
            assert_eq!((loads.into_inner(), failed.into_inner()), (1 + failures, failures), "{name}");
            assert_eq!(root.live(), (LEN + OVERHEAD) as u64, "{name}");
            drop(cache);
            assert_sound(&runtime, name);
        }
    }
}

/// If there is no room, each of them is refused, and none is stuck.
#[test]
fn a_key_that_does_not_fit_is_refused_to_all() {
    let (runtime, group, _query) = scene();
    for (name, make) in caches(&group, BUDGET) {
        let (cache, refused) = (make(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    if cache.get(1, 2 * BUDGET).is_err() {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(refused.into_inner(), 16, "{name}");
        assert!(cache.get(1, ENTRY).is_ok(), "{name}");
        drop(cache);
        assert_sound(&runtime, name);
    }
}

/// Up to nine tenths of the capacity an entry is kept, however many entries the cache is made for.
#[test]
fn an_entry_larger_than_a_share_of_the_capacity_is_kept() {
    let (runtime, group, _query) = scene();
    for (name, make) in caches(&group, BUDGET) {
        for tenths in 1..=9 {
            let (cache, loads) = (make(), AtomicUsize::new(0));
            for _ in 0..3 {
                let load = || {
                    loads.fetch_add(1, Ordering::Relaxed);
                    vec![1; BUDGET / 10 * tenths]
                };
                cache.load(1, BUDGET / 10 * tenths, &load).unwrap_or_else(|refused| panic!("{name}: {refused}"));
            }
            assert_eq!(loads.into_inner(), 1, "{name}: {tenths} tenths");
        }
        assert_sound(&runtime, name);
    }
}

/// A charge that lacks little takes little: neither the oldest entry, which is heavy, nor many light ones. One that lacks
/// more than the light ones have takes the heavy one.
#[test]
fn a_small_want_evicts_little() {
    const HEAVY: usize = 10 << 20;
    let runtime = Runtime::builder().max(HEAVY + BUDGET).audit(true).build().unwrap();
    let [group, query] = ["cache", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    for (name, make) in caches(&group, 4 * (HEAVY + BUDGET)) {
        for want in [4 * KIB, 100 * KIB] {
            let (cache, loads) = (make(), AtomicUsize::new(0));
            let heavy = || {
                loads.fetch_add(1, Ordering::Relaxed);
                vec![0; HEAVY]
            };
            cache.load(0, HEAVY, &heavy).unwrap();
            let mut key = 1;
            while runtime.root().live() + ((ENTRY + OVERHEAD) as u64) <= (HEAVY + BUDGET) as u64 {
                cache.get(key, ENTRY).unwrap();
                key += 1;
            }
            let (before, mut held) = (group.live(), Vec::new());
            for _ in 0..10 {
                held.push(query.try_charge(want).unwrap_or_else(|refused| panic!("{name}: {refused}")));
            }
            let (gone, lacked) = (before - group.live(), query.live());
            assert!(gone <= lacked + 10 * (ENTRY + OVERHEAD) as u64, "{name}: {gone} bytes for {lacked}");
            cache.load(0, HEAVY, &heavy).unwrap();
            assert_eq!(loads.load(Ordering::Relaxed), 1, "{name}: the heavy one has stayed");
            drop(held);
            drop(query.try_charge(HEAVY).unwrap_or_else(|refused| panic!("{name}: {refused}")));
            assert!(group.live() <= BUDGET as u64, "{name}: {}", group.live());
        }
        assert_sound(&runtime, name);
    }
}
