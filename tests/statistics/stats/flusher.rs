//! The periodic flush, which nothing needs, and the one that steps in when it is late.

#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
#[cfg(target_os = "linux")]
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(target_os = "linux")]
use memcg::allocator::{charge_unowned, charge_unowned_to, uncharge_unowned};
#[cfg(target_os = "linux")]
use memcg::{Event, Limits};
use memcg::{Freshness, Group, Runtime, StatKey};

use super::{assert_exact, build, create, eventually, kinds};
#[cfg(target_os = "linux")]
use crate::support::alone::alone;

const STAT: StatKey = StatKey::WORKINGSET_REFAULT;
const SOON: Duration = Duration::from_millis(1);
/// So much that the charge for what no group owns follows.
#[cfg(target_os = "linux")]
const UNOWNED: usize = 4 << 20;
/// No test waits for it.
const NEVER: Duration = Duration::from_secs(1_000_000);

fn published(group: &Group) -> i64 {
    group.read(Freshness::Stale).get(STAT)
}

/// So little that no thread is told of it by itself.
fn add_little(group: &Group) {
    group.stat_add(STAT, 1);
}

#[test]
fn the_flusher_publishes_without_readers() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        runtime.start_flusher(SOON).expect("a period");
        for sum in 1..=20 {
            add_little(&group);
            eventually("the flush of a group", || published(&group) == sum);
            eventually("the flush of the root", || {
                published(&runtime.root()) == sum
            });
        }
        runtime.stop_flusher();
        assert_exact(&group, STAT, 20, 20);
    }
}

#[test]
fn a_period_is_not_zero() {
    let runtime = build(Runtime::builder());
    let error = runtime
        .start_flusher(Duration::ZERO)
        .expect_err("no period");
    let said = error.to_string();
    assert!(
        !said.is_empty() && !said.contains(char::is_control),
        "{said:?}"
    );
    assert!(!format!("{error:?}").contains('\n'));
    // Nothing was started, and what runs already goes on.
    add_little(&runtime.root());
    runtime.start_flusher(SOON).expect("a period");
    assert!(runtime.start_flusher(Duration::ZERO).is_err());
    eventually("a flush", || published(&runtime.root()) == 1);
    add_little(&runtime.root());
    eventually("another flush", || published(&runtime.root()) == 2);
}

/// The largest period is one like any other: it can be waited for, and its end be brought about.
#[test]
fn the_largest_period() {
    let runtime = build(Runtime::builder());
    for period in [Duration::MAX, Duration::from_nanos(1), Duration::MAX] {
        runtime.start_flusher(period).expect("a period");
        add_little(&runtime.root());
        assert!(!runtime.root().inspect().flush_ratelimited() || period != Duration::MAX);
    }
    runtime.stop_flusher();
    assert_exact(&runtime.root(), STAT, 3, 3);
}

#[test]
fn a_flusher_that_was_stopped_flushes_no_more() {
    let runtime = build(Runtime::builder());
    let root = runtime.root();
    // Without one: nothing to stop.
    runtime.stop_flusher();
    for round in 0..5 {
        runtime.start_flusher(SOON).expect("a period");
        add_little(&root);
        eventually("a flush", || published(&root) == 2 * round + 1);
        runtime.stop_flusher();
        let stopped = runtime.counts().flushes;
        add_little(&root);
        // Far more than a period; a flush that comes would be seen, and none may come however long
        // this takes.
        std::thread::sleep(20 * SOON);
        assert_eq!(
            (published(&root), runtime.counts().flushes),
            (2 * round + 1, stopped)
        );
        assert_exact(&root, STAT, 2 * round + 2, 2 * round + 2);
        runtime.stop_flusher();
    }
}

/// Another period takes the place of the first at once, however long that would have been.
#[test]
fn a_flusher_takes_another_period() {
    let runtime = build(Runtime::builder());
    let root = runtime.root();
    runtime.start_flusher(NEVER).expect("a period");
    for round in 1..5 {
        add_little(&root);
        runtime.start_flusher(SOON).expect("a period");
        eventually("a flush with the new period", || published(&root) == round);
        runtime.start_flusher(NEVER).expect("a period");
    }
    let flushed = runtime.counts().flushes;
    add_little(&root);
    std::thread::sleep(20 * SOON);
    assert!(
        runtime.counts().flushes <= flushed + 1,
        "the old period is over, but for a flush that was under way"
    );
    runtime.stop_flusher();
}

