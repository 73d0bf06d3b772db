#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that counts every allocation as a statistic, those that the library makes
//! inside its own slow paths included. Nothing deadlocks, and every one is counted, but for those
//! that say so in `counts().nested_stats`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Freshness, Group, Limits, Runtime, StatKey};

/// Counts each allocation for a group, and each free.
struct Counting;

const ALLOCATED: StatKey = StatKey::WORKINGSET_REFAULT;
const FREED: StatKey = StatKey::SOCK;

static GROUPS: OnceLock<[Group; 2]> = OnceLock::new();
/// Calls of `stat_add`.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Those that came from inside another call of this thread.
static NESTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Calls into the library.
fn call<R>(work: impl FnOnce() -> R) -> R {
    let nested = IN_CALL.replace(true);
    let result = work();
    IN_CALL.set(nested);
    result
}

fn count(stat: StatKey) {
    let Some(groups) = GROUPS.get() else { return };
    let group = &groups[usize::from(stat == FREED)];
    NESTED.fetch_add(IN_CALL.get().into(), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
    call(|| group.stat_add(stat, 1));
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        count(ALLOCATED);
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(FREED);
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn every_allocation_is_counted_or_said_not_to_be() {
    let mut builder = Runtime::builder().stat_batch(8);
    let own = builder.stat("own", memcg::Unit::Events);
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let group = |name| root.create(name, Limits::new()).expect("a name");
    assert!(GROUPS.set([group("allocated"), group("freed")]).is_ok());
    // Slow paths of all kinds: first touches, parts, pages, flushes, releases, threads that end.
    std::thread::scope(|scope| {
        for worker in 0..3_i64 {
            let root = &root;
            scope.spawn(move || {
                for number in 0..500 {
                    let group = call(|| root.create(&format!("{worker}.{number}"), Limits::new()))
                        .expect("a name");
                    call(|| group.stat_add(own, 1));
                    let theirs = group.clone();
                    let other = std::thread::spawn(move || call(|| theirs.stat_add(own, 10)));
                    other.join().expect("no panic");
                    match number % 4 {
                        0 => drop(call(|| group.read(Freshness::Exact))),
                        1 => call(|| root.inspect().flush()),
                        2 => drop(call(|| root.read(Freshness::Threshold))),
                        _ => {}
                    }
                    call(|| group.offline()).expect("no children");
                    drop(vec![0_u8; 100]);
                    call(|| drop(group));
                }
            });
        }
    });
    call(|| runtime.settle());
    // Each call so far was counted or has been said not to be; the read itself may allocate a
    // little.
    let before = CALLS.load(Ordering::SeqCst);
    let counts = runtime.counts();
    let stats = call(|| root.read(Freshness::Exact));
    let after = CALLS.load(Ordering::SeqCst);
    assert_eq!(stats.get(own), 3 * 500 * 11);
    assert!(
        stats.max_error() <= after - before,
        "only what the read itself allocates moves meanwhile: {stats:?}"
    );
    let known = (stats.get(ALLOCATED) + stats.get(FREED)) as u64 + counts.nested_stats;
    assert!(
        (before..=after).contains(&known) && after - before < 20,
        "{before} <= {known} <= {after}, {counts:?}"
    );
    let nested = NESTED.load(Ordering::SeqCst);
    assert!(
        nested > 1_000,
        "{nested} allocations inside a call of the library"
    );
    assert!(
        counts.nested_stats < nested,
        "{} of {nested} were not counted",
        counts.nested_stats
    );
    println!(
        "{before} calls, {nested} of them inside another, {} not counted",
        counts.nested_stats
    );
}

/// Once a thread has written a group, it goes on without the allocator: announcements, lists and
/// published figures are in place.
#[test]
fn adding_and_stale_reading_allocate_nothing() {
    let runtime = Runtime::builder()
        .stat_batch(8)
        .build()
        .expect("a configuration");
    let group = runtime.root().create("q", Limits::new()).expect("a name");
    group.stat_add(StatKey::ANON, 1);
    group.inspect().flush();
    let before = ALLOCATIONS.get();
    for number in 0..10_000 {
        group.stat_add(StatKey::ANON, number * 1_000);
        group.stat_add(StatKey::SLAB, -1);
        std::hint::black_box(group.read(Freshness::Stale));
    }
    assert_eq!(ALLOCATIONS.get(), before);
    // Several where the allocator, counting one, touches a group of its own for the first time.
    let counted = || {
        let before = ALLOCATIONS.get();
        drop(vec![0_u8; 10]);
        ALLOCATIONS.get() - before
    };
    assert!((0..10).any(|_| counted() == 1), "it is counted");
    assert_eq!(group.read(Freshness::Exact).get(StatKey::SLAB), -10_000);
}
