//! What others put round an allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

use tracking_allocator::{AllocationGroupId, AllocationGroupToken, AllocationRegistry, AllocationTracker};

/// The usual wrapper by hand: each malloc is charged to the thread's group, each free goes to the group of the thread
/// that frees. It counts wrong where another group frees, and costs nothing to find the group.
pub(crate) struct Naive<A>(pub(crate) A);

static BYTES: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static GROUP: Cell<Option<&'static AtomicI64>> = const { Cell::new(None) };
}

fn add(bytes: usize, sign: i64) {
    if let Some(group) = GROUP.get() {
        group.fetch_add(bytes as i64 * sign, Ordering::Relaxed);
    }
}

// SAFETY: each call is handed on.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Naive<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size, 1);
        add(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(memory, layout, size) }
    }
}

/// An exact count for each group of tracking-allocator: the least that a tracker can do.
struct Tracker;

const GROUPS: usize = 64;
static TRACKED: [AtomicI64; GROUPS] = [const { AtomicI64::new(0) }; GROUPS];

fn track(group: &AllocationGroupId, bytes: i64) {
    TRACKED[group.as_usize().get() % GROUPS].fetch_add(bytes, Ordering::Relaxed);
}

impl AllocationTracker for Tracker {
    fn allocated(&self, _: usize, size: usize, _: usize, group: AllocationGroupId) {
        track(&group, size as i64);
    }

    fn deallocated(&self, _: usize, size: usize, _: usize, source: AllocationGroupId, _: AllocationGroupId) {
        track(&source, -(size as i64));
    }
}

pub(crate) fn install() {
    AllocationRegistry::set_global_tracker(Tracker).expect("the first tracker");
    AllocationRegistry::enable_tracking();
}

/// Runs `work` in a group of each peer that knows groups.
pub(crate) fn within<R>(work: impl FnOnce() -> R) -> R {
    GROUP.set(Some(&BYTES));
    let mut token = AllocationGroupToken::register().expect("a number for a group");
    let entered = token.enter();
    let result = work();
    drop(entered);
    GROUP.set(None);
    result
}