/// In the middle of a flush or of a long sleep: the end of the runtime is the end of its flusher.
#[test]
fn the_flusher_stops_with_the_runtime() {
    for period in [SOON, NEVER, Duration::MAX] {
        for _ in 0..10 {
            let runtime = build(Runtime::builder());
            let root = runtime.root();
            runtime.start_flusher(period).expect("a period");
            add_little(&root);
            let (done, ended) = channel();
            let ending = std::thread::spawn(move || {
                drop(runtime);
                done.send(()).expect("a thread waits");
            });
            ended
                .recv_timeout(Duration::from_secs(120))
                .expect("a runtime ends without waiting for a period");
            ending.join().expect("no panic");
            // The handle outlives both, and counts on.
            add_little(&root);
            assert_exact(&root, STAT, 2, 2);
        }
    }
}

/// The thread is there when it was asked for, once, and gone when it was stopped or its runtime is
/// gone.
///
/// Counts the threads of a process that runs nothing else.
#[test]
#[cfg(target_os = "linux")]
fn there_is_one_thread_while_it_runs() {
    alone(
        "stats::flusher::there_is_one_thread_while_it_runs",
        &[],
        || {
            let threads = || {
                std::fs::read_dir("/proc/self/task")
                    .expect("this is Linux")
                    .count()
            };
            let before = threads();
            let runtime = build(Runtime::builder());
            runtime.root().stat_add(STAT, 100);
            assert_exact(&runtime.root(), STAT, 100, 100);
            assert_eq!(threads(), before, "none unless asked for");
            for period in [NEVER, SOON, NEVER] {
                runtime.start_flusher(period).expect("a period");
                eventually("the end of the one before", || threads() == before + 1);
            }
            runtime.stop_flusher();
            eventually("its end", || threads() == before);
            runtime.start_flusher(SOON).expect("a period");
            eventually("its beginning", || threads() == before + 1);
            // Whichever call comes last, one flusher runs.
            for _ in 0..20 {
                std::thread::scope(|scope| {
                    for period in [NEVER, SOON, NEVER, SOON] {
                        let runtime = &runtime;
                        scope.spawn(move || runtime.start_flusher(period).expect("a period"));
                    }
                });
                eventually("the end of all others", || threads() == before + 1);
            }
            let root = runtime.root();
            drop(runtime);
            eventually("its end with the runtime", || threads() == before);
            drop(root);
        },
    );
}

/// Hands a runtime to `end`, on the thread of its flusher: that thread charges what no group owns,
/// above the max of a group, and calls a listener. For a process that runs nothing else.
#[cfg(target_os = "linux")]
fn on_the_flusher(end: impl Fn(Runtime) -> Option<Runtime> + Send + Sync + 'static) -> Group {
    let runtime = build(Runtime::builder());
    let root = runtime.root();
    let books = root
        .create("books", Limits::new().max(0))
        .expect("a free name");
    charge_unowned_to(Some(&books));
    let place = Arc::new(Mutex::new(None));
    let (done, ended) = channel();
    let listener = {
        let place = Arc::clone(&place);
        books.on_event(Event::Overcharge, move |_| {
            if std::thread::current().name() == Some("memcg-flusher")
                && let Some(runtime) = place.lock().expect("no panic").take()
            {
                done.send(end(runtime)).expect("a thread waits");
            }
        })
    };
    runtime.start_flusher(SOON).expect("a period");
    *place.lock().expect("no panic") = Some(runtime);
    charge_unowned(UNOWNED);
    let runtime = ended
        .recv_timeout(Duration::from_secs(120))
        .expect("the end has come to its end");
    assert_eq!(books.events().get(Event::Panic), 0);
    uncharge_unowned(UNOWNED);
    charge_unowned_to(None);
    drop((listener, runtime));
    root
}

/// The call returns when the flusher has stopped, and not in the middle of a listener that its
/// thread runs.
#[test]
#[cfg(target_os = "linux")] // The thread has its name.
fn a_stop_waits_for_a_listener_on_the_flusher() {
    alone(
        "stats::flusher::a_stop_waits_for_a_listener_on_the_flusher",
        &[],
        || {
            let runtime = build(Runtime::builder());
            let books = runtime
                .root()
                .create("books", Limits::new().max(0))
                .expect("a free name");
            charge_unowned_to(Some(&books));
            let over = Arc::new(AtomicBool::new(false));
            let (begins, begun) = channel();
            let listener = {
                let over = Arc::clone(&over);
                books.on_event(Event::Overcharge, move |_| {
                    if std::thread::current().name() == Some("memcg-flusher")
                        && begins.send(()).is_ok()
                    {
                        std::thread::sleep(100 * SOON);
                        over.store(true, Ordering::SeqCst);
                    }
                })
            };
            runtime.start_flusher(SOON).expect("a period");
            charge_unowned(UNOWNED);
            begun
                .recv_timeout(Duration::from_secs(120))
                .expect("the flusher charges what no group owns");
            runtime.stop_flusher();
            assert!(over.load(Ordering::SeqCst), "the listener still runs");
            uncharge_unowned(UNOWNED);
            charge_unowned_to(None);
            drop(listener);
        },
    );
}

