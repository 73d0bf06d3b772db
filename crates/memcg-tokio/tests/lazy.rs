//! Lazy state of tokio: the group whose work needs it first does not pay for it. A program of its own,
//! with an allocator that charges groups, and one test.

use std::alloc::System;
use std::sync::{Arc, Mutex};

use memcg::{Group, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use memcg_tokio::spawn_blocking_in;

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);

/// Bytes that the group holds, with those that threads have not written down yet.
fn live(group: &Group) -> u64 {
    memcg_alloc::catch_up();
    group.live()
}

#[test]
fn a_group_pays_for_its_work_and_for_no_thread_of_tokio() {
    const CAPTURED: usize = 100_000;
    const WORKS: usize = 100;
    let runtime = Runtime::builder().build().unwrap();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(2)
        .build()
        .unwrap();
    // It makes no thread-local, as the wait for a message would.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    // A task of the tenant starts both threads, and lets the queue of the others grow.
    let works: Vec<_> = acme.run(|| {
        let _guard = tokio.enter();
        (0..WORKS)
            .map(|_| {
                let captured = [1_u8; CAPTURED];
                let gate = Arc::clone(&gate);
                spawn_blocking_in(&acme, move || {
                    drop(gate.lock().unwrap());
                    captured.iter().map(|&one| usize::from(one)).sum::<usize>()
                })
            })
            .collect()
    });
    let held = live(&acme);
    assert!(
        held >= (WORKS * CAPTURED) as u64,
        "{held} bytes: the group has what its work has captured"
    );
    drop(closed);
    for work in works {
        assert_eq!(tokio.block_on(work).unwrap(), CAPTURED);
    }
    // The threads are there, and idle.
    assert_eq!(live(&acme), 0);
    drop(tokio);
    assert_eq!(live(&acme), 0);
}
