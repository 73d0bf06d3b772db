//! The global allocator of the program: one of several, which the environment names before the first allocation. Each
//! wraps the system's allocator; with the feature `jemalloc`, that one.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering, fence};

use cap::Cap;
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
use thresher::Thresher;
use tracking_allocator::{
    AllocationGroupId, AllocationGroupToken, AllocationRegistry, AllocationTracker, Allocator as Tracking,
};

#[cfg(not(feature = "jemalloc"))]
use std::alloc::System as Inner;
#[cfg(feature = "jemalloc")]
use tikv_jemallocator::Jemalloc as Inner;

/// Names the allocator of a run.
pub(crate) const VARIABLE: &CStr = c"PIPELINE_ALLOCATOR";

/// Groups that the program counts for itself; number 0 stands for none.
pub(crate) const GROUPS: usize = 21;

/// The wrapper of the inner allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wrapper {
    /// Nothing does.
    Bare = 1,
    /// `memcg-alloc`, for the process only.
    Process,
    /// `memcg-alloc` with a threshold: objects above 1 KiB are owned.
    Large,
    /// `memcg-alloc` as it is by default: every object is owned.
    Every,
    /// The same beside exact counts of what each group owns.
    Exact,
    /// The crate `cap`: one count for the process.
    Cap,
    /// The crate `thresher`: one count for the process, in batches by thread.
    Thresher,
    /// The crate `tracking-allocator`: a header names the group, here with a count for each.
    Tracking,
    /// Each allocation and each free is that of the group that runs.
    Naive,
}

impl Wrapper {
    pub(crate) const ALL: [Wrapper; 9] = [
        Wrapper::Bare,
        Wrapper::Process,
        Wrapper::Large,
        Wrapper::Every,
        Wrapper::Exact,
        Wrapper::Cap,
        Wrapper::Thresher,
        Wrapper::Tracking,
        Wrapper::Naive,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Wrapper::Bare => "bare",
            Wrapper::Process => "process",
            Wrapper::Large => "large",
            Wrapper::Every => "every",
            Wrapper::Exact => "exact",
            Wrapper::Cap => "cap",
            Wrapper::Thresher => "thresher",
            Wrapper::Tracking => "tracking",
            Wrapper::Naive => "naive",
        }
    }

    /// The one that this process has.
    pub(crate) fn chosen() -> Wrapper {
        let number = CHOSEN.load(Ordering::Relaxed);
        Wrapper::ALL.into_iter().find(|wrapper| *wrapper as u8 == number).unwrap_or_else(Wrapper::choose)
    }

    #[cold]
    #[allow(unsafe_code)]
    fn choose() -> Wrapper {
        // SAFETY: the name ends with a zero. No thread changes the environment, and the text lives as long as that.
        let named = unsafe {
            let text = libc::getenv(VARIABLE.as_ptr());
            if text.is_null() { c"every" } else { CStr::from_ptr(text) }
        };
        let is_named = |wrapper: &Wrapper| wrapper.name().as_bytes() == named.to_bytes();
        let chosen = Wrapper::ALL.into_iter().find(is_named).unwrap_or(Wrapper::Every);
        CHOSEN.store(chosen as u8, Ordering::Relaxed);
        chosen
    }
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);
static PROCESS: MemcgAlloc<Inner, PROCESS_ONLY> = MemcgAlloc::with_threshold(Inner);
static LARGE: MemcgAlloc<Inner, LARGE_OBJECTS> = MemcgAlloc::with_threshold(Inner);
static EVERY: MemcgAlloc<Inner> = MemcgAlloc::new(Inner);
static CAP: Cap<Inner> = Cap::new(Inner, usize::MAX);
static THRESHER: Thresher<Inner> = Thresher::new(Inner);
static TRACKING: Tracking<Inner> = Tracking::from_allocator(Inner);

