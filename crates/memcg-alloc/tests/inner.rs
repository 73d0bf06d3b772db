//! The calls on the inner allocator: each method for the same one of it, with the layout that has
//! the word.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Mutex;

use memcg::{Limits, Runtime};
use memcg_alloc::{EVERY_OBJECT, LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};

/// The bytes that no group owns are the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Alloc(usize, usize),
    Zeroed(usize, usize),
    Free(usize, usize),
    Realloc(usize, usize),
}

#[derive(Default)]
struct Inner {
    last: Cell<Option<Call>>,
    refuses: Cell<bool>,
}

impl Inner {
    fn note(&self, call: Call) -> bool {
        self.last.set(Some(call));
        !self.refuses.get()
    }
}

// SAFETY: the system's allocator does the work. The optimiser must not leave it out: an allocation
// that it leaves out is never refused.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Inner {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let asks = self.note(Call::Alloc(layout.size(), layout.align()));
        if asks {
            // SAFETY: the caller's promise.
            black_box(unsafe { System.alloc(layout) })
        } else {
            std::ptr::null_mut()
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let asks = self.note(Call::Zeroed(layout.size(), layout.align()));
        if asks {
            // SAFETY: the caller's promise.
            black_box(unsafe { System.alloc_zeroed(layout) })
        } else {
            std::ptr::null_mut()
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.note(Call::Free(layout.size(), layout.align()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let asks = self.note(Call::Realloc(layout.size(), size));
        if asks {
            // SAFETY: the caller's promise.
            unsafe { System.realloc(memory, layout, size) }
        } else {
            std::ptr::null_mut()
        }
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// Runs all methods between two sizes; `words` are the bytes that each size is asked for beyond its
/// own.
#[allow(unsafe_code)]
fn run<const FROM: usize>(sizes: [usize; 2], words: [usize; 2]) {
    let allocator: MemcgAlloc<Inner, FROM> = MemcgAlloc::with_threshold(Inner::default());
    let inner = allocator.inner();
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    let before = memcg_alloc::unowned_bytes();
    let [first, second] = sizes;
    let [first_whole, second_whole] = [first + words[0], second + words[1]];
    let charged = |size: usize, word: usize| {
        let (owned, unowned) = if word > 0 { (size, 0) } else { (0, size) };
        assert_eq!(group.live(), owned as u64);
        assert_eq!(memcg_alloc::unowned_bytes(), before + unowned as u64);
    };
    // SAFETY: each block is used within its size, and freed once with its layout.
    group.run(|| unsafe {
        let memory = allocator.alloc(layout(first));
        assert_eq!(inner.last.get(), Some(Call::Alloc(first_whole, 16)));
        charged(first, words[0]);
        memory.write_bytes(7, first);

        inner.refuses.set(true);
        assert!(allocator.realloc(memory, layout(first), second).is_null());
        assert!(allocator.alloc(layout(second)).is_null());
        assert!(allocator.alloc_zeroed(layout(second)).is_null());
        charged(first, words[0]);
        inner.refuses.set(false);

        let memory = allocator.realloc(memory, layout(first), second);
        assert_eq!(
            inner.last.get(),
            Some(Call::Realloc(first_whole, second_whole))
        );
        charged(second, words[1]);
        assert!((0..first.min(second)).all(|at| memory.add(at).read() == 7));
        allocator.dealloc(memory, layout(second));
        assert_eq!(inner.last.get(), Some(Call::Free(second_whole, 16)));
        charged(0, words[1]);

        let zeroed = allocator.alloc_zeroed(layout(second));
        assert_eq!(inner.last.get(), Some(Call::Zeroed(second_whole, 16)));
        assert!((0..second).all(|at| zeroed.add(at).read() == 0));
        allocator.dealloc(zeroed, layout(second));
    });
    charged(0, 0);
}

#[test]
fn each_method_is_that_of_the_inner_allocator() {
    let _alone = ALONE.lock();
    let below = LARGE_OBJECTS - 1;
    let at = LARGE_OBJECTS;
    for (sizes, words) in [
        ([below, at], [0, 4]),
        ([at, below], [4, 0]),
        ([at, 2 * at], [4, 4]),
        ([2 * at, at], [4, 4]),
        ([10, below], [0, 0]),
        ([below, 10], [0, 0]),
    ] {
        run::<LARGE_OBJECTS>(sizes, words);
        run::<EVERY_OBJECT>(sizes, [4, 4]);
        run::<PROCESS_ONLY>(sizes, [0, 0]);
    }
}

/// A size whose word would not fit is refused, and counted nowhere; the object stays what it was.
#[test]
#[allow(unsafe_code)]
fn sizes_near_the_largest_are_refused() {
    fn check<const FROM: usize>(most: usize) {
        let allocator: MemcgAlloc<Inner, FROM> = MemcgAlloc::with_threshold(Inner::default());
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime.root().create("g", Limits::new()).unwrap();
        let before = memcg_alloc::unowned_bytes();
        // SAFETY: the blocks are freed with their layouts; a refused realloc keeps its block.
        group.run(|| unsafe {
            for align in [1, 16, 4_096] {
                let largest = isize::MAX as usize - (align - 1);
                let layout = |size| Layout::from_size_align(size, align).unwrap();
                for size in largest - most..=largest {
                    assert!(allocator.alloc(layout(size)).is_null());
                    assert!(allocator.alloc_zeroed(layout(size)).is_null());
                    for before in [10, 5_000] {
                        let memory = allocator.alloc(layout(before));
                        assert!(allocator.realloc(memory, layout(before), size).is_null());
                        allocator.dealloc(memory, layout(before));
                    }
                }
            }
        });
        assert_eq!((group.live(), memcg_alloc::unowned_bytes()), (0, before));
    }
    let _alone = ALONE.lock();
    check::<LARGE_OBJECTS>(9);
    check::<EVERY_OBJECT>(9);
    check::<PROCESS_ONLY>(9);
}
