//! Groups that are cancelled or offline, and foreign code that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{
    Bytes, ChargeError, Event, Group, Limits, OomPolicy, Reclaim, ReclaimContext, ReclaimPriority,
    Registration, Runtime,
};
use memcg_wasmtime::GroupLimiter;
use wasmtime::{Config, Engine, UpdateDeadline};

use super::{GUEST, Guest, PAGE, START, all_is_back, group_of};

/// A budget of 16 pages, in which the group `greedy` goes if another one lacks memory.
fn budget() -> (Runtime, Group, Group) {
    let builder = Runtime::builder()
        .audit(true)
        .max(Bytes(16 * PAGE))
        .oom_time(Duration::from_secs(60));
    let runtime = builder.build().unwrap();
    runtime.root().set_oom_policy(OomPolicy::Choose);
    let [greedy, other] =
        ["greedy", "other"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    (runtime, greedy, other)
}

fn with_epochs() -> Engine {
    Engine::new(Config::new().epoch_interruption(true)).unwrap()
}

/// A guest whose epochs ask for its group.
fn checked(engine: &Engine, group: &Group) -> Guest {
    let mut guest = Guest::of(engine, GUEST, GroupLimiter::new(group)).unwrap();
    guest.store.set_epoch_deadline(1);
    guest.store.epoch_deadline_callback(|store| {
        store.data().check()?;
        Ok(UpdateDeadline::Continue(1))
    });
    guest
}

fn wakes(group: &Group, engine: &Engine) -> Registration {
    let engine = engine.clone();
    group.on_cancel(move |_| engine.increment_epoch())
}

#[test]
fn a_cancelled_group_ends_a_guest_that_spins() {
    let (runtime, greedy, other) = budget();
    let engine = with_epochs();
    let _hook = wakes(&greedy, &engine);
    let mut guest = checked(&engine, &greedy);
    assert_eq!(guest.call("grow", 11), 1);
    // Other epochs end nothing.
    engine.increment_epoch();
    assert_eq!(guest.call("grow", 0), 12);
    let spins = thread::spawn(move || {
        let spin = guest
            .instance
            .get_typed_func::<(), ()>(&mut guest.store, "spin")
            .unwrap();
        spin.call(&mut guest.store, ()).unwrap_err()
    });
    let charge = other.charge(Bytes(10 * PAGE)).expect("the victim's memory");
    let trap = spins.join().unwrap();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_cancelled() && *error.group() == greedy),
        "{trap:?}"
    );
    assert_eq!((greedy.live(), greedy.events().get(Event::OomKill)), (0, 1));
    drop(charge);
    all_is_back(&runtime);
}

#[test]
fn a_cancelled_group_ends_a_guest_that_grows() {
    let (runtime, greedy, other) = budget();
    greedy.set_max(Bytes(12 * PAGE)).unwrap();
    greedy.set_oom_policy(OomPolicy::Refuse); // at its own max
    let _hook = greedy.on_cancel(|_| {});
    // It gets -1 again and again.
    let mut guest = Guest::new(GroupLimiter::new(&greedy));
    let grows = thread::spawn(move || {
        let grow_on = guest
            .instance
            .get_typed_func::<i32, ()>(&mut guest.store, "grow_on")
            .unwrap();
        (
            grow_on.call(&mut guest.store, 1).unwrap_err(),
            guest.store.data().refused_count(),
        )
    });
    while greedy.refused_count() == 0 {
        thread::yield_now();
    }
    let charge = other.charge(Bytes(10 * PAGE)).expect("the victim's memory");
    let (trap, refused) = grows.join().unwrap();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_cancelled()),
        "{trap:?}"
    );
    assert!(refused > 1 && greedy.live() == 0);
    drop(charge);
    all_is_back(&runtime);
}

#[test]
fn an_offline_group_ends_its_guests() {
    let (runtime, acme) = group_of(64 * PAGE);
    let engine = with_epochs();
    let mut guest = checked(&engine, &acme);
    let grow = guest.function("grow");
    acme.offline().unwrap();
    // Without traps by choice.
    let trap = grow.call(&mut guest.store, 1).unwrap_err();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_offline()),
        "{trap:?}"
    );
    engine.increment_epoch();
    let trap = grow.call(&mut guest.store, 0).unwrap_err();
    let said = trap
        .downcast_ref::<ChargeError>()
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(said.starts_with("/acme is offline"), "{trap:?}");
    assert_eq!(acme.live(), START);
    assert!(Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).is_err());
    drop(guest);
    all_is_back(&runtime);
}

/// Bytes that the host's allocator has charged above the max count, too.
#[test]
fn a_group_above_its_max_ends_a_guest_at_its_epoch() {
    let (runtime, acme) = group_of(4 * PAGE);
    let engine = with_epochs();
    let mut guest = checked(&engine, &acme);
    let allocated = acme.force_charge(Bytes(4 * PAGE));
    engine.increment_epoch();
    let trap = guest.try_call("grow", 0).unwrap_err();
    assert!(
        matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_over_limit()),
        "{trap:?}"
    );
    drop(allocated);
    engine.increment_epoch();
    assert_eq!(guest.call("grow", 0), 1);
    drop(guest);
    all_is_back(&runtime);
}

struct Panics(AtomicBool);

impl Reclaim for Panics {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.0.store(true, Ordering::SeqCst);
        panic!("a reclaimer of the host");
    }
}

#[test]
fn a_reclaimer_that_panics_is_a_refusal() {
    let (runtime, acme) = group_of(4 * PAGE);
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let registration = acme.register_reclaimer(panics.clone(), ReclaimPriority::NORMAL);
    let mut guest = Guest::new(GroupLimiter::new(&acme));
    assert_eq!(guest.call("grow", 3), -1);
    assert!(panics.0.load(Ordering::SeqCst) && acme.events().get(Event::Panic) >= 1);
    assert_eq!(guest.call("grow", 1), 1);
    drop((registration, guest));
    all_is_back(&runtime);
}
