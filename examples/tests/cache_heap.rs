#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! The cache of the example, and the heap that it really takes: as an allocator counts it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Limits, Runtime};

use super::{ENTRY, TenantCache};

struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = LIVE.fetch_add(layout.size() as u64, Ordering::Relaxed);
        PEAK.fetch_max(before + layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MAX: usize = 4 << 20;

/// Loads three times what fits, of values whose sizes `size_of` says, and returns the peak and the
/// last size of the heap, in parts of the max.
fn fill(size_of: impl Fn(usize) -> usize) -> [f64; 2] {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("tenant", Limits::new().max(MAX))
        .unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (cache, registration) = TenantCache::new(group);
    let (mut loaded, mut number) = (0, 0_usize);
    while loaded < 3 * MAX {
        let size = size_of(number);
        // Keys come in no order.
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        drop(cache.get_or_load(key, size).unwrap());
        loaded += ENTRY + size;
        number += 1;
    }
    let [peak, last] = [&PEAK, &LIVE].map(|heap| heap.load(Ordering::Relaxed) - before);
    drop(registration);
    [peak, last].map(|bytes| bytes as f64 / MAX as f64)
}

#[test]
fn heap_is_what_the_cache_is_charged() {
    let sizes = [16, 100, 1_000, 4_096, 65_536];
    for size in sizes {
        let [peak, last] = fill(|_| size);
        println!("{size} bytes: peak {peak:.3} of max, in the end {last:.3}");
        assert!(peak <= 1.15 && last >= 1.0 / 1.15, "{size}: {peak}, {last}");
    }
    // Small values, and then large ones, where the small ones were: what they took is free again.
    let [peak, last] = fill(|number| if number < 60_000 { 16 } else { 65_536 });
    assert!(
        peak <= 1.15 && last >= 1.0 / 1.15,
        "small, large: {peak}, {last}"
    );
    let [peak, last] = fill(|number| sizes[number % sizes.len()]);
    assert!(peak <= 1.15 && last >= 1.0 / 1.15, "mixed: {peak}, {last}");
}
