#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that charges every allocation to a group and is refused: a refusal allocates
//! nothing, so it does not come back to the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Limits, Runtime};

/// Asks a group for each allocation, and allocates whatever it says.
struct Asking;

static GROUP: OnceLock<memcg::Group> = OnceLock::new();
static ADMITTED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes that this thread has asked for, and bytes that it was refused.
    static ASKED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Asking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(group) = GROUP.get() {
            let asked = group.charge(Bytes(layout.size() as u64));
            let count = if asked.is_ok() { &ADMITTED } else { &REFUSED };
            count.fetch_add(1, Ordering::Relaxed);
            let (before, refused) = ASKED.get();
            ASKED.set((before + 1, refused + u64::from(asked.is_err())));
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

#[test]
fn a_refused_allocation_asks_once() {
    let runtime = Runtime::builder()
        .max(1 << 20)
        .adaptive(false)
        .build()
        .expect("a configuration");
    let small = runtime
        .root()
        .create("small", Limits::new().max(64))
        .expect("a name");
    assert!(GROUP.set(small).is_ok());
    for size in [16, 1_000, 100_000] {
        let (asked, refused) = ASKED.get();
        drop(vec![0_u8; size]);
        assert_eq!(
            ASKED.get(),
            (asked + 1, refused + u64::from(size > 64)),
            "{size} bytes"
        );
    }
    // Inside slow paths: groups of the same tree come and go, and what they need is asked for
    // meanwhile.
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let root = runtime.root();
            scope.spawn(move || {
                for number in 0..2_000 {
                    let group = root
                        .create(&format!("{worker}.{number}"), Limits::new())
                        .expect("a name");
                    drop(group.charge(1_000));
                    group.offline().expect("no children");
                }
            });
        }
    });
    runtime.settle();
    assert!(ADMITTED.load(Ordering::Relaxed) > 1_000 && REFUSED.load(Ordering::Relaxed) > 1);
    assert_eq!((runtime.dying_count(), runtime.counts().underflows), (0, 0));
    assert!(runtime.verify().is_ok());
    runtime.root().memory().drain();
    assert_eq!(runtime.root().usage(), 0);
}
