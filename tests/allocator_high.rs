#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that charges, inside the charge of a thread above high: that one is delayed
//! all the same.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;

use memcg::{Bytes, Group, Limits, OnFull, Runtime};

/// Charges what a thread allocates while it says so.
struct Charging;

static GROUP: OnceLock<Group> = OnceLock::new();

thread_local! {
    /// The number of this thread's charged allocations; `None` while they are not charged.
    static CHARGED: Cell<Option<u64>> = const { Cell::new(None) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Charging {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let (Some(group), Some(before)) = (GROUP.get(), CHARGED.get()) {
            drop(group.charge(Bytes(layout.size() as u64)));
            CHARGED.set(Some(before + 1));
        }
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Charging = Charging;

#[test]
fn an_allocators_charge_does_not_take_the_delay() {
    let runtime = Runtime::builder()
        .adaptive(false)
        .build()
        .expect("a configuration");
    let top = runtime
        .root()
        .create("q", Limits::new().high(1 << 20))
        .expect("a name");
    assert!(GROUP.set(top.clone()).is_ok());
    // A first charge opens a stock. The runtime's list of these doubles now and then, under a lock.
    let groups: Vec<Group> = (0..20_u64)
        .map(|number| top.create(number, Limits::new()).expect("a name"))
        .collect();
    let held = top.force_charge(4 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut nested = 0;
            for group in &groups {
                CHARGED.set(Some(0));
                let charged = group.charge_with(1 << 20, OnFull::Reclaim);
                let inside = CHARGED.take().expect("set above");
                let charge = charged.expect("no max");
                assert!(
                    !group.inspect().high_delay(1 << 20).is_zero(),
                    "{inside} allocations inside"
                );
                drop(charge);
                nested += inside;
            }
            assert!(nested > 0, "nothing was allocated inside");
        });
    });
    drop(held);
    assert_eq!((runtime.root().live(), runtime.counts().underflows), (0, 0));
}
