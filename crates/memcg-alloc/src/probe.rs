//! Finds out if the process's allocator is one of this crate.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::hint::black_box;

/// The largest size of a layout, which each allocator refuses: it takes a way that is rare, and
/// looks for the size there.
const PROBE: usize = isize::MAX as usize;

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the program's global allocator is a [`MemcgAlloc`](crate::MemcgAlloc). A service
/// that relies on it asserts this when it starts: nothing else fails where the allocator is not
/// linked.
///
/// ```
/// use std::alloc::System;
///
/// use memcg_alloc::{MemcgAlloc, is_installed};
///
/// #[global_allocator]
/// static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);
///
/// assert!(is_installed());
/// ```
#[allow(unsafe_code)]
pub fn is_installed() -> bool {
    SEEN.set(false);
    let Ok(layout) = Layout::from_size_align(black_box(PROBE), 1) else {
        return false;
    };
    // SAFETY: the layout has a size. An allocator that gives the memory gets it back.
    unsafe {
        let memory = black_box(alloc(layout));
        if !memory.is_null() {
            dealloc(memory, layout);
        }
    }
    SEEN.get()
}

/// An allocator refuses an object: it is too large for a word, or the inner allocator has no
/// memory. Returns null. It takes the size alone: more would be kept in registers over each call of
/// the inner allocator.
#[cold]
#[inline(never)]
pub(crate) fn refuse(size: usize) -> *mut u8 {
    if size == PROBE {
        SEEN.set(true);
    }
    std::ptr::null_mut()
}
