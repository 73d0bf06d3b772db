//! Models of the arena, for two threads and one slot. `LOOM_MAX_PREEMPTIONS=2` bounds what loom
//! tries.

use std::sync::Arc;

use loom::thread;
use memcg::{Charge, Limits, Runtime};

use crate::{Arena, Lease, Slot};

// ANCHOR: model
/// Tries all schedules of two threads that each take the one slot and give it back.
fn race<S: 'static>(take: fn(&Arc<Arena>) -> Option<S>) {
    loom::model(move || {
        let runtime = Runtime::builder().build().expect("a runtime"); // inside: each schedule has its own
        let group = runtime
            .root()
            .create("arena", Limits::new().max(1))
            .expect("a group");
        let arena = Arena::new(group);
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || drop(take(&arena))) // loom's thread
        };
        drop(take(&arena));
        other.join().expect("the other thread ends");
        assert_eq!(arena.group().live(), 0);
    });
}

#[test]
fn a_charge_stands_for_a_free_slot() {
    race(|arena| arena.take().ok());
}
// ANCHOR_END: model

// ANCHOR: wrong
/// The fields the other way round: the unit is given back while the number is still taken.
struct WrongSlot {
    _charge: Charge,
    _lease: Lease,
}

#[test]
#[should_panic(expected = "a charge stands for a free slot")]
fn the_model_sees_a_unit_that_goes_back_first() {
    race(|arena| {
        let charge = arena.group().charge(1).ok()?;
        Some(WrongSlot {
            _charge: charge,
            _lease: arena.lease(),
        })
    });
}
// ANCHOR_END: wrong

/// A look and a charge in two steps: another thread charges in between.
#[test]
#[should_panic(expected = "a charge stands for a free slot")]
fn the_model_sees_a_look_before_a_forced_charge() {
    race(|arena| {
        let fits = arena.group().headroom() >= 1;
        fits.then(|| (arena.group().force_charge(1), arena.lease()))
    });
}

#[test]
fn slots_are_told_apart() {
    loom::model(|| {
        let runtime = Runtime::builder().build().expect("a runtime");
        let group = runtime
            .root()
            .create("arena", Limits::new().max(2))
            .expect("a group");
        let arena = Arena::new(group);
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || arena.take().expect("two fit"))
        };
        let slot: Slot = arena.take().expect("two fit");
        let other = other.join().expect("the other thread ends");
        assert_ne!(slot.number(), other.number());
    });
}
