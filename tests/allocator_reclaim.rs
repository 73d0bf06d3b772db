#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that charges every allocation to a full group: a reclaimer runs inside
//! `alloc`, allocates itself, and is neither asked again for that nor called where the library
//! allocates under its own locks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use memcg::{Bytes, Charge, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};

const MAX: u64 = 1 << 20;

/// Asks a group for each allocation, and allocates whatever it says.
struct Asking;

static GROUP: OnceLock<memcg::Group> = OnceLock::new();
static ON: AtomicBool = AtomicBool::new(false);
static ADMITTED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);
static OTHERWISE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Reclaimers on this thread's stack.
    static DEPTH: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Asking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.load(Ordering::Relaxed)
            && let Some(group) = GROUP.get()
        {
            let count = match group.charge(Bytes(layout.size() as u64)) {
                Ok(_) => &ADMITTED,
                Err(error) if error.is_in_reclaim() => &INSIDE,
                Err(error) if error.is_over_limit() => &REFUSED,
                Err(_) => &OTHERWISE,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Asking = Asking;

/// The thread that asks may hold its lock, because an allocation asks.
struct Cache {
    held: Mutex<Charge>,
    calls: AtomicU64,
    nested: AtomicU64,
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let depth = DEPTH.get();
        self.nested.fetch_add(depth, Ordering::Relaxed);
        DEPTH.set(depth + 1);
        // Bookkeeping of its own, charged like any other allocation.
        let scratch = vec![0_u8; 3_000];
        let freed = self
            .held
            .try_lock()
            .map_or(0, |mut held| held.shrink(Bytes(want)));
        drop(scratch);
        self.calls.fetch_add(1, Ordering::Relaxed);
        DEPTH.set(depth);
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.held.try_lock().map_or(0, |held| held.bytes())
    }
}

#[test]
fn a_full_group_reclaims_inside_alloc() {
    let runtime = Runtime::builder().build().expect("a configuration");
    let full = runtime
        .root()
        .create("full", Limits::new().max(Limit::Bytes(MAX)))
        .expect("a name");
    let held = Mutex::new(full.charge(Bytes(MAX)).expect("room"));
    let cache = Arc::new(Cache {
        held,
        calls: AtomicU64::new(0),
        nested: AtomicU64::new(0),
    });
    let registration = full.register_reclaimer(
        Arc::clone(&cache) as Arc<dyn Reclaim>,
        ReclaimPriority::NORMAL,
    );
    assert!(GROUP.set(full.clone()).is_ok());
    ON.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let root = runtime.root();
            let full = &full;
            let cache = &cache;
            scope.spawn(move || {
                for number in 0..300_u64 {
                    drop(std::hint::black_box(vec![worker as u8; 20_000]));
                    // Filled again, so that the next allocation has to ask.
                    let room = full.max().saturating_sub(full.usage());
                    if let Ok(more) = full.charge(Bytes(room)) {
                        cache
                            .held
                            .lock()
                            .expect("no thread panics")
                            .merge(more)
                            .expect("of the same group");
                    }
                    // The library allocates under its locks, and is refused there.
                    let group = root.create(&format!("{worker}.{number}"), Limits::new().soft(0));
                    let group = group.expect("a name");
                    let mine = group.register_reclaimer(
                        Arc::clone(cache) as Arc<dyn Reclaim>,
                        ReclaimPriority::LOW,
                    );
                    drop(group.charge(1_000));
                    group.offline().expect("no children");
                    drop(mine);
                    std::hint::black_box(runtime_report(full));
                }
            });
        }
    });
    ON.store(false, Ordering::SeqCst);
    assert!(
        cache.calls.load(Ordering::Relaxed) > 10,
        "hardly ever asked"
    );
    assert_eq!(
        cache.nested.load(Ordering::Relaxed),
        0,
        "asked inside itself"
    );
    assert!(ADMITTED.load(Ordering::Relaxed) > 10);
    println!(
        "{} refused, {} inside",
        REFUSED.load(Ordering::Relaxed),
        INSIDE.load(Ordering::Relaxed)
    );
    assert!(
        INSIDE.load(Ordering::Relaxed) > 0,
        "what it allocated itself was never refused"
    );
    assert_eq!(OTHERWISE.load(Ordering::Relaxed), 0);
    drop((registration, cache));
    runtime.settle();
    full.memory().drain();
    assert_eq!((full.usage(), runtime.counts().underflows), (0, 0));
    assert!(runtime.verify().is_ok());
}

/// Reads that allocate.
fn runtime_report(full: &memcg::Group) -> (String, Vec<memcg::Group>) {
    (format!("{full:?} {:?}", full.events()), full.children())
}