/// The last that the thread does for a runtime is to end it: it does not wait for itself, and is
/// gone afterwards.
#[test]
#[cfg(target_os = "linux")]
fn the_runtime_ends_on_its_flusher() {
    alone(
        "stats::flusher::the_runtime_ends_on_its_flusher",
        &[],
        || {
            let threads = || {
                std::fs::read_dir("/proc/self/task")
                    .expect("this is Linux")
                    .count()
            };
            let before = threads();
            let root = on_the_flusher(|runtime| {
                drop(runtime);
                None
            });
            assert!(root.is_offline(), "all of the drop was done");
            eventually("the end of the thread", || threads() == before);
            assert_eq!(root.usage(), 0, "what no group owned was given back");
        },
    );
}

/// A flusher that is stopped or replaced on its own thread.
#[test]
#[cfg(target_os = "linux")]
fn the_flusher_stops_itself() {
    alone("stats::flusher::the_flusher_stops_itself", &[], || {
        let threads = || {
            std::fs::read_dir("/proc/self/task")
                .expect("this is Linux")
                .count()
        };
        let before = threads();
        drop(on_the_flusher(|runtime| {
            runtime.start_flusher(NEVER).expect("a period");
            runtime.start_flusher(SOON).expect("a period");
            runtime.stop_flusher();
            Some(runtime)
        }));
        eventually("the end of all of them", || threads() == before);
    });
}

/// So much that a thresholded read flushes.
const ENOUGH: i64 = 10_000;

fn add_enough(group: &Group) {
    group.stat_add(STAT, ENOUGH);
}

/// While a flush of the root is younger than two periods there is nothing to step in for.
#[test]
fn a_ratelimited_flush_waits_for_the_periodic_one() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        runtime.start_flusher(NEVER).expect("a period");
        runtime.root().inspect().flush();
        add_enough(&group);
        let before = runtime.counts().flushes;
        for _ in 0..100 {
            assert!(!group.inspect().flush_ratelimited());
            assert!(!runtime.root().inspect().flush_ratelimited());
        }
        assert_eq!((runtime.counts().flushes, published(&group)), (before, 0));
        // A flush of the group alone says nothing of the root.
        group.inspect().flush();
        add_enough(&group);
        assert!(!group.inspect().flush_ratelimited());
        assert_eq!(published(&group), ENOUGH);
    }
}

/// No thread flushes the root any more: sooner or later it is late, and a thread that asks does it,
/// for as much as was asked and where a thresholded read would.
#[test]
fn a_ratelimited_flush_steps_in_when_it_is_late() {
    let runtime = build(Runtime::builder());
    let [a, b] = ["a", "b"].map(|name| create(&runtime.root(), name));
    runtime.start_flusher(SOON).expect("a period");
    runtime.stop_flusher();
    runtime.root().inspect().flush();
    for group in [&a, &b] {
        add_enough(group);
    }
    eventually("a flush that is late", || a.inspect().flush_ratelimited());
    assert_eq!(
        [&a, &b, &runtime.root()].map(published),
        [ENOUGH, 0, ENOUGH]
    );
    // However late: not for so little.
    add_little(&a);
    assert!(!a.inspect().flush_ratelimited());
    assert_eq!(published(&a), ENOUGH);
    // It was of a subtree: the root is as late as before.
    add_enough(&a);
    assert!(a.inspect().flush_ratelimited());
    assert_eq!(
        [&a, &b, &runtime.root()].map(published),
        [2 * ENOUGH + 1, 0, 2 * ENOUGH + 1]
    );
    // Of the root itself it is what was waited for.
    eventually("a flush of all", || {
        runtime.root().inspect().flush_ratelimited()
    });
    assert_eq!(
        [&a, &b, &runtime.root()].map(published),
        [2 * ENOUGH + 1, ENOUGH, 3 * ENOUGH + 1]
    );
}
