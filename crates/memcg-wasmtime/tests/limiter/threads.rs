//! Many stores on many threads.

use std::sync::mpsc;
use std::thread;

use memcg::{Bytes, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, limit};
use wasmtime::{Engine, Instance, InstancePre, Linker, Module, Store};

use super::{GUEST, PAGE, START, all_is_back};

const THREADS: usize = 4;
const INSTANCES: usize = 10_000;

fn start(
    engine: &Engine,
    guest: &InstancePre<GroupLimiter>,
    limiter: GroupLimiter,
) -> (Store<GroupLimiter>, Instance) {
    let mut store = Store::new(engine, limiter);
    limit(&mut store, |limiter| limiter);
    let instance = guest.instantiate(&mut store).expect("room for one guest");
    (store, instance)
}

/// 10,000 instances of four tenants come and go on four threads; every second store ends on another
/// thread.
#[test]
fn instances_come_and_go() {
    let runtime = Runtime::builder().audit(true).max(1 << 30).build().unwrap();
    let engine = Engine::default();
    let guest = Linker::new(&engine)
        .instantiate_pre(&Module::new(&engine, GUEST).unwrap())
        .unwrap();
    let tenants: Vec<_> = (0..THREADS)
        .map(|number| {
            runtime
                .root()
                .create(
                    &*format!("tenant{number}"),
                    Limits::new().max(Bytes(8 * PAGE)),
                )
                .unwrap()
        })
        .collect();
    let (others, ends) = mpsc::sync_channel::<Store<GroupLimiter>>(1);
    let mut refused = 0;
    let mut grown = 0;
    thread::scope(|scope| {
        scope.spawn(|| ends.into_iter().for_each(drop));
        let work = tenants.iter().map(|tenant| {
            let engine = &engine;
            let guest = &guest;
            let others = others.clone();
            scope.spawn(move || {
                let mut refused = 0;
                let mut grown = 0;
                for number in 0..INSTANCES / THREADS {
                    let (mut store, instance) = start(engine, guest, GroupLimiter::new(tenant));
                    let grow = instance
                        .get_typed_func::<i32, i32>(&mut store, "grow")
                        .unwrap();
                    // One page fits beside what other stores of the tenant have, ten never do.
                    for pages in [1, 10] {
                        match grow.call(&mut store, pages).unwrap() {
                            -1 => refused += 1,
                            1 => grown += 1,
                            other => panic!("{other} pages before"),
                        }
                    }
                    assert_eq!(store.data().bytes(), START + PAGE);
                    if number % 2 == 0 {
                        others.send(store).unwrap();
                    }
                }
                (refused, grown)
            })
        });
        for tenant in work.collect::<Vec<_>>() {
            let (no, yes) = tenant.join().unwrap();
            refused += no;
            grown += yes;
        }
        drop(others);
    });
    assert_eq!((refused, grown), (INSTANCES, INSTANCES));
    for tenant in &tenants {
        assert_eq!(
            (tenant.live(), tenant.refused_count()),
            (0, (INSTANCES / THREADS) as u64)
        );
    }
    runtime.release_idle_credit();
    all_is_back(&runtime);
}

/// All stores of a tenant share one max, whatever thread they grow on.
#[test]
fn stores_share_the_max_of_their_tenant() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(Bytes(100 * (PAGE + 16))))
        .unwrap();
    let engine = Engine::default();
    let guest = Linker::new(&engine)
        .instantiate_pre(&Module::new(&engine, GUEST).unwrap())
        .unwrap();
    let started = [(); THREADS].map(|()| start(&engine, &guest, GroupLimiter::new(&acme)));
    let stores = thread::scope(|scope| {
        let threads = started.map(|(mut store, instance)| {
            scope.spawn(move || {
                let grow = instance
                    .get_typed_func::<i32, i32>(&mut store, "grow")
                    .unwrap();
                let mut pages = 1;
                while grow.call(&mut store, 1).unwrap() != -1 {
                    pages += 1;
                }
                (store, pages)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let pages: u64 = stores.iter().map(|(_, pages)| pages).sum();
    assert_eq!(acme.live(), pages * PAGE + THREADS as u64 * 16);
    assert_eq!(pages, 100);
    drop(stores);
    all_is_back(&runtime);
}
