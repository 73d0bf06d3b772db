//! Stores that wait without a thread.

use std::time::Duration;

use memcg::{Bytes, ChargeError, Event, Group, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, WhenFull, limit_async};
use tokio::time::timeout;
use wasmtime::{Engine, Instance, Module, Store};

use super::{GUEST, PAGE, START, all_is_back};

const LONG: WhenFull = WhenFull::Wait(Duration::from_secs(600));
const SHORT: Duration = Duration::from_millis(20);

struct Guest {
    store: Store<GroupLimiter>,
    instance: Instance,
}

impl Guest {
    async fn new(limiter: GroupLimiter) -> wasmtime::Result<Guest> {
        let engine = Engine::default();
        let mut store = Store::new(&engine, limiter);
        limit_async(&mut store, |limiter| limiter);
        let instance = Instance::new_async(&mut store, &Module::new(&engine, GUEST)?, &[]).await?;
        Ok(Guest { store, instance })
    }

    async fn call(&mut self, name: &str, more: i32) -> wasmtime::Result<i32> {
        let function = self
            .instance
            .get_typed_func::<i32, i32>(&mut self.store, name)
            .expect("a function");
        function.call_async(&mut self.store, more).await
    }
}

fn budget() -> (Runtime, Group, Group) {
    let runtime = Runtime::builder()
        .audit(true)
        .max(Bytes(16 * PAGE))
        .build()
        .unwrap();
    let [acme, globex] =
        ["acme", "globex"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    (runtime, acme, globex)
}

async fn waiters(group: &Group, wanted: usize) {
    while group.waiting_count() != wanted {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_growth_waits_until_another_store_ends() {
    let (runtime, acme, globex) = budget();
    let mut first = Guest::new(GroupLimiter::new(&globex)).await.unwrap();
    assert_eq!(first.call("grow", 12).await.unwrap(), 1);
    let mut second = Guest::new(GroupLimiter::new(&acme).when_full(LONG))
        .await
        .unwrap();
    let waits = tokio::spawn(async move { (second.call("grow", 12).await.unwrap(), second) });
    waiters(&runtime.root(), 1).await;
    assert_eq!(acme.live(), START);
    drop(first);
    let (before, mut second) = waits.await.unwrap();
    assert_eq!(
        (before, acme.live(), second.store.data().bytes()),
        (1, START + 12 * PAGE, START + 12 * PAGE)
    );
    assert_eq!(second.call("grow_table", 100).await.unwrap(), 2);
    assert_eq!(acme.live(), START + 12 * PAGE + 800);
    drop(second);
    all_is_back(&runtime);
}

/// An instance waits for its first memory.
#[tokio::test]
async fn a_start_waits() {
    let (runtime, acme, globex) = budget();
    let held = globex.charge(Bytes(16 * PAGE)).unwrap();
    let starts = tokio::spawn(Guest::new(GroupLimiter::new(&acme).when_full(LONG)));
    waiters(&runtime.root(), 1).await;
    drop(held);
    let guest = starts.await.unwrap().unwrap();
    assert_eq!(acme.live(), START);
    drop(guest);
    all_is_back(&runtime);
}

#[tokio::test]
async fn patience_ends() {
    let (runtime, acme, globex) = budget();
    let held = globex.charge(Bytes(14 * PAGE)).unwrap();
    let mut guest = Guest::new(GroupLimiter::new(&acme).when_full(WhenFull::Wait(SHORT)))
        .await
        .unwrap();
    assert_eq!(guest.call("grow", 2).await.unwrap(), -1);
    let last = guest.store.data().last_refusal();
    let waited = last.and_then(ChargeError::waited).expect("it waits");
    assert!(waited >= SHORT);
    assert_eq!((acme.live(), runtime.root().waiting_count()), (START, 0));
    drop(held);
    assert_eq!(guest.call("grow", 2).await.unwrap(), 1);
    drop(guest);
    all_is_back(&runtime);
}

/// Without patience nothing waits, and no thread sleeps.
#[tokio::test]
async fn a_growth_is_refused_at_once_by_default() {
    let (runtime, acme, globex) = budget();
    let _held = globex.charge(Bytes(14 * PAGE)).unwrap();
    for (full, answer) in [(WhenFull::Refuse, -1), (WhenFull::Force, 1)] {
        let mut guest = Guest::new(GroupLimiter::new(&acme).when_full(full))
            .await
            .unwrap();
        assert_eq!(guest.call("grow", 2).await.unwrap(), answer);
    }
    let mut guest = Guest::new(GroupLimiter::new(&acme).trap_on_grow_failure(true))
        .await
        .unwrap();
    let trap = guest.call("grow", 2).await.unwrap_err();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_over_limit()),
        "{trap:?}"
    );
    assert_eq!(
        (runtime.root().events().get(Event::TimedOut), acme.live()),
        (0, START)
    );
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_place_in_line() {
    let (runtime, acme, globex) = budget();
    let held = globex.charge(Bytes(14 * PAGE)).unwrap();
    let mut guest = Guest::new(GroupLimiter::new(&acme).when_full(LONG))
        .await
        .unwrap();
    assert!(timeout(SHORT, guest.call("grow", 2)).await.is_err());
    assert_eq!((runtime.root().waiting_count(), acme.live()), (0, START));
    drop(held);
    assert_eq!(acme.live(), START);
    drop(guest);
    all_is_back(&runtime);
}

#[tokio::test]
async fn a_group_that_goes_offline_ends_the_wait() {
    let (runtime, acme, globex) = budget();
    let held = globex.charge(Bytes(14 * PAGE)).unwrap();
    let mut guest = Guest::new(GroupLimiter::new(&acme).when_full(LONG))
        .await
        .unwrap();
    let waits = tokio::spawn(async move { guest.call("grow", 2).await });
    waiters(&runtime.root(), 1).await;
    acme.offline().unwrap();
    let trap = waits.await.unwrap().unwrap_err();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_offline()),
        "{trap:?}"
    );
    drop(held);
    all_is_back(&runtime);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_stores_wait_in_line() {
    let (runtime, acme, _) = budget();
    let guests = (0..40).map(|_| {
        let limiter = GroupLimiter::new(&acme).when_full(LONG);
        tokio::spawn(async move {
            // One that has nothing yet waits for its start; 15 pages leave no room for a second
            // one.
            let text = r#"(module (memory (export "memory") 15))"#;
            let engine = Engine::default();
            let mut store = Store::new(&engine, limiter);
            limit_async(&mut store, |limiter| limiter);
            Instance::new_async(&mut store, &Module::new(&engine, text).unwrap(), &[])
                .await
                .unwrap();
            tokio::task::yield_now().await;
            store.data().bytes()
        })
    });
    for guest in guests.collect::<Vec<_>>() {
        assert_eq!(guest.await.unwrap(), 15 * PAGE);
    }
    let peak = acme.peak_live();
    assert!(peak.min() <= 15 * PAGE && 15 * PAGE <= peak.max(), "{peak}");
    assert_eq!(peak.max(), acme.peak(), "threads have no credit near max");
    all_is_back(&runtime);
}
