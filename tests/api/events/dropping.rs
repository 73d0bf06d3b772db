//! The end of listening: when the drop has returned, no call is under way and none begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use memcg::{Event, Registration};

use super::{Recorder, build, full, kinds, lock, oom, runtimes, until};

#[test]
fn nothing_more_is_told() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let subscription = recorder.listen(&group, Event::Oom);
        oom(&group);
        drop(subscription);
        oom(&group);
        assert_eq!(recorder.times(), 1);
    }
}

/// It waits for a call that is under way, on whatever thread.
#[test]
fn it_waits_for_a_call() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let began = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicBool::new(false));
        let subscription = {
            let began = Arc::clone(&began);
            let ended = Arc::clone(&ended);
            group.on_event(Event::Oom, move |_| {
                began.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(50));
                ended.store(true, Ordering::SeqCst);
            })
        };
        thread::scope(|scope| {
            scope.spawn(|| oom(&group));
            until("the call", || began.load(Ordering::SeqCst));
            drop(subscription);
            assert!(ended.load(Ordering::SeqCst));
        });
    }
}

/// Its values go with it.
#[test]
fn what_it_owns_goes_with_it() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let owned = Arc::new(());
        let subscription = {
            let owned = Arc::clone(&owned);
            group.on_event(Event::Oom, move |_| assert!(Arc::strong_count(&owned) > 0))
        };
        oom(&group);
        drop(subscription);
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}

/// Two listeners that end each other do not wait for each other.
#[test]
fn two_that_end_each_other() {
    for runtime in runtimes() {
        let groups = ["a", "b"].map(|name| full(&runtime.root(), name));
        for _ in 0..50 {
            let slots: [Arc<Mutex<Option<Registration>>>; 2] = Default::default();
            let start = Arc::new(Barrier::new(2));
            for number in 0..2 {
                let other = Arc::clone(&slots[1 - number]);
                let start = Arc::clone(&start);
                let once = AtomicBool::new(false);
                let subscription = groups[number].on_event(Event::Oom, move |_| {
                    if !once.swap(true, Ordering::SeqCst) {
                        start.wait();
                        let other = lock(&other).take();
                        drop(other);
                    }
                });
                *lock(&slots[number]) = Some(subscription);
            }
            thread::scope(|scope| {
                for group in &groups {
                    scope.spawn(|| oom(group));
                }
            });
            assert!(slots.iter().all(|slot| lock(slot).is_none()));
        }
    }
}

/// A runtime that is dropped before.
#[test]
fn after_the_runtime() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let subscription = recorder.listen(&runtime.root(), Event::Overcharge);
        let events = runtime.root().events();
        drop(runtime);
        // Force still is.
        drop(group.force_charge(1));
        assert_eq!(recorder.times(), 1);
        assert!(events.wait(Event::Overcharge, Duration::ZERO));
        drop((subscription, events, group));
    }
}
