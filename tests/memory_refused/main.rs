//! Memory that is refused: `create` says so, nothing is lost, and it works again once there is
//! some.
//!
//! * here: an allocator that refuses, and what must be as it was; `allocations`: from the first,
//!   the second, … of one call on; `pages`: to one thread by a seccomp filter, to all by a limit of
//!   the address space; `first_use`: of what comes with its first use, where no caller gets an
//!   error; `delays`: a thread in the place of memory.
//!
//! Each test starts this program again for itself alone.
//!
//! Linux refuses memory here: on other systems this program is empty.
#![cfg(all(not(loom), target_os = "linux"))]
#![allow(
    unsafe_code,
    reason = "neither a global allocator nor a limit of the process has a safe form"
)]

#[path = "../support/mod.rs"]
mod support;

mod allocations;
mod delays;
mod first_use;
mod pages;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memcg::errors::CreateError;
use memcg::{Group, Runtime};

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// The system's, as long as it gives anything.
struct Refusing;

thread_local! {
    /// So many more on this thread, then none.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

fn is_refused() -> bool {
    let left = LEFT.get();
    if left == 0 {
        REFUSED.set(REFUSED.get() + 1);
    } else if left < u64::MAX {
        LEFT.set(left - 1);
    }
    left == 0
}

/// Runs `work` with so many allocations on this thread. How many were refused.
fn with_allocations<R>(given: u64, work: impl FnOnce() -> R) -> (R, u64) {
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

/// Runs `body` in a process that runs nothing else, and prints how often it was refused.
fn alone(name: &str, body: impl FnOnce()) {
    support::alone::alone(name, &[" refused"], body);
}

/// The state that a refused `create` must leave as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    groups: usize,
    dying: usize,
    children: usize,
    usage: u64,
    /// Objects of all pools.
    live: Vec<u64>,
}

/// Objects in use, of each pool.
fn live(runtime: &Runtime) -> Vec<u64> {
    runtime.pools().rows().iter().map(|row| row.live).collect()
}

impl State {
    fn of(runtime: &Runtime, parent: &Group) -> State {
        State {
            groups: runtime.group_count(),
            dying: runtime.dying_count(),
            children: parent.children().len(),
            usage: runtime.root().usage(),
            live: live(runtime),
        }
    }
}

/// The error's line.
#[track_caller]
fn assert_says(refused: &CreateError, of: &Group) {
    let CreateError::Memory { parent, bytes } = refused else {
        panic!("{refused}")
    };
    assert!(parent == of && *bytes > 0, "{refused}");
    let text = refused.to_string();
    assert!(text.contains(&of.path()) && !text.contains('\n'), "{text}");
}
