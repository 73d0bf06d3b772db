//! Each cache fills its budget, gives back for another group, keeps its own limit, and is never above any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{ChargeError, Group, Limits, Runtime};
use memcg_examples_caches::{Entry, FoyerCache, MokaCache, OVERHEAD, QuickCache};

const KIB: usize = 1024;
const BUDGET: usize = 4096 * KIB;
const ENTRY: usize = 4 * KIB;

trait Get: Send + Sync {
    fn get(&self, key: u64, len: usize) -> Result<Arc<Entry>, ChargeError>;
}

macro_rules! gets {
    ($($cache:ty)*) => {$(
        impl Get for $cache {
            fn get(&self, key: u64, len: usize) -> Result<Arc<Entry>, ChargeError> {
                <$cache>::get(self, key, len, || vec![key as u8; len])
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
            std::thread::sleep(std::time::Duration::from_millis(1));
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
        std::thread::scope(|scope| {
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
