//! The cache of the example, and the heap that it really takes.

#[path = "counting.rs"]
mod counting;

use counting::{Heap, assert_close};
use memcg::{Limits, Runtime};

use super::{ENTRY, TenantCache};

const MAX: usize = 4 << 20;

/// Loads three times what fits, of values whose sizes `size_of` says. The peak of the heap and its
/// last size are the max.
fn fill(what: &str, size_of: impl Fn(usize) -> usize) {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("tenant", Limits::new().max(MAX))
        .unwrap();
    let heap = Heap::measure();
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
    assert_close(&format!("{what}: peak"), heap.peak(), MAX as u64);
    assert_close(&format!("{what}: in the end"), heap.live(), MAX as u64);
    drop(registration);
}

#[test]
fn heap_is_what_the_cache_is_charged() {
    let sizes = [16, 100, 1_000, 4_096, 65_536];
    for size in sizes {
        fill(&format!("{size} bytes"), |_| size);
    }
    // Small values, and then large ones, where the small ones were: what they took is free again.
    fill(
        "small, large",
        |number| {
            if number < 60_000 { 16 } else { 65_536 }
        },
    );
    fill("mixed", |number| sizes[number % sizes.len()]);
}
