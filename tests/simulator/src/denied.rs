//! Allocations that fail on purpose: the allocator of the program gives a thread so many blocks
//! more, then none.

// A global allocator is unsafe to write.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which refuses where it is told to.
struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

fn is_refused() -> bool {
    let left = LEFT.try_with(Cell::get).unwrap_or(u64::MAX);
    match left {
        u64::MAX => false,
        0 => {
            REFUSED.set(REFUSED.get() + 1);
            true
        }
        left => {
            LEFT.set(left - 1);
            false
        }
    }
}

/// Runs `work`, in which this thread gets so many allocations. Returns how many were refused.
pub(crate) fn after<R>(given: u64, work: impl FnOnce() -> R) -> (R, u64) {
    REFUSED.set(0);
    LEFT.set(given);
    let result = work();
    LEFT.set(u64::MAX);
    (result, REFUSED.get())
}

// SAFETY: the system's allocator, or null.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as the caller promises.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as the caller promises.
            unsafe { System.realloc(block, layout, size) }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}
