//! Calls of foreign code: on which thread, of what, how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use memcg::Event;

use super::{Notified, Recorder, full, oom, runtimes};

#[test]
fn by_the_thread_that_counted() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let thread_of_calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let _subscription = {
            let calls = Arc::clone(&thread_of_calls);
            recorder.and(&group, Event::Oom, move |_| {
                super::lock(&calls).push(thread::current().id())
            })
        };
        oom(&group);
        // Told by the time the charge has come back.
        let notified = |count, times| Notified {
            group: "/q".into(),
            event: Event::Oom,
            count,
            times,
        };
        assert_eq!(recorder.take(), [notified(1, 1)]);
        let other = {
            let group = group.clone();
            thread::spawn(move || oom(&group))
        };
        let id = other.thread().id();
        super::join(other);
        assert_eq!(recorder.take(), [notified(2, 1)]);
        assert_eq!(*super::lock(&thread_of_calls), [thread::current().id(), id]);
    }
}

/// Of its own event, and of no other.
#[test]
fn of_its_event() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorders = Event::ALL.map(|event| {
            let recorder = Recorder::default();
            let subscription = recorder.listen(&group, event);
            (event, recorder, subscription)
        });
        drop(group.force_charge(1));
        oom(&group);
        for (event, recorder, _) in &recorders {
            let notified = recorder.take();
            let told: u64 = notified.iter().map(|notified| notified.times).sum();
            assert_eq!(told, group.events().get(*event), "{event:?}");
            assert!(notified.iter().all(|notified| notified.event == *event));
        }
    }
}

/// Events before it are none of it.
#[test]
fn from_now_on() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        oom(&group);
        let recorder = Recorder::default();
        let _subscription = recorder.listen(&group, Event::Oom);
        oom(&group);
        let notified = recorder.take();
        assert_eq!(notified.len(), 1);
        assert_eq!((notified[0].count, notified[0].times), (2, 1));
    }
}

/// One that listens for panics, and panics, is told of its own; that ends all the same.
#[test]
fn one_that_panics_about_panics() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let _subscriptions = [
            recorder.and(&group, Event::Panic, |_| {
                panic!("on purpose, about a panic")
            }),
            Recorder::default().and(&group, Event::Oom, |_| panic!("on purpose")),
        ];
        oom(&group);
        let notified = recorder.take();
        assert!((1..=64).contains(&notified.len()), "{}", notified.len());
        oom(&group);
        assert!(group.events().get(Event::Panic) >= 3);
    }
}

/// A group that has gone offline is still listened to: what happens there happens.
#[test]
fn at_a_group_that_is_offline() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let above = Recorder::default();
        let subscriptions = [
            recorder.listen(&group, Event::Overcharge),
            above.listen(&runtime.root(), Event::Overcharge),
        ];
        group.offline().expect("no children");
        drop(group.force_charge(1));
        assert_eq!((recorder.times(), above.times()), (1, 1));
        drop(subscriptions);
    }
}

/// All is told in the end, in as many calls as it may be.
#[test]
fn several_happenings_in_one_call() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let nested = Arc::new(AtomicU64::new(0));
        let _subscription = {
            let inner = group.clone();
            let nested = Arc::clone(&nested);
            recorder.and(&group, Event::Oom, move |_| {
                // An event in here is told as well, once: here or with the next.
                if nested.fetch_add(1, Ordering::SeqCst) == 0 {
                    for _ in 0..10 {
                        oom(&inner);
                    }
                }
            })
        };
        oom(&group);
        oom(&group);
        let notified = recorder.take();
        assert_eq!(
            notified.iter().map(|notified| notified.times).sum::<u64>(),
            12,
            "{notified:?}"
        );
        assert_eq!(group.events().get(Event::Oom), 12);
    }
}
