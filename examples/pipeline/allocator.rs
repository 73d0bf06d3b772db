//! The global allocator of the program: one of several, which the environment names before the first allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use cap::Cap;
use memcg_alloc::{EVERY_OBJECT, MemcgAlloc, PROCESS_ONLY};

/// Names the allocator of a run.
pub(crate) const VARIABLE: &CStr = c"PIPELINE_ALLOCATOR";

/// Groups that the program counts for itself; number 0 stands for none.
pub(crate) const GROUPS: usize = 21;

/// What wraps the system's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wrapper {
    /// Nothing does.
    Bare = 1,
    /// `memcg-alloc`, for the process only.
    Process,
    /// `memcg-alloc` as it is by default: objects from 1 KiB are owned.
    Default,
    /// `memcg-alloc`: every object is owned.
    Every,
    /// The same beside exact counts of what each group owns.
    Exact,
    /// The crate `cap`: one count for the process.
    Cap,
    /// Each allocation and each free is that of the group that runs.
    Naive,
}

impl Wrapper {
    pub(crate) const ALL: [Wrapper; 7] = [
        Wrapper::Bare,
        Wrapper::Process,
        Wrapper::Default,
        Wrapper::Every,
        Wrapper::Exact,
        Wrapper::Cap,
        Wrapper::Naive,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Wrapper::Bare => "bare",
            Wrapper::Process => "process",
            Wrapper::Default => "default",
            Wrapper::Every => "every",
            Wrapper::Exact => "exact",
            Wrapper::Cap => "cap",
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
            if text.is_null() { c"default" } else { CStr::from_ptr(text) }
        };
        let is_named = |wrapper: &Wrapper| wrapper.name().as_bytes() == named.to_bytes();
        let chosen = Wrapper::ALL.into_iter().find(is_named).unwrap_or(Wrapper::Default);
        CHOSEN.store(chosen as u8, Ordering::Relaxed);
        chosen
    }
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);
static PROCESS: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);
static DEFAULT: MemcgAlloc<System> = MemcgAlloc::new(System);
static EVERY: MemcgAlloc<System, EVERY_OBJECT> = MemcgAlloc::with_threshold(System);
static CAP: Cap<System> = Cap::new(System, usize::MAX);

thread_local! {
    /// The number of the group that runs on this thread, as the program knows it.
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

/// What the program counts for one group.
pub(crate) struct OwnCounts {
    pub(crate) allocated: AtomicU64,
    pub(crate) freed: AtomicU64,
    /// What a count has that takes frees for those of the group that runs.
    pub(crate) naive: AtomicI64,
}

pub(crate) static COUNTS: [OwnCounts; GROUPS] =
    [const { OwnCounts { allocated: AtomicU64::new(0), freed: AtomicU64::new(0), naive: AtomicI64::new(0) } }; GROUPS];

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
                Wrapper::Bare => System.alloc(object),
                Wrapper::Process => PROCESS.alloc(object),
                Wrapper::Default => DEFAULT.alloc(object),
                Wrapper::Every => EVERY.alloc(object),
                Wrapper::Cap => CAP.alloc(object),
                Wrapper::Naive => {
                    count_naive(object.size() as i64);
                    System.alloc(object)
                }
                Wrapper::Exact => {
                    let memory = EVERY.alloc(whole(object));
                    if !memory.is_null() {
                        // What the crate allocates for itself has no owner, wherever it runs: the word behind is 0.
                        let is_owned = memory.add(whole(object).size()).cast::<u32>().read_unaligned() != 0;
                        let number = if is_owned { RUNS.get() } else { 0 };
                        memory.add(object.size()).cast::<u32>().write_unaligned(number);
                        let bytes = (object.size() + NUMBER) as u64;
                        COUNTS[number as usize].allocated.fetch_add(bytes, Ordering::AcqRel);
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
                Wrapper::Bare => System.realloc(memory, object, size),
                Wrapper::Process => PROCESS.realloc(memory, object, size),
                Wrapper::Default => DEFAULT.realloc(memory, object, size),
                Wrapper::Every => EVERY.realloc(memory, object, size),
                Wrapper::Cap => CAP.realloc(memory, object, size),
                Wrapper::Naive => {
                    count_naive(size as i64 - object.size() as i64);
                    System.realloc(memory, object, size)
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
                Wrapper::Bare => System.dealloc(memory, object),
                Wrapper::Process => PROCESS.dealloc(memory, object),
                Wrapper::Default => DEFAULT.dealloc(memory, object),
                Wrapper::Every => EVERY.dealloc(memory, object),
                Wrapper::Cap => CAP.dealloc(memory, object),
                Wrapper::Naive => {
                    count_naive(-(object.size() as i64));
                    System.dealloc(memory, object);
                }
                Wrapper::Exact => {
                    let number = memory.add(object.size()).cast::<u32>().read_unaligned();
                    EVERY.dealloc(memory, whole(object));
                    COUNTS[number as usize].freed.fetch_add((object.size() + NUMBER) as u64, Ordering::AcqRel);
                }
            }
        }
    }
}