thread_local! {
    /// The number of the group that runs on this thread, as the program knows it.
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

/// Bytes of one kind. Both counts only grow: one is made before the allocator counts, the other one afterwards.
pub(crate) struct Moved {
    pub(crate) begun: AtomicU64,
    pub(crate) done: AtomicU64,
}

impl Moved {
    const fn new() -> Moved {
        Moved { begun: AtomicU64::new(0), done: AtomicU64::new(0) }
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
    /// The figure of a count that takes frees for those of the group that runs.
    pub(crate) naive: AtomicI64,
    /// The figure of tracking-allocator for the group.
    pub(crate) tracked: AtomicI64,
}

pub(crate) static COUNTS: [OwnCounts; GROUPS] = [const {
    OwnCounts { allocated: Moved::new(), freed: Moved::new(), naive: AtomicI64::new(0), tracked: AtomicI64::new(0) }
}; GROUPS];

/// The counts of the groups of tracking-allocator: each task has one, and `number` says whose it is.
struct Tracker;

const TOKENS: usize = 1_024;
static NUMBER_OF: [AtomicU8; TOKENS] = [const { AtomicU8::new(0) }; TOKENS];

impl Tracker {
    fn count(group: &AllocationGroupId, bytes: i64) {
        let number = NUMBER_OF.get(group.as_usize().get()).map_or(0, |number| number.load(Ordering::Relaxed));
        COUNTS[usize::from(number)].tracked.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl AllocationTracker for Tracker {
    fn allocated(&self, _: usize, size: usize, _: usize, group: AllocationGroupId) {
        Tracker::count(&group, size as i64);
    }

    fn deallocated(&self, _: usize, size: usize, _: usize, source: AllocationGroupId, _: AllocationGroupId) {
        Tracker::count(&source, -(size as i64));
    }
}

/// Prepares the peers that need it.
pub(crate) fn prepare() {
    if Wrapper::chosen() == Wrapper::Tracking {
        AllocationRegistry::set_global_tracker(Tracker).expect("the first tracker");
        AllocationRegistry::enable_tracking();
    }
}

/// The value that a task needs to run as the group of a number.
pub(crate) struct Numbered {
    number: u32,
    token: Option<AllocationGroupToken>,
}

impl Numbered {
    pub(crate) fn new(number: u32) -> Numbered {
        let register = || AllocationGroupToken::register().filter(|token| token.id().as_usize().get() < TOKENS);
        let token = if Wrapper::chosen() == Wrapper::Tracking && number > 0 { register() } else { None };
        if let Some(token) = &token {
            NUMBER_OF[token.id().as_usize().get()].store(number as u8, Ordering::Relaxed);
        }
        Numbered { number, token }
    }

    pub(crate) fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let _entered = self.token.as_mut().map(AllocationGroupToken::enter);
        numbered(self.number, work)
    }
}

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
pub(crate) struct Chosen;

/// Bytes behind an object for the number of its group.
const NUMBER: usize = size_of::<u32>();

#[allow(unsafe_code)]
unsafe fn whole(object: Layout) -> Layout {
    // SAFETY: the program allocates nothing near the largest size.
    unsafe { Layout::from_size_align_unchecked(object.size() + NUMBER, object.align()) }
}

fn count_naive(bytes: i64) {
    COUNTS[RUNS.get() as usize].naive.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: each object comes from the allocator that is chosen before the first one, and goes back to it with the layout
// that follows from the caller's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, object: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, here and below; the number is within the block.
        unsafe {
            match Wrapper::chosen() {
                Wrapper::Bare => Inner.alloc(object),
                Wrapper::Process => PROCESS.alloc(object),
                Wrapper::Large => LARGE.alloc(object),
                Wrapper::Every => EVERY.alloc(object),
                Wrapper::Cap => CAP.alloc(object),
                Wrapper::Thresher => THRESHER.alloc(object),
                Wrapper::Tracking => TRACKING.alloc(object),
                Wrapper::Naive => {
                    count_naive(object.size() as i64);
                    Inner.alloc(object)
                }
                Wrapper::Exact => {
                    let (runs, bytes) = (RUNS.get(), object.size() + NUMBER);
                    COUNTS[runs as usize].allocated.begin(bytes);
                    fence(Ordering::SeqCst);
                    let memory = EVERY.alloc(whole(object));
                    fence(Ordering::SeqCst);
                    // Memory that the crate allocates for itself has no owner, wherever it runs: the word behind is 0.
                    let is_owned = !memory.is_null() && memory.add(bytes).cast::<u32>().read_unaligned() != 0;
                    let OwnCounts { allocated, freed, .. } = &COUNTS[runs as usize];
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
                        memory.add(object.size()).cast::<u32>().write_unaligned(number);
                    }
                    memory
                }
            }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, object: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match Wrapper::chosen() {
                Wrapper::Bare => Inner.realloc(memory, object, size),
                Wrapper::Process => PROCESS.realloc(memory, object, size),
                Wrapper::Large => LARGE.realloc(memory, object, size),
                Wrapper::Every => EVERY.realloc(memory, object, size),
                Wrapper::Cap => CAP.realloc(memory, object, size),
                Wrapper::Thresher => THRESHER.realloc(memory, object, size),
                Wrapper::Tracking => TRACKING.realloc(memory, object, size),
                Wrapper::Naive => {
                    count_naive(size as i64 - object.size() as i64);
                    Inner.realloc(memory, object, size)
                }
                Wrapper::Exact => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(size, object.align()));
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(memory, moved, size.min(object.size()));
                        self.dealloc(memory, object);
                    }
                    moved
                }
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, object: Layout) {
        // SAFETY: as above.
        unsafe {
            match Wrapper::chosen() {
                Wrapper::Bare => Inner.dealloc(memory, object),
                Wrapper::Process => PROCESS.dealloc(memory, object),
                Wrapper::Large => LARGE.dealloc(memory, object),
                Wrapper::Every => EVERY.dealloc(memory, object),
                Wrapper::Cap => CAP.dealloc(memory, object),
                Wrapper::Thresher => THRESHER.dealloc(memory, object),
                Wrapper::Tracking => TRACKING.dealloc(memory, object),
                Wrapper::Naive => {
                    count_naive(-(object.size() as i64));
                    Inner.dealloc(memory, object);
                }
                Wrapper::Exact => {
                    let number = memory.add(object.size()).cast::<u32>().read_unaligned();
                    let (freed, bytes) = (&COUNTS[number as usize].freed, object.size() + NUMBER);
                    freed.begin(bytes);
                    fence(Ordering::SeqCst);
                    EVERY.dealloc(memory, whole(object));
                    fence(Ordering::SeqCst);
                    freed.end(bytes);
                }
            }
        }
    }
}
