//! Listeners that panic: counted, whatever they panic with, and the thread is outside of foreign code afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use memcg::{Event, Group};

use crate::payloads::{DEPTHS, panic_with};
use crate::{Polled, assert_empty, build, full, kinds, oom, until};

struct Calls(u64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        panic_with(self.0);
    }
}

/// A drop on this thread still waits for a call on another one: this thread does not count as inside foreign code.
#[track_caller]
fn assert_waits_for_calls(group: &Group) {
    let (began, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let subscription = {
        let (began, ended) = (Arc::clone(&began), Arc::clone(&ended));
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

#[test]
fn a_listener_that_panics() {
    for depth in DEPTHS {
        for builder in kinds() {
            let runtime = build(builder);
            let group = full(&runtime.root(), "q");
            let subscription = group.on_event(Event::Oom, move |_| panic_with(depth));
            oom(&group);
            assert_eq!(group.events_local().get(Event::Panic), 1, "{depth}");
            drop(subscription);
            assert_waits_for_calls(&group);
            drop(group);
            assert_empty(&runtime);
        }
    }
}

#[test]
fn a_waker_that_panics() {
    for depth in DEPTHS {
        for builder in kinds() {
            let runtime = build(builder);
            let group = full(&runtime.root(), "q");
            let mut changed = Polled::new(group.events().changed(Event::Oom));
            assert!(changed.poll_with(&Waker::from(Arc::new(Calls(depth)))).is_pending());
            oom(&group);
            assert!(changed.poll().is_ready());
            assert_waits_for_calls(&group);
            drop((changed, group));
            assert_empty(&runtime);
        }
    }
}
