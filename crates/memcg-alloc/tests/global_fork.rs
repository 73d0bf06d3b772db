//! A child after `fork` allocates and frees, and counts on.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "fork is a call of the system")]

mod support;

use std::alloc::System;
use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use support::bytes;

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

#[test]
fn a_child_counts_on() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("g", Limits::new().max(1 << 20))
        .unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread that allocates while the process is copied.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                group.run(|| drop(bytes(1, 500)));
            }
        });
        let child_group = runtime.root().create("child", Limits::new()).unwrap();
        for round in 0..20_usize {
            let before = child_group.run(|| bytes(0, 10_000 + round));
            // SAFETY: the child runs code of this test and the allocator only, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let held = child_group.run(|| {
                    (0..200)
                        .map(|at| bytes(at as u8, 1 + at * 10))
                        .collect::<Vec<_>>()
                });
                let mut right = child_group.live() >= 10_000 + round as u64 + 199_000;
                drop(held);
                right &= child_group.live() == 10_000 + round as u64;
                drop(before);
                right &= child_group.live() == 0;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if right { 0 } else { 1 }) };
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child has counted wrong or has died");
            drop(before);
            assert_eq!(child_group.live(), 0);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
}
