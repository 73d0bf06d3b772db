//! Between threads nothing is lost: a thread that counts tells, or is told of by whichever other thread does.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memcg::Event;

use super::{Polled, Recorder, WATCHDOG, assert_empty, block_on, build, create, full, kinds, oom};

/// What was told adds up to what was counted, over all threads and levels.
#[test]
fn all_of_it_is_told() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = create(&runtime.root(), "top");
        let groups = ["a", "b", "c"].map(|name| full(&top, name));
        let recorder = Recorder::default();
        let subscription = recorder.listen(&top, Event::Oom);
        let start = Barrier::new(groups.len());
        thread::scope(|scope| {
            for group in &groups {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..2_000 {
                        oom(group);
                    }
                });
            }
        });
        assert_eq!((top.events().get(Event::Oom), recorder.times()), (6_000, 6_000));
        let notified = recorder.take();
        assert!(notified.iter().all(|notified| notified.times >= 1 && notified.count <= 6_000));
        drop((subscription, groups, top));
        assert_empty(&runtime);
    }
}

/// A wait that begins at the moment when it happens.
#[test]
fn a_wait_at_the_same_moment() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = full(&runtime.root(), "q");
        for round in 0..300 {
            let (events, start) = (group.events(), Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    oom(&group);
                });
                start.wait();
                match round % 2 {
                    0 => assert!(events.wait(Event::Oom, WATCHDOG)),
                    _ => assert_eq!(block_on(events.changed(Event::Oom)), round + 1),
                }
            });
        }
        drop(group);
        assert_empty(&runtime);
    }
}

/// Two that answer each other: each event of the one wakes the other, thousands of times.
#[test]
fn ping_and_pong() {
    for builder in kinds() {
        let runtime = build(builder);
        let groups = ["ping", "pong"].map(|name| full(&runtime.root(), name));
        // Each waits from before the other can answer.
        let first = groups[0].events();
        thread::scope(|scope| {
            let [ping, pong] = &groups;
            scope.spawn(move || {
                let mut notified = first;
                for _ in 0..500 {
                    assert!(notified.wait(Event::Oom, WATCHDOG));
                    notified = ping.events();
                    oom(pong);
                }
            });
            let mut notified = pong.events();
            for _ in 0..500 {
                oom(ping);
                assert!(notified.wait(Event::Oom, WATCHDOG));
                notified = pong.events();
            }
        });
        assert_eq!(runtime.root().events().get(Event::Oom), 1_000);
        drop(groups);
        assert_empty(&runtime);
    }
}

/// Futures that are made, polled and dropped while it happens all the time.
#[test]
fn come_and_go() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = full(&runtime.root(), "q");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    oom(&group);
                }
            });
            let waits: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..500 {
                            let mut future = Polled::new(group.events().changed(Event::Oom));
                            if round % 3 == 0 {
                                assert!(future.poll().is_pending() || group.events().get(Event::Oom) > 0);
                            } else {
                                assert!(future.finish() > 0);
                            }
                        }
                    })
                })
                .collect();
            for wait in waits {
                wait.join().expect("no panic");
            }
            stop.store(true, Ordering::SeqCst);
        });
        drop(group);
        assert_empty(&runtime);
    }
}
