//! A listener may do anything, for no lock is held.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Event, Limits, OnFull, Registration};

use super::{Polled, Recorder, assert_sound, create, full, lock, oom, runtimes};

#[test]
fn charge_and_give_back() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let other = create(&runtime.root(), "other");
        let recorder = Recorder::default();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let _subscription = {
            let other = other.clone();
            let kept = Arc::clone(&kept);
            recorder.and(&group, Event::Oom, move |happened| {
                lock(&kept).push(other.charge(1_000).expect("no limit there"));
                drop(other.force_charge(10_000));
                drop(
                    other
                        .charge_with(10, OnFull::Wait(Duration::from_secs(1)))
                        .expect("no limit there"),
                );
                // Here there is no room: refused, and told again.
                if happened.count() < 3 {
                    oom(&happened.group());
                }
            })
        };
        oom(&group);
        assert_eq!(
            (
                recorder.times(),
                group.events().get(Event::Oom),
                other.live()
            ),
            (3, 3, 3_000)
        );
        assert_eq!(group.events().get(Event::Panic), 0);
        assert_sound(&runtime);
        lock(&kept).clear();
    }
}

/// One that makes its own event happen each time does not run for ever.
#[test]
fn one_that_feeds_itself() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let subscription = recorder.and(&group, Event::Oom, |happened| oom(&happened.group()));
        oom(&group);
        let calls = recorder.take().len();
        assert!((1..=64).contains(&calls), "{calls}");
        drop(subscription);
        oom(&group);
        assert!(recorder.take().is_empty());
    }
}

#[test]
fn change_the_tree_and_its_limits() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = full(&runtime.root(), "q");
        let recorder = Recorder::default();
        let _subscription = {
            let root = root.clone();
            recorder.and(&group, Event::Oom, move |happened| {
                let new = root
                    .create("new", Limits::new().low(1))
                    .expect("a free name");
                assert!(root.children().contains(&new) && new.usage() == 0);
                new.offline().expect("no children");
                assert_eq!(happened.group().set_max(100).expect("a number"), 0);
                assert_eq!(root.events().get(Event::Oom), happened.count());
                assert!(root.snapshot(usize::MAX).to_string().contains("/q"));
                assert!(root.reclaim(1).is_ok());
            })
        };
        oom(&group);
        assert_eq!(
            (
                recorder.times(),
                group.max(),
                group.events().get(Event::Panic)
            ),
            (1, 100, 0)
        );
        drop(group.charge(100).expect("it has been raised"));
    }
}

/// Make room for a thread that has just been refused, so that the next is not; wake the charges
/// that wait.
#[test]
fn make_room() {
    for runtime in runtimes() {
        let group = runtime
            .root()
            .create("q", Limits::new().max(100))
            .expect("a free name");
        let held = Arc::new(Mutex::new(Some(group.force_charge(100))));
        let recorder = Recorder::default();
        let _subscription = {
            let held = Arc::clone(&held);
            recorder.and(&group, Event::Max, move |_| drop(lock(&held).take()))
        };
        let mut waiter = Polled::new(group.charge_async(60));
        // Refused, told, and there is room: at once, or as soon as it is woken.
        drop(waiter.finish().expect("there is room"));
        assert!(lock(&held).is_none() && recorder.times() >= 1);
    }
}

/// Listen to more, and end listening, oneself included.
#[test]
fn subscribe_and_end() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let own: Arc<Mutex<Option<Registration>>> = Arc::default();
        let more: Arc<Mutex<Vec<Registration>>> = Arc::default();
        let recorder = Recorder::default();
        let later = Recorder::default();
        let subscription = {
            let own = Arc::clone(&own);
            let more = Arc::clone(&more);
            let later = later.clone();
            recorder.and(&group, Event::Oom, move |happened| {
                lock(&more).push(later.listen(&happened.group(), Event::Oom));
                let own = lock(&own).take();
                drop(own);
            })
        };
        *lock(&own) = Some(subscription);
        for _ in 0..3 {
            oom(&group);
        }
        assert_eq!(
            (recorder.take().len(), lock(&more).len(), later.times()),
            (1, 1, 2)
        );
        lock(&more).clear();
    }
}

/// Wait: it is no reclaimer, so it may. But not for what it stands in the way of itself.
#[test]
fn wait_with_a_limit() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let small = runtime
            .root()
            .create("small", Limits::new().max(10))
            .expect("a free name");
        let _held = small.force_charge(10);
        let recorder = Recorder::default();
        let waited = Arc::new(AtomicU64::new(0));
        let _subscription = {
            let small = small.clone();
            let waited = Arc::clone(&waited);
            recorder.and(&group, Event::Oom, move |_| {
                match small.charge_with(1, OnFull::Wait(Duration::from_millis(5))) {
                    Err(error) if error.is_timeout() || error.is_over_limit() => {
                        waited.fetch_add(1, Ordering::SeqCst)
                    }
                    other => panic!("{other:?}"),
                };
            })
        };
        oom(&group);
        assert_eq!(
            (
                recorder.times(),
                waited.load(Ordering::SeqCst),
                small.waiting_count()
            ),
            (1, 1, 0)
        );
        assert_eq!(group.events().get(Event::Panic), 0);
    }
}

/// It runs after the slow path of the charge: what that did is done.
#[test]
fn after_the_slow_path() {
    for runtime in runtimes() {
        let group = runtime
            .root()
            .create("q", Limits::new().max(100))
            .expect("a free name");
        let recorder = Recorder::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let _subscription = {
            let seen = Arc::clone(&seen);
            recorder.and(&group, Event::Overcharge, move |happened| {
                let group = happened.group();
                lock(&seen).push((group.live(), group.forced()));
            })
        };
        let _held = group.force_charge(130);
        assert_eq!(*lock(&seen), [(130, 30)]);
    }
}
