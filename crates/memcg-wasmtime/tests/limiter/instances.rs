//! Instances on a counter beside memory, and stores that end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Group, Limits, Runtime, Unit};
use memcg_wasmtime::{GroupLimiter, limit};
use wasmtime::{Engine, Func, Instance, Module, Store};

use super::{GUEST, Guest, PAGE, START, all_is_back, group_of};

#[test]
fn instances_are_counted_beside_memory() {
    let mut builder = Runtime::builder().audit(true);
    let counter = builder.counter("instances", Unit::Events);
    let runtime = builder.build().unwrap();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    acme.counter(counter).unwrap().set_max(3).unwrap();
    let limiter = GroupLimiter::new(&acme).instances(counter, 2).unwrap();
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST).unwrap();
    let mut store = Store::new(&engine, limiter);
    limit(&mut store, |limiter| limiter);
    for _ in 0..2 {
        Instance::new(&mut store, &module, &[]).unwrap();
    }
    let third = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert!(
        third.to_string().contains("instance count too high at 3"),
        "{third}"
    );
    assert_eq!(
        (acme.counter(counter).unwrap().live(), acme.live()),
        (2, 2 * START)
    );

    let refused = GroupLimiter::new(&acme).instances(counter, 2).unwrap_err();
    let said = refused.to_string();
    assert!(
        said.starts_with("/acme refused 2 of instances for /acme: short by 1"),
        "{said}"
    );
    let one = GroupLimiter::new(&acme).instances(counter, 1).unwrap();
    drop(store);
    assert_eq!((acme.counter(counter).unwrap().live(), acme.live()), (1, 0));
    drop(one);
    assert_eq!(acme.counter(counter).unwrap().live(), 0);
    all_is_back(&runtime);
}

/// Without a counter wasmtime's own bound holds, which is 10,000.
#[test]
fn instances_that_are_not_counted_are_many() {
    let (_runtime, acme) = group_of(u64::MAX);
    let limiter = GroupLimiter::new(&acme);
    let (sync, asynchronous): (
        &dyn wasmtime::ResourceLimiter,
        &dyn wasmtime::ResourceLimiterAsync,
    ) = (&limiter, &limiter);
    assert_eq!(
        (sync.instances(), asynchronous.instances()),
        (10_000, 10_000)
    );
}

/// Says what its group has when it is dropped.
struct LastLook(Group, Arc<AtomicU64>);

impl Drop for LastLook {
    fn drop(&mut self) {
        self.1.store(self.0.live(), Ordering::SeqCst);
    }
}

/// A host function goes with the store's memories, after the store's data.
fn store_with_last_look(
    acme: &Group,
    by_hand: bool,
) -> (Store<(GroupLimiter, LastLook)>, [Arc<AtomicU64>; 2]) {
    let [data, function]: [Arc<AtomicU64>; 2] =
        [u64::MAX; 2].map(|none| Arc::new(AtomicU64::new(none)));
    let engine = Engine::default();
    let look = LastLook(acme.clone(), function.clone());
    let mut store = Store::new(
        &engine,
        (
            GroupLimiter::new(acme),
            LastLook(acme.clone(), data.clone()),
        ),
    );
    if by_hand {
        store.limiter(|data| &mut data.0);
    } else {
        limit(&mut store, |data| &mut data.0);
    }
    Func::wrap(&mut store, move || assert!(!look.0.is_offline()));
    Instance::new(&mut store, &Module::new(&engine, GUEST).unwrap(), &[]).unwrap();
    (store, [data, function])
}

#[test]
fn the_charge_outlives_the_memory() {
    let (runtime, acme) = group_of(4 * PAGE);
    let read = |looks: [Arc<AtomicU64>; 2]| looks.map(|look| look.load(Ordering::SeqCst));
    let (store, looks) = store_with_last_look(&acme, false);
    drop(store);
    assert_eq!(read(looks), [START, START]);
    assert_eq!(acme.live(), 0);

    // wasmtime's own method: the data goes first, and the charge with it.
    let (store, looks) = store_with_last_look(&acme, true);
    drop(store);
    assert_eq!(read(looks), [0, 0]);

    // The data goes on alone, and the limiter with it.
    let (store, looks) = store_with_last_look(&acme, false);
    let data = store.into_data();
    assert_eq!(
        (looks[1].load(Ordering::SeqCst), acme.live()),
        (START, START)
    );
    drop(data);
    all_is_back(&runtime);
}

#[test]
fn a_refused_instance_leaves_its_first_memories_charged() {
    let (runtime, acme) = group_of(4 * PAGE);
    let engine = Engine::default();
    let mut store = Store::new(&engine, GroupLimiter::new(&acme));
    limit(&mut store, |limiter| limiter);
    let two = Module::new(&engine, "(module (memory 3) (memory 3))").unwrap();
    assert!(Instance::new(&mut store, &two, &[]).is_err());
    assert_eq!(acme.live(), 3 * PAGE);
    drop(store);
    all_is_back(&runtime);
    assert!(Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).is_ok());
}
