//! Until the next: blocking with a time limit, or as a future.

use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Event, OnFull};

use super::{
    Polled, WATCHDOG, Wakes, block_on, build, create, full, join, kinds, left_empty, oom, runtimes,
};

const SHORT: Duration = Duration::from_millis(30);

#[test]
fn nothing_happens() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let events = group.events();
        let started = Instant::now();
        assert!(!events.wait(Event::Oom, SHORT));
        assert!(started.elapsed() >= SHORT, "{:?}", started.elapsed());
        assert!(!events.wait(Event::Oom, Duration::ZERO));
    }
}

/// Between the snapshot and the call: seen, as often as one asks.
#[test]
fn what_has_happened_already() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let events = group.events();
        oom(&group);
        for _ in 0..2 {
            assert!(
                events.wait(Event::Oom, Duration::ZERO) && events.wait(Event::Oom, Duration::MAX)
            );
            assert_eq!(block_on(events.changed(Event::Oom)), 1);
        }
        assert!(
            !events.wait(Event::Overcharge, Duration::ZERO),
            "another event"
        );
        assert!(
            !group.events().wait(Event::Oom, Duration::ZERO),
            "a newer snapshot"
        );
    }
}

#[test]
fn a_thread_that_waits() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        for time in [WATCHDOG, Duration::MAX] {
            let events = group.events();
            let later = group.events();
            let waits = thread::spawn(move || events.wait(Event::Oom, time));
            // It waits already, or not yet.
            thread::sleep(Duration::from_millis(5));
            oom(&group);
            assert!(join(waits));
            assert!(later.wait(Event::Oom, Duration::ZERO));
        }
    }
}

#[test]
fn a_future() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let mut future = Polled::new(group.events().changed(Event::Oom));
        assert!(future.poll().is_pending());
        drop(group.force_charge(1));
        assert_eq!(future.wakes(), 0, "another event");
        assert!(future.poll().is_pending());
        oom(&group);
        assert_eq!((future.wakes(), future.poll()), (1, Poll::Ready(1)));
        // The next one begins where that one ended.
        let mut next = Polled::new(group.events().changed(Event::Oom));
        assert!(next.poll().is_pending());
        for _ in 0..3 {
            oom(&group);
        }
        assert_eq!((next.wakes(), next.poll()), (1, Poll::Ready(4)));
    }
}

/// The last waker counts; one that is given again and again is one.
#[test]
fn a_future_that_is_polled_by_others() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let mut future = Polled::new(group.events().changed(Event::Oom));
        for _ in 0..10 {
            assert!(future.poll().is_pending());
        }
        let old: std::sync::Arc<Wakes> = future.renew();
        assert!(future.poll().is_pending());
        oom(&group);
        assert_eq!((old.count(), future.wakes()), (0, 1));
        let ends = thread::spawn(move || future.finish());
        assert_eq!(join(ends), 1);
    }
}

/// Dropped, it is gone: at whatever moment.
#[test]
fn a_future_that_is_dropped() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        drop(group.events().changed(Event::Oom));
        let mut future = Polled::new(group.events().changed(Event::Oom));
        assert!(future.poll().is_pending());
        let wakes = future.renew();
        drop(future);
        oom(&group);
        assert_eq!(wakes.count(), 0);
        assert_eq!(
            std::sync::Arc::strong_count(&wakes),
            1,
            "no listener keeps its waker"
        );
        let mut future = Polled::new(group.events().changed(Event::Oom));
        assert!(future.poll().is_pending());
        oom(&group);
    }
}

/// Of the subtree, or of the group alone.
#[test]
fn local_or_not() {
    for runtime in runtimes() {
        let root = runtime.root();
        let top = create(&root, "top");
        let group = full(&top, "q");
        let mut all =
            [&group, &top, &root].map(|group| Polled::new(group.events().changed(Event::Oom)));
        let mut local = [&group, &top, &root]
            .map(|group| Polled::new(group.events().local().changed(Event::Oom)));
        assert!(
            all.iter_mut()
                .chain(&mut local)
                .all(|future| future.poll().is_pending())
        );
        oom(&group);
        assert_eq!(all.each_mut().map(Polled::poll), [Poll::Ready(1); 3]);
        assert_eq!(
            local.each_mut().map(Polled::poll),
            [Poll::Ready(1), Poll::Pending, Poll::Pending]
        );
        assert_eq!(local.each_ref().map(Polled::wakes), [1, 0, 0]);
    }
}

