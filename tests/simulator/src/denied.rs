//! Allocations that fail on purpose: the allocator of the program gives a thread so many blocks
//! more, then none.

// A global allocator is unsafe to write.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
    static OWN: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that are allocated now.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the heap that are allocated, by the program and by the crate.
pub(crate) fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// Bytes that this thread has allocated, less those that it has freed.
pub(crate) fn own() -> isize {
    OWN.get()
}

fn moves(bytes: isize) {
    // Not where the thread is about to end.
    let _ = OWN.try_with(|own| own.set(own.get() + bytes));
}

/// Counts a block that was given, or not.
fn given(block: *mut u8, bytes: usize) -> *mut u8 {
    if !block.is_null() {
        IN_USE.fetch_add(bytes, Ordering::Relaxed);
        moves(bytes.cast_signed());
    }
    block
}

/// Counts a block that has gone.
fn gone(bytes: usize) {
    IN_USE.fetch_sub(bytes, Ordering::Relaxed);
    moves(-bytes.cast_signed());
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
            given(unsafe { System.alloc(layout) }, layout.size())
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as the caller promises.
            given(unsafe { System.alloc_zeroed(layout) }, layout.size())
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: as the caller promises.
            let moved = given(unsafe { System.realloc(block, layout, size) }, size);
            if !moved.is_null() {
                gone(layout.size());
            }
            moved
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        gone(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}
