//! The cache fills its budget, gives back for another group, keeps its own limit, and is never
//! above any.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use memcg::{ChargeError, Group, Limits, Runtime};
use memcg_examples_caches::{Entry, OVERHEAD, QuickCache};

const KIB: usize = 1024;
const BUDGET: usize = 4096 * KIB;
const ENTRY: usize = 4 * KIB;

fn scene(budget: usize) -> (Runtime, Group, Group) {
    let runtime = Runtime::builder().max(budget).audit(true).build().unwrap();
    let [cache, query] =
        ["cache", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    (runtime, cache, query)
}

fn cache(group: &Group, capacity: usize) -> QuickCache {
    QuickCache::new(group, BUDGET / ENTRY, capacity as u64)
}

fn get(cache: &QuickCache, key: u64, len: usize) -> Result<Arc<Entry>, ChargeError> {
    cache.get(key, len, || vec![key as u8; len])
}

/// A cache that is dropped gives all back.
#[track_caller]
fn ends(cache: QuickCache, runtime: &Runtime) {
    drop(cache);
    assert_eq!(runtime.root().live(), 0);
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

#[test]
fn a_cache_takes_what_is_free_and_gives_back_what_others_need() {
    let (runtime, group, query) = scene(BUDGET);
    let cache = cache(&group, 4 * BUDGET);
    let all = BUDGET / (ENTRY + OVERHEAD);
    for key in 0..2 * all as u64 {
        let entry = get(&cache, key, ENTRY).unwrap();
        assert_eq!((entry.bytes().len(), entry.bytes()[0]), (ENTRY, key as u8));
        assert_eq!(
            get(&cache, key, ENTRY).unwrap().bytes().as_ptr(),
            entry.bytes().as_ptr(),
            "a hit"
        );
    }
    assert!(
        group.live() > BUDGET as u64 * 8 / 10,
        "{} of {BUDGET} bytes are used",
        group.live()
    );
    // Half of the budget for a query: the cache evicts, and keeps most of the rest.
    let held = query.charge(BUDGET / 2).unwrap();
    assert!(
        (BUDGET as u64 / 4 + 1..=BUDGET as u64 / 2).contains(&group.live()),
        "{} bytes are left",
        group.live()
    );
    drop(held);
    // And all of it.
    drop(query.charge(BUDGET - 64 * KIB).unwrap());
    assert!(get(&cache, 1, ENTRY).is_ok(), "it goes on");
    ends(cache, &runtime);
}

#[test]
fn a_reader_keeps_its_entry() {
    let (runtime, group, query) = scene(BUDGET);
    let cache = cache(&group, 4 * BUDGET);
    let read = get(&cache, 7, 1000 * KIB).unwrap();
    let refused = query.charge(BUDGET - 500 * KIB).unwrap_err();
    assert!(refused.is_over_limit(), "{refused}");
    assert!(read.bytes().iter().all(|&byte| byte == 7) && group.live() == read.weight());
    drop(read);
    assert!(query.charge(BUDGET - 500 * KIB).is_ok());
    ends(cache, &runtime);
}

/// The library's own limit evicts, too, and what it evicts is given back.
#[test]
fn its_own_capacity_holds() {
    let (runtime, group, _query) = scene(BUDGET);
    let cache = cache(&group, BUDGET / 4);
    for key in 0..2000 {
        get(&cache, key, ENTRY).unwrap();
    }
    assert!(
        group.live() <= BUDGET as u64 * 3 / 8,
        "{} bytes",
        group.live()
    );
    ends(cache, &runtime);
}

#[test]
fn threads_that_load_and_charge_are_never_above_the_budget() {
    let (runtime, group, query) = scene(BUDGET);
    let cache = cache(&group, 4 * BUDGET);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let usage = runtime.root().usage();
                assert!(usage <= BUDGET as u64, "{usage}");
            }
        });
        let load = |thread: u64| {
            (0..3000).for_each(|step| drop(get(&cache, (step * 7 + thread) % 1500, ENTRY).unwrap()))
        };
        let loads = [0, 13].map(|thread| scope.spawn(move || load(thread)));
        for _ in 0..60 {
            drop(query.charge(BUDGET / 3).unwrap());
        }
        loads.into_iter().for_each(|load| load.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        sampler.join().unwrap();
    });
    ends(cache, &runtime);
}

