//! The global allocator of the program: that of `memcg-alloc`, beside exact counts of what each
//! group owns. It wraps the system's allocator; with the feature `jemalloc`, that one.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memcg_alloc::MemcgAlloc;

#[cfg(not(feature = "jemalloc"))]
use std::alloc::System as Inner;
#[cfg(feature = "jemalloc")]
use tikv_jemallocator::Jemalloc as Inner;

/// Groups that the program counts for itself; number 0 stands for none.
pub(crate) const GROUPS: usize = 21;

static ALLOCATOR: MemcgAlloc<Inner> = MemcgAlloc::new(Inner);

thread_local! {
    /// The number of the group that runs on this thread, as the program knows it.
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

/// Bytes of one kind. Both counts only grow: one is made before the allocator counts, the other one
/// afterwards.
pub(crate) struct Moved {
    pub(crate) begun: AtomicU64,
    pub(crate) done: AtomicU64,
}

impl Moved {
    const fn new() -> Moved {
        Moved {
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    fn begin(&self, bytes: usize) {
        self.begun.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    fn end(&self, bytes: usize) {
        self.done.fetch_add(bytes as u64, Ordering::SeqCst);
    }
}

/// The program's own counts for one group.
pub(crate) struct OwnCounts {
    pub(crate) allocated: Moved,
    pub(crate) freed: Moved,
}

pub(crate) static COUNTS: [OwnCounts; GROUPS] = [const {
    OwnCounts {
        allocated: Moved::new(),
        freed: Moved::new(),
    }
}; GROUPS];

/// Runs `work` as the group of that number.
pub(crate) fn numbered<R>(number: u32, work: impl FnOnce() -> R) -> R {
    struct Back(u32);
    impl Drop for Back {
        fn drop(&mut self) {
            RUNS.set(self.0);
        }
    }
    let _back = Back(RUNS.replace(number));
    work()
}

/// The allocator of the program.
pub(crate) struct Counting;

/// Bytes behind an object for the number of its group.
const NUMBER: usize = size_of::<u32>();

#[allow(unsafe_code)]
unsafe fn whole(object: Layout) -> Layout {
    // SAFETY: the program allocates nothing near the largest size.
    unsafe { Layout::from_size_align_unchecked(object.size() + NUMBER, object.align()) }
}

// SAFETY: each object comes from one allocator, and goes back to it with the layout that follows
// from the caller's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, object: Layout) -> *mut u8 {
        let runs = RUNS.get();
        let bytes = object.size() + NUMBER;
        let OwnCounts { allocated, freed } = &COUNTS[runs as usize];
        allocated.begin(bytes);
        fence(Ordering::SeqCst);
        // SAFETY: the caller's promise, here and below; the number is within the block.
        unsafe {
            let memory = ALLOCATOR.alloc(whole(object));
            fence(Ordering::SeqCst);
            // Memory that the crate allocates for itself has no owner, wherever it runs: the word
            // behind is 0.
            let is_owned =
                !memory.is_null() && memory.add(bytes).cast::<u32>().read_unaligned() != 0;
            if !is_owned {
                // It is not the group's. No reader finds it allocated and not freed.
                freed.begin(bytes);
            }
            allocated.end(bytes);
            if !is_owned {
                freed.end(bytes);
            }
            if !memory.is_null() {
                let number = if is_owned { runs } else { 0 };
                memory
                    .add(object.size())
                    .cast::<u32>()
                    .write_unaligned(number);
            }
            memory
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, object: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, object.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(memory, moved, size.min(object.size()));
                self.dealloc(memory, object);
            }
            moved
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, object: Layout) {
        // SAFETY: as above.
        unsafe {
            let number = memory.add(object.size()).cast::<u32>().read_unaligned();
            let freed = &COUNTS[number as usize].freed;
            let bytes = object.size() + NUMBER;
            freed.begin(bytes);
            fence(Ordering::SeqCst);
            ALLOCATOR.dealloc(memory, whole(object));
            fence(Ordering::SeqCst);
            freed.end(bytes);
        }
    }
}
