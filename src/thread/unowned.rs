//! Bytes that an allocator has handed out and that no group owns: each thread counts them in its
//! block.
//!
//! A thread has two counts, which only grow: bytes that it has allocated, and bytes that it has
//! freed. Each has a next visit: the value at which the thread looks around. So a count is an
//! addition and one test, and the stand-in of a block needs none of its own: its next visit is
//! always due.
//!
//! A thread without a block adds to one of a few words of the process: before the first tree, in a
//! registration, and after the destructor that gives the block up. So the sum over all words misses
//! nothing.

use std::ptr;

use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{CachePadded, Ordering};
use crate::thread::block::Block;
pub(crate) use crate::thread::counts::UnownedCount;
use crate::thread::deferred::{UNOWNED, deferred};
use crate::thread::local::with_local;
use crate::thread::registry;
use crate::thread::slow_path::Entered;

/// A thread asks for a comparison with what is charged where, at a visit, it has moved the sum by
/// so much.
pub(crate) const STEP: u64 = 64 << 10;

/// Words of threads without a block: such threads rarely write one at a time.
const WORDS: usize = 64;

static ELSEWHERE: [CachePadded<AtomicU64>; WORDS] =
    [const { CachePadded::new(AtomicU64::new(0)) }; WORDS];

/// [`count`], unless it takes a call. False: nothing is counted.
#[inline(always)]
pub(crate) fn try_count(which: UnownedCount, bytes: u64) -> bool {
    with_local(|local| {
        local
            .fast_block()
            .is_some_and(|block| block.unowned.of(which).add(bytes))
    })
}

/// Counts an object that is allocated or freed.
#[inline(always)]
pub(crate) fn count(which: UnownedCount, bytes: u64) {
    if !try_count(which, bytes) {
        count_slow(which, bytes);
    }
}

/// A visit; or the thread has no block. It takes one, unless there is no registry yet, or a slow
/// path is under way.
#[cold]
#[inline(never)]
fn count_slow(which: UnownedCount, bytes: u64) {
    let visited = || {
        with_local(|local| {
            local
                .block()
                .map(|block| visit(block, which, bytes))
                .is_some()
        })
    };
    if visited() {
        return;
    }
    if registry::is_made() {
        // To enter a slow path is what registers a thread. Nothing else is to be done in it.
        drop(Entered::no_alloc());
        if visited() {
            return;
        }
    }
    // One word for both: without a block there is no owner that could keep two apart without an
    // exchange each.
    let delta = if matches!(which, UnownedCount::Freed) {
        bytes.wrapping_neg()
    } else {
        bytes
    };
    word_of_thread().fetch_add(delta, Ordering::Relaxed);
}

fn visit(block: &Block, which: UnownedCount, bytes: u64) {
    let counts = &block.unowned;
    counts.of(which).visit(bytes);
    let sum = counts.sum();
    let moved = sum.wrapping_sub(counts.last_asked.load(Ordering::Relaxed));
    if moved.cast_signed().unsigned_abs() >= STEP {
        counts.last_asked.store(sum, Ordering::Relaxed);
        deferred().announce(UNOWNED);
    }
}

fn word_of_thread() -> &'static AtomicU64 {
    // Fibonacci hashing of where the thread's own words lie.
    let place = with_local(|local| ptr::from_ref(local).addr() as u64);
    &ELSEWHERE[(place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - WORDS.ilog2())) as usize]
}

/// Bytes that all threads have counted. Exact where no thread counts meanwhile.
pub(crate) fn sum<'a>(blocks: impl Iterator<Item = &'a Block>) -> u64 {
    let in_blocks = blocks.map(|block| block.unowned.sum());
    let elsewhere = ELSEWHERE.iter().map(|word| word.load(Ordering::Relaxed));
    let all = in_blocks.chain(elsewhere).fold(0, u64::wrapping_add);
    all.cast_signed().max(0).cast_unsigned()
}
