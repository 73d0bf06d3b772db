//! Bytes that an allocator has handed out and that no group owns: each thread counts them in its block.
//!
//! A thread has three counts, which only grow: small objects, other objects, and what it has freed. Each has a next
//! visit: the value at which the thread looks around. So a count is an addition and one test, and the stand-in of a block
//! needs none of its own: its next visit is always due.
//!
//! The small objects are also those of the thread's current group, which shows how much it has ever allocated so. A
//! thread notes whose its count is. Where it counts for another group, it visits: the group before gets what the count
//! has moved by. So a switch of groups does nothing here, and a reader adds what a thread has not handed over.
//!
//! A thread without a block adds to one of a few words of the process: before the first tree, in a registration, and
//! after the destructor that gives the block up. So the sum over all words misses nothing. What it allocates then is in
//! no group's figure.

use std::cell::Cell;
use std::ptr;

use crate::sync::stat_atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::sync::{CachePadded, Ordering, per_thread};
use crate::thread::block::Block;
use crate::thread::counts::{UnownedCounts, Which};
use crate::thread::deferred::{UNOWNED, deferred};
use crate::thread::local::with_local;
use crate::thread::owner::{Named, named};
use crate::thread::slow_path::Entered;
use crate::thread::tally::Tally;
use crate::thread::{current, registry};

/// A thread asks for a comparison with what is charged where, at a visit, it has moved the sum by so much.
pub(crate) const STEP: u64 = 64 << 10;

/// Words of threads without a block: such threads rarely write one at a time.
const WORDS: usize = 64;

/// True once a thread has counted small objects for a group: a group that is released may have counts.
static ANY: AtomicBool = AtomicBool::new(false);

static ELSEWHERE: [CachePadded<AtomicU64>; WORDS] = [const { CachePadded::new(AtomicU64::new(0)) }; WORDS];

per_thread! {
    /// The word of a thread without a block, plus 1.
    with_word: Cell<u32> = Cell::new(0)
}

#[inline(always)]
fn try_count(which: Which, bytes: u64) -> bool {
    with_local(|local| local.fast_block().is_some_and(|block| which.of(&block.unowned).add(bytes)))
}

#[inline(always)]
fn count(which: Which, bytes: u64) {
    if !try_count(which, bytes) {
        count_slow(which, bytes);
    }
}

/// Counts a small object: it is the current group's, too.
#[inline(always)]
pub(crate) fn count_small(bytes: u64) {
    let group = current::header().map_or(ptr::null(), ptr::from_ref);
    let add = |counts: &UnownedCounts| counts.counts_for(group) && counts.small.add(bytes);
    if !with_local(|local| local.fast_block().is_some_and(|block| add(&block.unowned))) {
        count_slow(Which::Small, bytes);
    }
}

/// Counts another object.
#[inline(always)]
pub(crate) fn count_other(bytes: u64) {
    count(Which::Other, bytes);
}

/// Counts an object, small or not, that is freed.
#[inline(always)]
pub(crate) fn count_freed(bytes: u64) {
    count(Which::Freed, bytes);
}

/// [`count_freed`], unless it takes a call. False: nothing is counted.
#[inline(always)]
pub(crate) fn try_count_freed(bytes: u64) -> bool {
    try_count(Which::Freed, bytes)
}

/// Hands the bytes in small objects over to the group that the thread has counted for. From here on it counts for the
/// current one.
fn hand_over(block: &Block) {
    let counts = &block.unowned;
    let bytes = counts.small.bytes().wrapping_sub(counts.handed.load(Ordering::Relaxed));
    counts.handed.store(counts.small.bytes(), Ordering::Relaxed);
    let next = current::header();
    if next.is_some() {
        // Relaxed: the thread has the group, whose handle goes before the release looks.
        ANY.store(true, Ordering::Relaxed);
    }
    let before =
        counts.group.swap(next.map_or(ptr::null_mut(), |next| ptr::from_ref(next).cast_mut()), Ordering::Relaxed);
    // SAFETY: null, or a header, which is never freed and has a word of its own; 0 names a number.
    #[allow(unsafe_code)]
    let named = unsafe { before.as_ref().map(|before| named(before.word())) };
    if let Some(Named::Index(index)) = named
        && let Some(cell) = block.allocated_total.get_or_make(index, Tally::default)
    {
        cell.add(bytes);
    }
}

/// A visit; or the thread has no block. It takes one, unless there is no registry yet, or a slow path is under way.
#[cold]
#[inline(never)]
fn count_slow(which: Which, bytes: u64) {
    let visited = || with_local(|local| local.block().map(|block| visit(block, which, bytes)).is_some());
    if visited() {
        return;
    }
    if registry::is_made() {
        drop(Entered::no_alloc());
        if visited() {
            return;
        }
    }
    let delta = if matches!(which, Which::Freed) { bytes.wrapping_neg() } else { bytes };
    word_of_thread().fetch_add(delta, Ordering::Relaxed);
}

fn visit(block: &Block, which: Which, bytes: u64) {
    let counts = &block.unowned;
    if matches!(which, Which::Small) {
        hand_over(block);
    }
    which.of(counts).visit(bytes);
    let sum = counts.sum();
    if sum.wrapping_sub(counts.last_asked.load(Ordering::Relaxed)).cast_signed().unsigned_abs() >= STEP {
        counts.last_asked.store(sum, Ordering::Relaxed);
        deferred().announce(UNOWNED);
    }
}

fn word_of_thread() -> &'static AtomicU64 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let at = with_word(|word| {
        if word.get() == 0 {
            word.set(NEXT.fetch_add(1, Ordering::Relaxed) % WORDS as u32 + 1);
        }
        word.get() - 1
    });
    &ELSEWHERE[at as usize]
}

/// True if any group may have counts of small objects.
pub(crate) fn any_of_groups() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Bytes that all threads have counted. Exact where no thread counts meanwhile.
pub(crate) fn sum<'a>(blocks: impl Iterator<Item = &'a Block>) -> u64 {
    let in_blocks = blocks.map(|block| block.unowned.sum());
    let elsewhere = ELSEWHERE.iter().map(|word| word.load(Ordering::Relaxed));
    let all = in_blocks.chain(elsewhere).fold(0, u64::wrapping_add);
    all.cast_signed().max(0).cast_unsigned()
}
