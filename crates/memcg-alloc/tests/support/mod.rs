//! Groups beside exact counts of what they own.
#![allow(dead_code, reason = "each test uses some")]

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memcg::{Group, Limits, Runtime};

/// One test at a time. What allocators leave is the process's: a thread of another test may have
/// taken it, and be about to do it, while this test looks for what it has done.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that the process's allocator has really handed out. The optimiser may leave out the
/// allocation of a vector that is dropped and never read, and with it the charge that a test looks
/// for; this one it cannot.
pub(crate) fn bytes(value: u8, count: usize) -> Vec<u8> {
    black_box(vec![value; count])
}

/// A group, and the bytes that it owns as the test counts them. Each count is made twice, before
/// and after the allocator counts, and only grows. So a reader knows bounds that hold while threads
/// allocate.
pub(crate) struct Counted {
    pub(crate) group: Group,
    allocating: AtomicU64,
    allocated: AtomicU64,
    freeing: AtomicU64,
    freed: AtomicU64,
}

impl Counted {
    pub(crate) fn new(parent: &Group, name: &str) -> Counted {
        Counted::of(parent.create(name, Limits::new()).unwrap())
    }

    pub(crate) fn of(group: Group) -> Counted {
        let [allocating, allocated, freeing, freed] = std::array::from_fn(|_| AtomicU64::new(0));
        Counted {
            group,
            allocating,
            allocated,
            freeing,
            freed,
        }
    }

    /// Runs `work`, which allocates so many bytes of the group; fewer than 0 are freed.
    pub(crate) fn change<R>(&self, bytes: i64, work: impl FnOnce() -> R) -> R {
        let [before, after] = if bytes < 0 {
            [&self.freeing, &self.freed]
        } else {
            [&self.allocating, &self.allocated]
        };
        before.fetch_add(bytes.unsigned_abs(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = work();
        fence(Ordering::SeqCst);
        after.fetch_add(bytes.unsigned_abs(), Ordering::SeqCst);
        result
    }

    /// The bytes that the group owns, where no thread allocates meanwhile.
    pub(crate) fn owned(&self) -> u64 {
        self.allocated
            .load(Ordering::SeqCst)
            .checked_sub(self.freed.load(Ordering::SeqCst))
            .unwrap()
    }

    /// The result of `read`, and the least and the most that it may be.
    pub(crate) fn between<R>(&self, read: impl FnOnce() -> R) -> (R, RangeInclusive<u64>) {
        let allocated = self.allocated.load(Ordering::SeqCst);
        let freed = self.freed.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = read();
        fence(Ordering::SeqCst);
        let allocating = self.allocating.load(Ordering::SeqCst);
        let freeing = self.freeing.load(Ordering::SeqCst);
        (
            result,
            allocated.saturating_sub(freeing)..=allocating.checked_sub(freed).unwrap(),
        )
    }

    #[track_caller]
    pub(crate) fn assert_exact(&self) {
        assert_eq!(
            self.group.live(),
            self.owned(),
            "live of {}, and the test's count",
            self.group.path()
        );
    }
}

/// An object of an allocator, and who owns it. Its bytes hold a pattern.
pub(crate) struct Object {
    memory: NonNull<u8>,
    pub(crate) layout: Layout,
    pub(crate) owner: usize,
    pattern: u8,
}

// SAFETY: the memory is the object's alone.
#[allow(unsafe_code)]
unsafe impl Send for Object {}

#[allow(unsafe_code, reason = "a global allocator has no safe form")]
impl Object {
    pub(crate) fn allocate(
        from: &impl GlobalAlloc,
        size: usize,
        align: usize,
        owner: usize,
        zeroed: bool,
    ) -> Object {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the layout has a size.
        let memory = unsafe {
            if zeroed {
                from.alloc_zeroed(layout)
            } else {
                from.alloc(layout)
            }
        };
        let memory = NonNull::new(black_box(memory)).expect("memory");
        assert_eq!(memory.as_ptr().addr() % align, 0, "aligned to {align}");
        let mut object = Object {
            memory,
            layout,
            owner,
            pattern: 0,
        };
        if zeroed {
            object.assert_pattern(size);
        }
        object.fill();
        object
    }

    fn fill(&mut self) {
        self.pattern = (self.memory.as_ptr().addr() >> 4) as u8 | 1;
        // SAFETY: the memory is the object's, of that size.
        unsafe {
            self.memory
                .as_ptr()
                .write_bytes(self.pattern, self.layout.size())
        };
    }

    #[track_caller]
    fn assert_pattern(&self, size: usize) {
        // SAFETY: the memory is the object's, of at least that size, and was written.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), size) };
        assert!(
            bytes.iter().all(|&byte| byte == self.pattern),
            "an object of {size} bytes was overwritten"
        );
    }

    pub(crate) fn resize(&mut self, from: &impl GlobalAlloc, size: usize) {
        // SAFETY: allocated with this layout, and not freed.
        let memory = unsafe { from.realloc(self.memory.as_ptr(), self.layout, size) };
        self.memory = NonNull::new(memory).expect("memory");
        assert_eq!(memory.addr() % self.layout.align(), 0);
        let kept = size.min(self.layout.size());
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.assert_pattern(kept);
        self.fill();
    }

    pub(crate) fn free(self, to: &impl GlobalAlloc) {
        self.assert_pattern(self.layout.size());
        // SAFETY: allocated with this layout, and not freed.
        unsafe { to.dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// No group of the runtime is left but its root, and nothing is charged.
#[track_caller]
pub(crate) fn assert_all_gone(runtime: &Runtime) {
    memcg::allocator::catch_up();
    runtime.settle();
    runtime.root().memory().drain();
    assert_eq!((runtime.dying_count(), runtime.group_count()), (0, 1));
    assert_eq!(
        (runtime.root().usage(), runtime.counts().underflows),
        (0, 0)
    );
    assert!(runtime.verify().is_ok(), "{:?}", runtime.verify());
}