/// Many at once, threads and futures, all woken by one.
#[test]
fn many_at_once() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let mut futures: Vec<_> = (0..100)
            .map(|_| Polled::new(group.events().changed(Event::Oom)))
            .collect();
        assert!(futures.iter_mut().all(|future| future.poll().is_pending()));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let events = group.events();
                thread::spawn(move || events.wait(Event::Oom, WATCHDOG))
            })
            .collect();
        oom(&group);
        assert!(
            futures
                .iter_mut()
                .all(|future| (future.wakes(), future.poll()) == (1, Poll::Ready(1)))
        );
        assert!(threads.into_iter().all(join));
    }
}

/// Every kind of event wakes the thread that waits for it.
#[test]
fn every_event() {
    for builder in kinds() {
        let runtime = left_empty(build(
            builder.delay_max(Duration::ZERO).oom_time(Duration::ZERO),
        ));
        let root = runtime.root();
        // A call that hangs for a second is one of debug builds: `tests/pressure/reclaim/stuck.rs`.
        // More given back than was charged is a fault that `left_empty` finds: `underflow`.
        let events = Event::ALL
            .into_iter()
            .filter(|event| ![Event::ReclaimStuck, Event::Underflow].contains(event));
        let futures: Vec<_> = events
            .map(|event| {
                let mut future = Polled::new(root.events().changed(event));
                assert!(future.poll().is_pending());
                (event, future)
            })
            .collect();
        super::waiting::everything(&root);
        for (event, mut future) in futures {
            assert_eq!(
                (future.wakes(), future.poll().is_ready()),
                (1, true),
                "{event:?}: {:?}",
                root.events()
            );
        }
        root.children().iter().for_each(memcg::Group::offline_tree);
    }
}

/// Makes each event happen once at least, in groups of its own.
fn everything(root: &memcg::Group) {
    use memcg::{Limit, Limits, OomPolicy, ReclaimPriority};
    let max = Limits::new().max(100);
    let low = root
        .create("low", max.low(Limit::Unlimited))
        .expect("a free name");
    let below = low
        .create("below", Limits::new().low(Limit::Unlimited))
        .expect("a free name");
    let (cache, registration) = super::Cache::of(&below, 50, &super::Log::default());
    drop(low.charge(100).expect("from the protected"));
    drop((registration, cache));
    let high = root
        .create("high", Limits::new().high(1))
        .expect("a free name");
    drop(high.charge(2).expect("high refuses no charge"));
    let domain = root.create("domain", max).expect("a free name");
    domain.set_oom_policy(OomPolicy::Choose);
    domain.set_oom_group(true);
    let hook = domain.on_cancel(|_| ());
    let held = domain.force_charge(101);
    assert!(domain.charge(1).is_err());
    drop((held, hook));
    let observed = root
        .create("observed", max.pressure_levels(50, 90))
        .expect("a free name");
    observed.set_observe_only(true);
    drop(observed.charge(101).expect("no thread is refused"));
    let waits = root.create("waits", max).expect("a free name");
    let held = waits.force_charge(100);
    assert!(waits.charge_with(1, OnFull::Wait(Duration::ZERO)).is_err());
    drop(held);
    let panics = root.create("panics", Limits::new()).expect("a free name");
    let registration = panics.register_reclaimer(
        super::call(|_, _| panic!("on purpose")),
        ReclaimPriority::NORMAL,
    );
    let held = panics.force_charge(1);
    assert_eq!(panics.reclaim(1).expect("not inside a reclaimer").panics, 1);
    drop((registration, held));
}
