//! Wrappers that others put round an allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

use tracking_allocator::{
    AllocationGroupId, AllocationGroupToken, AllocationRegistry, AllocationTracker,
};

/// The usual wrapper by hand: each malloc is charged to the thread's group, each free goes to the
/// group of the thread that frees. It counts wrong where another group frees, and costs nothing to
/// find the group.
pub(crate) struct Naive<A>(pub(crate) A);

static BYTES: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static GROUP: Cell<Option<&'static AtomicI64>> = const { Cell::new(None) };
}

fn add(bytes: usize, sign: i64) {
    if let Some(group) = GROUP.get() {
        group.fetch_add(bytes as i64 * sign, Ordering::Relaxed);
    }
}

// SAFETY: each call is handed on.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Naive<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size, 1);
        add(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(memory, layout, size) }
    }
}

/// An owner's word of 4 bytes behind each object, and the least that a count for it can be.
///
/// `COUNTS` is false: the word is written with the object and read before its free, and that is
/// all. What is slower by it, is slower by any owner's word. True: each thread adds up what it
/// allocates for one group, and what it frees of it, and tells the group each 64 KiB. It has no
/// limit, no drain and no second group: a switch would have to tell the group first.
pub(crate) struct WordBehind<A, const COUNTS: bool>(pub(crate) A);

const WORD: usize = size_of::<u32>();
const STEP: u64 = 64 << 10;

thread_local! {
    static COUNTED: (Cell<u32>, Cell<i64>) = const { (Cell::new(1), Cell::new(0)) };
}

/// # Safety
///
/// No object is that large that its word would not fit.
unsafe fn with_word(object: Layout) -> Layout {
    // SAFETY: says the caller.
    unsafe { Layout::from_size_align_unchecked(object.size() + WORD, object.align()) }
}

#[inline(always)]
fn count(owner: &Cell<u32>, word: u32, sum: &Cell<i64>, bytes: i64) {
    let moved = sum.get() + bytes;
    if owner.get() == word && moved.unsigned_abs() < STEP {
        sum.set(moved);
    } else {
        tell(sum, bytes);
    }
}

#[cold]
#[inline(never)]
fn tell(sum: &Cell<i64>, bytes: i64) {
    BYTES.fetch_add(sum.take() + bytes, Ordering::Relaxed);
}

// SAFETY: each object is one of the inner allocator, with a word behind it. The bench asks for no
// huge object.
unsafe impl<A: GlobalAlloc, const COUNTS: bool> GlobalAlloc for WordBehind<A, COUNTS> {
    #[inline]
    unsafe fn alloc(&self, object: Layout) -> *mut u8 {
        // SAFETY: the caller's promise; the word is in the block.
        unsafe {
            let memory = self.0.alloc(with_word(object));
            if memory.is_null() {
                return memory;
            }
            let word = COUNTED.with(|(owner, sum)| {
                if COUNTS {
                    count(owner, owner.get(), sum, object.size() as i64);
                }
                owner.get()
            });
            memory
                .add(object.size())
                .cast::<u32>()
                .write_unaligned(word);
            memory
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, object: Layout) {
        // SAFETY: as above; `alloc` has written the word.
        unsafe {
            let word = memory.add(object.size()).cast::<u32>().read_unaligned();
            if COUNTS {
                COUNTED.with(|(owner, sum)| count(owner, word, sum, -(object.size() as i64)));
            } else {
                std::hint::black_box(word);
            }
            self.0.dealloc(memory, with_word(object));
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, object: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            let word = memory.add(object.size()).cast::<u32>().read_unaligned();
            let moved = self.0.realloc(memory, with_word(object), size + WORD);
            if moved.is_null() {
                return moved;
            }
            if COUNTS {
                COUNTED.with(|(owner, sum)| {
                    count(owner, word, sum, size as i64 - object.size() as i64)
                });
            }
            moved.add(size).cast::<u32>().write_unaligned(word);
            moved
        }
    }
}

/// An exact count for each group of tracking-allocator: the least that a tracker can do.
struct Tracker;

const GROUPS: usize = 64;
static TRACKED: [AtomicI64; GROUPS] = [const { AtomicI64::new(0) }; GROUPS];

fn track(group: &AllocationGroupId, bytes: i64) {
    TRACKED[group.as_usize().get() % GROUPS].fetch_add(bytes, Ordering::Relaxed);
}

impl AllocationTracker for Tracker {
    fn allocated(&self, _: usize, size: usize, _: usize, group: AllocationGroupId) {
        track(&group, size as i64);
    }

    fn deallocated(
        &self,
        _: usize,
        size: usize,
        _: usize,
        source: AllocationGroupId,
        _: AllocationGroupId,
    ) {
        track(&source, -(size as i64));
    }
}

pub(crate) fn install() {
    AllocationRegistry::set_global_tracker(Tracker).expect("the first tracker");
    AllocationRegistry::enable_tracking();
}

/// Runs `work` in a group of each peer that knows groups.
pub(crate) fn within<R>(work: impl FnOnce() -> R) -> R {
    GROUP.set(Some(&BYTES));
    // Two threads that register at once: one may get no number.
    let mut token = std::iter::repeat_with(AllocationGroupToken::register)
        .flatten()
        .next()
        .expect("an endless iterator");
    let entered = token.enter();
    let result = work();
    drop(entered);
    GROUP.set(None);
    result
}
