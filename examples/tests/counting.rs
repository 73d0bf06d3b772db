#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! The heap of a test's process, as an allocator counts it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = LIVE.fetch_add(layout.size() as u64, Relaxed);
        PEAK.fetch_max(before + layout.size() as u64, Relaxed);
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The heap from here on. One at a time: the process has one heap, so a program's test of it is
/// one `#[test]`.
pub(crate) struct Heap {
    before: u64,
}

impl Heap {
    pub(crate) fn measure() -> Heap {
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        Heap { before }
    }

    /// The bytes that have been allocated since, and are not freed.
    pub(crate) fn live(&self) -> u64 {
        LIVE.load(Relaxed).saturating_sub(self.before)
    }

    /// The most that there were.
    pub(crate) fn peak(&self) -> u64 {
        PEAK.load(Relaxed) - self.before
    }
}

/// Fails unless the heap is what was charged, within 15 per cent.
pub(crate) fn assert_close(what: &str, heap: u64, charged: u64) {
    let ratio = heap as f64 / charged as f64;
    println!("{what}: heap {heap}, charged {charged}, ratio {ratio:.3}");
    assert!(
        (1.0 / 1.15..=1.15).contains(&ratio),
        "{what}: heap {heap}, charged {charged}, ratio {ratio:.3}"
    );
}