/// A budget with room for eight entries, and 64 threads that want the same one.
#[test]
fn a_key_that_many_want_is_loaded_once() {
    const THREADS: usize = 64;
    const LEN: usize = 64 * KIB;
    for failures in [0, 1] {
        let (runtime, group, _query) = scene(8 * LEN);
        let cache = cache(&group, 8 * LEN);
        let loads = AtomicUsize::new(0);
        let barrier = Barrier::new(THREADS);
        let load = || {
            let before = loads.fetch_add(1, Ordering::Relaxed);
            // All others want it by then.
            thread::sleep(Duration::from_millis(30));
            assert!(before >= failures, "the first load fails");
            vec![7; LEN]
        };
        let failed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    match catch_unwind(AssertUnwindSafe(|| cache.get(1, LEN, load))) {
                        Ok(entry) => assert_eq!(entry.unwrap().bytes(), [7; LEN]),
                        Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    }
                });
            }
        });
        assert_eq!(
            (loads.into_inner(), failed.into_inner()),
            (1 + failures, failures)
        );
        assert_eq!(group.live(), (LEN + OVERHEAD) as u64);
        ends(cache, &runtime);
    }
}

/// If there is no room, each of them is refused, and none is stuck.
#[test]
fn a_key_that_does_not_fit_is_refused_to_all() {
    let (runtime, group, _query) = scene(BUDGET);
    let cache = cache(&group, BUDGET);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                refused.fetch_add(
                    get(&cache, 1, 2 * BUDGET).is_err().into(),
                    Ordering::Relaxed,
                )
            });
        }
    });
    assert_eq!(refused.into_inner(), 16);
    assert!(get(&cache, 1, ENTRY).is_ok());
    ends(cache, &runtime);
}

/// Up to nine tenths of the capacity an entry is kept, however many entries the cache is made for.
#[test]
fn an_entry_larger_than_a_share_of_the_capacity_is_kept() {
    let (runtime, group, _query) = scene(BUDGET);
    for tenths in 1..=9 {
        let cache = cache(&group, BUDGET);
        let loads = AtomicUsize::new(0);
        let len = BUDGET / 10 * tenths;
        for _ in 0..3 {
            let load = || {
                loads.fetch_add(1, Ordering::Relaxed);
                vec![1; len]
            };
            cache.get(1, len, load).unwrap();
        }
        assert_eq!(loads.into_inner(), 1, "{tenths} tenths");
        ends(cache, &runtime);
    }
}

/// A charge that lacks little takes little: neither the oldest entry, which is heavy, nor many
/// light ones. One that lacks more than the light ones have takes the heavy one.
#[test]
fn a_small_want_evicts_little() {
    const HEAVY: usize = 10 << 20;
    let (runtime, group, query) = scene(HEAVY + BUDGET);
    for want in [4 * KIB, 100 * KIB] {
        let cache = cache(&group, 4 * (HEAVY + BUDGET));
        let loads = AtomicUsize::new(0);
        let heavy = || {
            loads.fetch_add(1, Ordering::Relaxed);
            vec![0; HEAVY]
        };
        cache.get(0, HEAVY, heavy).unwrap();
        let mut key = 1;
        while runtime.root().live() + ((ENTRY + OVERHEAD) as u64) <= (HEAVY + BUDGET) as u64 {
            get(&cache, key, ENTRY).unwrap();
            key += 1;
        }
        let before = group.live();
        let held: Vec<_> = (0..10).map(|_| query.charge(want).unwrap()).collect();
        let gone = before - group.live();
        let lacked = query.live();
        assert!(
            gone <= lacked + 10 * (ENTRY + OVERHEAD) as u64,
            "{gone} bytes for {lacked}"
        );
        cache.get(0, HEAVY, heavy).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 1, "the heavy one has stayed");
        drop(held);
        drop(query.charge(HEAVY).unwrap());
        assert!(group.live() <= BUDGET as u64, "{}", group.live());
        ends(cache, &runtime);
    }
}
