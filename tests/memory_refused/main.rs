#![cfg(all(not(loom), target_os = "linux"))]
#![allow(unsafe_code, reason = "neither a global allocator nor a limit of the process has a safe form")]
//! Memory that is refused: `create` says so, nothing is lost, and it works again once there is some.
//!
//! * here: an allocator that refuses, and what must be as it was; `allocations`: from the first, the second, … of one
//!   call on; `pages`: to one thread by a seccomp filter, to all by a limit of the address space; `first_use`: of what comes
//!   with its first use, where nobody can be told.
//!
//! Each test starts this program again for itself alone.

#[path = "../denials/mod.rs"]
mod denials;
#[path = "../workers/mod.rs"]
mod workers;

mod allocations;
mod first_use;
mod pages;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;

use memcg::{CreateError, Group, Runtime};

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
        // SAFETY: as the caller promises.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        if is_refused() { std::ptr::null_mut() } else { unsafe { System.realloc(block, layout, size) } }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Set in the process that a test started for itself.
const ALONE: &str = "MEMCG_REFUSED_ALONE";

/// Runs `body` in a process that runs nothing else, and prints what it printed. `name` is the test's own, with its
/// module.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let output = Command::new(std::env::current_exe().expect("a test program has a path"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .expect("a test program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}");
    stdout.lines().filter(|line| line.contains(" refused")).for_each(|line| println!("{line}"));
}

/// What a refused `create` must leave as it was.
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
            groups: runtime.groups(),
            dying: runtime.dying(),
            children: parent.children().len(),
            usage: runtime.root().usage(),
            live: live(runtime),
        }
    }
}

/// What the error says, in one line; whose name it may leave out where there was no memory for a copy.
#[track_caller]
fn assert_says(refused: &CreateError, of: &Group, named: &str) {
    let CreateError::Memory { parent, name, bytes } = refused else { panic!("{refused}") };
    assert!(parent == of && (name == named || name.is_empty()) && *bytes > 0, "{refused}");
    let text = refused.to_string();
    assert!(text.contains(&of.path()) && !text.contains('\n'), "{text}");
}
