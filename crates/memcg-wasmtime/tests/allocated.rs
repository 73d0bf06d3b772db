//! With `memcg-alloc` the host's own allocations for a store are its group's.

use std::alloc::System;
use std::thread;

use memcg::{Group, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use memcg_wasmtime::{GroupLimiter, limit};
use wasmtime::{Engine, Instance, Module, Store};

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);

/// A host keeps 1 MiB for each guest.
struct State {
    limiter: GroupLimiter,
    rows: Vec<u8>,
}

fn start(engine: &Engine, module: &Module, group: &Group) -> Store<State> {
    let state = State {
        limiter: GroupLimiter::new(group),
        rows: vec![7; 1 << 20],
    };
    let mut store = Store::new(engine, state);
    limit(&mut store, |state| &mut state.limiter);
    Instance::new(&mut store, module, &[]).expect("room");
    store
}

#[test]
fn what_the_host_allocates_for_a_store_is_its_groups() {
    let runtime = Runtime::builder().build().unwrap();
    let [first, acme] =
        ["first", "acme"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let engine = Engine::default();
    let module = Module::new(&engine, "(module (memory 2) (table 1000 funcref))").unwrap();
    // The first store allocates things that wasmtime keeps for all stores.
    drop(first.run(|| start(&engine, &module, &first)));

    let store = acme.run(|| start(&engine, &module, &acme));
    let charged = (2 << 16) + 8_000;
    let live = acme.live();
    let limiter = store.data().limiter.bytes();
    assert_eq!(limiter, charged);
    // The rows; and the table once more, which the allocator sees.
    let allocated = live - limiter;
    assert!(
        allocated > (1 << 20) + 8_000 && allocated < (1 << 20) + 64_000,
        "{allocated}"
    );
    assert_eq!(store.data().rows[9], 7);
    // On whatever thread.
    thread::spawn(move || drop(store)).join().unwrap();
    memcg::allocator::catch_up();
    assert_eq!(acme.live(), 0);
}
