//! One cache for several tenants. Each entry keeps its charge. When a charge meets the max of a
//! tenant or of the process, the tenants' reclaimers evict their oldest entries. An entry is charged
//! for all that it takes, so the heap of the cache stays at its max, whether values have 16 bytes or
//! 64 KiB.
//!
//! ```text
//! cargo run --example cache
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread;

use memcg::{
    Bytes, ChargeError, Charged, Event, Group, Limit, Limits, Reclaim, ReclaimContext,
    ReclaimPriority, Registration, Runtime,
};

// ANCHOR: value
type Value = Charged<Vec<u8>>; // freed, then uncharged
// ANCHOR_END: value

// ANCHOR: entry
/// The bytes of an entry beside those of its value: the two counts of the `Arc` and the value behind
/// them, and a place in either map. Nodes of a tree are half full or more: twice an item's size is
/// what an item takes there.
const ENTRY: usize = 2 * size_of::<usize>()
    + size_of::<Value>()
    + 2 * size_of::<(usize, Arc<Value>)>()
    + 2 * size_of::<(u64, usize)>();
// ANCHOR_END: entry

/// Trees, because they grow and shrink with their entries. A hash table is faster; but it doubles at
/// once, when there may be no room for it, and it does not shrink when its entries are evicted. Who
/// takes one charges it as a whole, beside the entries.
#[derive(Default)]
struct Shelf {
    entries: BTreeMap<usize, Arc<Value>>,
    oldest_first: BTreeMap<u64, usize>,
    loaded: u64,
    hits: u64,
    evicted: u64,
}

struct TenantCache {
    group: Group,
    shelf: Mutex<Shelf>,
}

impl TenantCache {
    /// Makes a cache that the group pays for, and that gives back what others need of it, as long as
    /// the registration is there.
    fn new(group: Group) -> (Arc<Self>, Registration) {
        let cache = Arc::new(TenantCache {
            group,
            shelf: Mutex::default(),
        });
        let reclaimer = Arc::clone(&cache);
        let registration = cache
            .group
            .register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
        (cache, registration)
    }

    // ANCHOR: load
    /// Finds the value of `key`, or charges an entry with `size` bytes and loads it.
    fn get_or_load(&self, key: usize, size: usize) -> Result<Arc<Value>, ChargeError> {
        {
            let mut shelf = self.shelf.lock().unwrap();
            if let Some(value) = shelf.entries.get(&key).map(Arc::clone) {
                shelf.hits += 1;
                return Ok(value);
            }
        }
        // Without the lock: the charge may call the reclaimer.
        let value = Arc::new(Value::make(&self.group, ENTRY + size, || {
            vec![key.to_le_bytes()[0]; size]
        })?);
        let mut shelf = self.shelf.lock().unwrap();
        if shelf.entries.insert(key, Arc::clone(&value)).is_none() {
            shelf.loaded += 1;
            let number = shelf.loaded;
            shelf.oldest_first.insert(number, key);
        }
        Ok(value)
    }
    // ANCHOR_END: load
}

// ANCHOR: reclaim
impl Reclaim for TenantCache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        // Waits, but for no charge: no thread charges while it holds this lock.
        let mut shelf = self.shelf.lock().unwrap();
        let mut freed = 0;
        while freed < want
            && let Some((_, key)) = shelf.oldest_first.pop_first()
        {
            shelf.evicted += 1;
            let value = shelf.entries.remove(&key).and_then(Arc::into_inner);
            freed += value.map_or(0, |value| Value::charge(&value).bytes()); // 0: a reader still has it
        }
        freed
    }
}
// ANCHOR_END: reclaim

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(6)).audit(true).build()?;
    let limits = Limits::new().max(Limit::mib(3)).low(Limit::mib(1));
    let mut caches = Vec::new();
    let mut registrations = Vec::new();
    for (name, keys) in [("hot", 150), ("wide", 2_000), ("scan", 1_000_000)] {
        let (cache, registration) = TenantCache::new(runtime.root().create(name, limits)?);
        registrations.push(registration);
        caches.push((cache, keys));
    }
    thread::scope(|scope| {
        for (cache, keys) in &caches {
            scope.spawn(move || {
                for key in (0..20_000).map(|_| rand::random_range(0..*keys)) {
                    match cache.get_or_load(key, 1_024 + key * 37 % 8_192) {
                        Ok(value) => assert_eq!(value[0], key.to_le_bytes()[0]),
                        Err(refused) => eprintln!("not cached: {refused}"),
                    }
                }
            });
        }
    });
    for (cache, _) in &caches {
        let group = &cache.group;
        let shelf = cache.shelf.lock().unwrap();
        let met = group.events().local().get(Event::Max);
        let cached = shelf.entries.len();
        println!(
            "{:<5} {} hits, {} evicted, {cached} cached",
            group.name(),
            shelf.hits,
            shelf.evicted
        );
        println!(
            "      max met {met} times, live {}, peak {}",
            Bytes(group.live()),
            Bytes(group.peak())
        );
        assert!(group.peak() <= group.max() && group.forced() == 0);
    }
    let all = runtime.root();
    println!(
        "all   max met {} times, peak {}",
        all.events().local().get(Event::Max),
        Bytes(all.peak())
    );
    assert!(all.peak() <= all.max() && all.forced() == 0);
    println!("{}", runtime.verify());
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "tests/cache_heap.rs"]
mod heap;
