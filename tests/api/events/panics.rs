//! Listeners that panic: counted, whatever they panic with, and the thread is outside of foreign
//! code afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use memcg::{Event, Group, Registration};

use super::{Polled, Recorder, create, full, lock, oom, runtimes, until};
use crate::support::payloads::{DEPTHS, panic_with};

struct Calls(u64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        panic_with(self.0);
    }
}

/// A drop on this thread still waits for a call on another one: this thread does not count as
/// inside foreign code.
#[track_caller]
fn assert_waits_for_calls(group: &Group) {
    let began = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    let subscription = {
        let began = Arc::clone(&began);
        let ended = Arc::clone(&ended);
        group.on_event(Event::Oom, move |_| {
            began.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::SeqCst);
        })
    };
    thread::scope(|scope| {
        scope.spawn(|| oom(group));
        until("the call", || began.load(Ordering::SeqCst));
        drop(subscription);
        assert!(ended.load(Ordering::SeqCst), "a call is under way");
    });
}

/// A listener that panics is called the next time as well, and so are the others.
#[test]
fn a_listener_that_panics() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let top = create(&runtime.root(), "top");
            let group = full(&top, "q");
            let bad = Recorder::default();
            let good = Recorder::default();
            let subscriptions = [
                bad.and(&group, Event::Oom, move |_| panic_with(depth)),
                good.listen(&group, Event::Oom),
            ];
            for round in 1..=3 {
                oom(&group);
                assert_eq!((bad.take().len(), good.take().len()), (1, 1), "{depth}");
                assert_eq!(
                    (
                        group.events().local().get(Event::Panic),
                        top.events().get(Event::Panic)
                    ),
                    (round, round)
                );
            }
            drop(subscriptions);
            assert_waits_for_calls(&group);
        }
    }
}

#[test]
fn a_waker_that_panics() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let group = full(&runtime.root(), "q");
            let mut changed = Polled::new(group.events().changed(Event::Oom));
            assert!(
                changed
                    .poll_with(&Waker::from(Arc::new(Calls(depth))))
                    .is_pending()
            );
            oom(&group);
            assert!(changed.poll().is_ready());
            assert_waits_for_calls(&group);
        }
    }
}

/// Panics when it is dropped, with a payload of such a depth.
struct Drops(u64);

impl Drop for Drops {
    fn drop(&mut self) {
        panic_with(self.0);
    }
}

impl Wake for Drops {
    fn wake(self: Arc<Self>) {}
}

/// A listener's captured value panics when it is dropped: that is counted, and nothing keeps the
/// group.
#[test]
fn a_listener_whose_drop_panics() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let group = full(&runtime.root(), "q");
            let captured = Drops(depth);
            let notified = Arc::new(AtomicBool::new(false));
            let subscription = {
                let notified = Arc::clone(&notified);
                group.on_event(Event::Oom, move |_| {
                    let _captured = &captured;
                    notified.store(true, Ordering::SeqCst);
                })
            };
            oom(&group);
            drop(subscription);
            assert!(notified.load(Ordering::SeqCst));
            assert_eq!(runtime.root().events().get(Event::Panic), 1, "{depth}");
        }
    }
}

/// The listener ends itself, so that the thread that calls it drops it.
#[test]
fn a_drop_that_panics_in_the_last_call() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let group = full(&runtime.root(), "q");
            let own: Arc<Mutex<Option<Registration>>> = Arc::default();
            let captured = Drops(depth);
            let subscription = {
                let own = Arc::clone(&own);
                group.on_event(Event::Oom, move |_| {
                    let _captured = &captured;
                    drop(lock(&own).take());
                })
            };
            *lock(&own) = Some(subscription);
            oom(&group);
            assert_eq!(group.events().local().get(Event::Panic), 1, "{depth}");
            assert_waits_for_calls(&group);
        }
    }
}

/// A future that waits for an event is dropped with its waker: nothing of it remains.
#[test]
fn a_waker_whose_drop_panics() {
    for depth in DEPTHS {
        for runtime in runtimes() {
            let group = full(&runtime.root(), "q");
            let waker = Waker::from(Arc::new(Drops(depth)));
            let mut changed = Polled::new(group.events().changed(Event::Oom));
            assert!(changed.poll_with(&waker).is_pending());
            // From here on the listener's place has the last clone of the waker.
            drop(waker);
        }
    }
}
