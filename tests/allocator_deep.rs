#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that charges far below the root, and guards itself against nothing: a charge
//! allocates at most what a first charge needs, and never for the depth of its walk.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::OnceLock;

use memcg::{Bytes, Charge, Group, Limits, Runtime};

/// Charges what a thread allocates while it says so.
struct Charging;

static GROUP: OnceLock<Group> = OnceLock::new();

/// Allocations of a thread that are being charged, one within the other.
#[derive(Clone, Copy, Default)]
struct Nested {
    now: usize,
    most: usize,
    charged: u64,
}

thread_local! {
    static NESTED: Cell<Option<Nested>> = const { Cell::new(None) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Charging {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let (Some(group), Some(nested)) = (GROUP.get(), NESTED.get()) {
            let now = nested.now + 1;
            assert!(now < 50, "each charge allocates, and that is charged");
            NESTED.set(Some(Nested {
                now,
                most: nested.most.max(now),
                charged: nested.charged + 1,
            }));
            drop(group.charge(Bytes(layout.size() as u64)));
            NESTED.set(NESTED.get().map(|nested| Nested {
                now: nested.now - 1,
                ..nested
            }));
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

const DEPTH: usize = 40;

#[test]
fn a_deep_walk_allocates_nothing() {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("a configuration");
    let mut groups = vec![runtime.root().create("top", Limits::new()).expect("a name")];
    for depth in 1..DEPTH {
        // A walk looks again at three levels: a peak at each, a mark at some, and a limit that is
        // only observed.
        let limits = [Limits::new(), Limits::new().high(1), Limits::new().max(1)][depth % 3];
        let group = groups[depth - 1].create("below", limits).expect("a name");
        group.set_observe_only(true);
        groups.push(group);
    }
    let deepest = groups.last().expect("there are some").clone();
    assert!(GROUP.set(deepest.clone()).is_ok());
    // Each group counts its first event, which takes memory once.
    drop(deepest.charge(100).expect("no max acts"));
    let nested = std::thread::scope(|scope| {
        let work = || {
            NESTED.set(Some(Nested::default()));
            // Each charge is above all before it, so each level has a new peak. The memory stays
            // charged.
            let held: Vec<Charge> = (1..200)
                .map(|count| deepest.charge(count * 1_000).expect("as above"))
                .collect();
            for size in 1..200_usize {
                drop(black_box(vec![0_u8; size * 1_000]));
            }
            let nested = NESTED.take().expect("set above");
            drop(held);
            nested
        };
        scope.spawn(work).join().expect("no charge panics")
    });
    assert!(
        nested.charged >= 199,
        "{} charges of the allocator",
        nested.charged
    );
    assert_eq!(nested.most, 1, "a charge allocates");
    assert_eq!(nested.now, 0);
    let peaks: Vec<u64> = groups.iter().map(Group::peak).collect();
    assert!(
        peaks[0] >= 199 * 200 / 2 * 1_000 && peaks.iter().all(|&peak| peak == peaks[0]),
        "{peaks:?}"
    );
    assert_eq!((runtime.root().live(), runtime.counts().underflows), (0, 0));
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
}
