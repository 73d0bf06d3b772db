//! More was given back than charged: counted at the group, on the thread that finds it.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use memcg::allocator::Owner;
use memcg::inspect::VerifyFaultKind;
use memcg::{Bytes, CounterKey, Event, Group, Limits, Registration, Runtime};

use super::create;

/// Paths of the groups of the event, and the threads on which a listener of `group` saw it.
type Seen = Arc<Mutex<Vec<(String, ThreadId)>>>;

fn watch(group: &Group) -> (Seen, Registration) {
    let seen = Seen::default();
    let registration = group.on_event(Event::Underflow, {
        let seen = Arc::clone(&seen);
        move |it| {
            let here = (it.group().path(), thread::current().id());
            seen.lock().unwrap().push(here);
        }
    });
    (seen, registration)
}

fn counts(group: &Group) -> (u64, u64, u64) {
    let events = group.events();
    let all = events.get(Event::Underflow);
    let own = events.local().get(Event::Underflow);
    (all, own, group.inspect().underflowed())
}

/// Without credit the call that gives back too much is the one that is seen: the listener runs on its
/// thread, before it returns.
#[test]
fn the_listener_runs_in_the_call_that_gave_back_too_much() {
    for audit in [false, true] {
        let builder = Runtime::builder().batch(Bytes(0)).audit(audit);
        let runtime = builder.build().unwrap();
        let acme = create(&runtime.root(), "acme");
        let [spill, sort] = ["spill", "sort"].map(|name| create(&acme, name));
        let (seen, _registration) = watch(&acme);
        sort.raw().charge(1_000).unwrap();
        spill.raw().charge(100).unwrap();
        let caller = thread::scope(|scope| {
            let caller = scope.spawn(|| {
                spill.raw().uncharge(100);
                assert!(seen.lock().unwrap().is_empty());
                spill.raw().uncharge(30);
                assert_eq!(seen.lock().unwrap().len(), 1, "before the call returns");
                thread::current().id()
            });
            caller.join().unwrap()
        });
        assert_eq!(*seen.lock().unwrap(), [("/acme".into(), caller)]);
        assert_eq!(counts(&spill), (1, 1, 30));
        assert_eq!((counts(&sort), counts(&acme)), ((0, 0, 0), (1, 0, 0)));
        assert_eq!((sort.live(), acme.live()), (1_000, 1_000), "no other pays");
        assert_eq!(runtime.root().events().get(Event::Underflow), 1);
        assert_eq!(runtime.counts().underflows, 1);
    }
}

/// With a stock the surplus looks like credit. `verify` finds it there, and the drain counts it.
#[test]
fn credit_without_usage_is_found_by_verify_and_counted_by_the_drain() {
    for builder in [Runtime::builder().adaptive(false), Runtime::builder()] {
        let runtime = builder.batch(Bytes(1_000)).build().unwrap();
        let group = create(&runtime.root(), "q");
        // First of all: what a thread first charges without a guard is no hit.
        group.raw().charge(10).unwrap();
        let held = [(); 3].map(|()| group.charge(10).unwrap());
        drop(held);
        let usage = group.usage();
        assert!(usage > 10, "a stock is open");
        assert!(runtime.verify().is_ok());
        let (seen, _registration) = watch(&group);
        group.raw().uncharge(40);
        assert_eq!((group.usage(), counts(&group)), (usage, (0, 0, 0)), "a hit");
        let verdict = runtime.verify();
        let [fault] = verdict.faults() else {
            panic!("{verdict}")
        };
        assert_eq!(
            (fault.path.as_deref(), fault.kind, fault.found),
            (Some("/q"), VerifyFaultKind::Underflow, 30)
        );
        // Another thread takes the credit out: it is the one that finds usage too low.
        let drainer = thread::scope(|scope| {
            let drain = || {
                group.counter(CounterKey::MEMORY).unwrap().drain();
                thread::current().id()
            };
            scope.spawn(drain).join().unwrap()
        });
        assert_eq!(*seen.lock().unwrap(), [("/q".into(), drainer)]);
        assert_eq!((counts(&group), group.usage()), ((1, 1, 30), 0));
    }
}

/// The bytes of others in the group pay first: the last of them finds too little.
#[test]
fn the_last_of_a_group_finds_what_another_gave_back() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let group = create(&runtime.root(), "q");
    let theirs = group.charge(50).unwrap();
    group.raw().charge(10).unwrap();
    group.raw().uncharge(30);
    assert_eq!(counts(&group), (0, 0, 0));
    drop(theirs);
    assert_eq!(counts(&group), (1, 1, 20));
}

#[test]
fn a_group_that_covers() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let covers = runtime
        .root()
        .create("covers", Limits::new().cover_allocations())
        .unwrap();
    covers.raw().charge(10).unwrap();
    covers.raw().uncharge(15);
    assert_eq!(counts(&covers), (1, 1, 5));
}

/// An allocator runs no listener: the next slow path does, whoever's it is.
#[test]
fn an_allocator_leaves_the_event_to_the_next_slow_path() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let group = create(&runtime.root(), "q");
    let object = group.run(|| Owner::charge(100));
    let (seen, _registration) = watch(&group);
    group.raw().uncharge(40); // what the allocator holds
    assert_eq!(counts(&group), (0, 0, 0));
    // SAFETY: the object is this one, and goes once.
    #[allow(unsafe_code)]
    unsafe {
        object.uncharge(100)
    };
    assert!(seen.lock().unwrap().is_empty(), "inside the allocator");
    drop(create(&runtime.root(), "next").charge(1).unwrap());
    assert_eq!(seen.lock().unwrap().len(), 1);
    assert_eq!(counts(&group), (1, 1, 40));
}
