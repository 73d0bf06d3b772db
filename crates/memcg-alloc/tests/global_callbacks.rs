//! The process's allocator inside the crate's own calls: in reclaimers, hooks, listeners, wakers
//! and the text of a refusal. Nothing deadlocks, each group has exactly what was allocated in it,
//! and the crate's own memory is no group's.

mod support;

use std::alloc::System;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::{
    Event, Group, InGroup, Limits, OnFull, OomPolicy, Reclaim, ReclaimContext, ReclaimPriority,
    Runtime,
};
use memcg_alloc::MemcgAlloc;
use support::{alone, bytes};

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

/// Ends the process where a test does not end.
fn watched(test: impl FnOnce()) {
    let _alone = alone();
    let (ended, wait) = channel::<()>();
    let watch = std::thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a deadlock: the test has not ended within a minute");
            std::process::abort();
        }
    });
    test();
    drop(ended);
    watch.join().unwrap();
}

/// Each registration, wait or request here makes the part of the machinery that it needs.
fn use_every_part(tenant: &Group) {
    let cache = Arc::new(Cache {
        held: Mutex::default(),
        calls: AtomicU64::new(0),
    });
    let registrations = (
        tenant.register_reclaimer(cache, ReclaimPriority::NORMAL),
        tenant.on_event(Event::Max, |happened| {
            drop(black_box(format!("{happened:?}")))
        }),
        tenant.on_cancel(|cancel| drop(black_box(cancel.group().path()))),
    );
    let full = tenant
        .create("full", Limits::new().max(1_000).pressure_levels(50, 90))
        .unwrap();
    let held = full.charge(1_000).unwrap();
    let refused = full.charge(1).unwrap_err().to_string();
    assert!(refused.contains("/full"), "{refused}");
    let mut waiting: Vec<_> = (0..50)
        .map(|_| Box::pin(full.charge_async(10_usize)))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    for waits in &mut waiting {
        assert!(waits.as_mut().poll(&mut context).is_pending());
    }
    assert!(
        full.charge_with(10_usize, OnFull::Wait(Duration::from_millis(1)))
            .is_err()
    );
    drop(waiting.split_off(25));
    drop(held);
    for waits in &mut waiting {
        assert!(matches!(
            waits.as_mut().poll(&mut context),
            Poll::Ready(Ok(_))
        ));
    }
    drop(waiting);
    // Unpaid bytes in a group that covers.
    let covers = tenant
        .create("covers", Limits::new().cover_allocations())
        .unwrap();
    let charge = covers.force_charge(10_000);
    let object = covers.run(|| bytes(1, 20_000));
    drop(charge);
    let ledger = tenant.ledger();
    assert_eq!(
        (ledger.unpaid(), covers.ledger().allocated()),
        (20_000, 20_000)
    );
    drop(object);
    covers.offline().unwrap();
    drop(tenant.enter());
    drop((
        tenant.children(),
        tenant.path(),
        tenant.events(),
        tenant.reclaim(1_000),
    ));
    full.offline().unwrap();
    drop(registrations);
}

/// All that a service does with groups, inside of a group: what is left charged to the group is
/// what it was handed.
#[test]
fn the_crates_own_memory_is_no_groups() {
    watched(|| {
        let runtime = Runtime::builder().max(64 << 20).build().unwrap();
        let group = runtime.root().create("first", Limits::new()).unwrap();
        // The first thread that needs each part of the machinery, and in a group from its first act
        // on.
        let first = group.clone();
        std::thread::spawn(move || {
            first.run(|| {
                let tenant = first
                    .create(
                        "tenant",
                        Limits::new().max(1 << 20).high(1 << 19).soft(1).low(10),
                    )
                    .unwrap();
                for name in 0..300 {
                    let query = tenant
                        .create(&format!("query{name}"), Limits::new())
                        .unwrap();
                    drop(query.charge(1_000).unwrap());
                    drop(query.force_charge(5_000));
                    query.stat_add(memcg::StatKey::ANON, 1);
                    query.stat_add(memcg::StatKey::ANON, -1);
                    assert!(query.run(Group::checkpoint).is_ok());
                    query.offline().unwrap();
                }
                assert!(tenant.charge(2 << 20).is_err());
                drop(tenant.force_charge(2 << 20));
                drop(tenant.snapshot(3));
                use_every_part(&tenant);
                tenant.offline().unwrap();
            });
        })
        .join()
        .unwrap();
        runtime.settle();
        runtime.root().memory().drain();
        memcg_alloc::catch_up();
        assert_eq!(
            (
                group.live(),
                runtime.root().live(),
                runtime.counts().underflows
            ),
            (0, 0, 0)
        );
        assert!(runtime.verify().is_ok());
    });
}

/// A guard's own memory, in the group around it.
#[test]
fn a_guards_memory_is_no_groups() {
    watched(|| {
        let runtime = Runtime::builder().build().unwrap();
        let [outer, inner] =
            ["outer", "inner"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        let of_groups = outer.run(|| {
            let groups = (inner.enter(), inner.enter());
            let of_groups = [&outer, &inner].map(|group| group.inspect().allocated_local());
            drop(groups);
            of_groups
        });
        assert_eq!(of_groups, [0, 0]);
        memcg_alloc::catch_up();
        assert_eq!((runtime.root().live(), runtime.counts().underflows), (0, 0));
    });
}

/// A thread that waits, in line or for an event, in a group of its own.
#[test]
fn a_waiting_threads_memory_is_no_groups() {
    watched(|| {
        let runtime = Runtime::builder().build().unwrap();
        let [own, full] =
            ["own", "full"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        full.set_max(100).unwrap();
        let held = full.charge(100).unwrap();
        let events = full.events();
        std::thread::scope(|scope| {
            let waits = || {
                own.run(|| {
                    full.charge_with(1, OnFull::Wait(Duration::from_secs(30)))
                        .map(drop)
                })
            };
            let in_line = scope.spawn(waits);
            let for_event = scope
                .spawn(|| own.run(|| events.wait(Event::TimedOut, Duration::from_millis(500))));
            while full.waiting_count() == 0 {
                std::thread::yield_now();
            }
            while !for_event.is_finished() {
                assert_eq!(own.inspect().allocated_local(), 0);
            }
            drop(held);
            in_line.join().unwrap().unwrap();
            assert!(!for_event.join().unwrap());
        });
        assert_eq!((own.live(), runtime.counts().underflows), (0, 0));
    });
}

/// Frees what it holds and allocates meanwhile, in whatever group the caller is in.
struct Cache {
    held: Mutex<Vec<Vec<u8>>>,
    calls: AtomicU64,
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let note = black_box(format!("reclaim {want} bytes"));
        let mut freed = 0;
        while freed < want {
            let Some(object) = self.held.lock().unwrap().pop() else {
                break;
            };
            freed += object.capacity() as u64;
        }
        drop(note);
        freed
    }
}

#[test]
fn callbacks_allocate_and_free() {
    watched(|| {
        let runtime = Runtime::builder().build().unwrap();
        let group = runtime
            .root()
            .create("g", Limits::new().max(1 << 20))
            .unwrap();
        let held = group.run(|| (0..100).map(|_| bytes(1, 10_000)).collect::<Vec<_>>());
        let cache = Arc::new(Cache {
            held: Mutex::new(held),
            calls: AtomicU64::new(0),
        });
        let registration = group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        let heard = Arc::new(AtomicU64::new(0));
        let listened = Arc::clone(&heard);
        let listener = group.on_event(Event::Max, move |happened| {
            let text = format!("{happened:?}");
            listened.fetch_add(text.len() as u64, Ordering::Relaxed);
        });
        // The allocator fills the group, and a charge reclaims: it frees objects of the group
        // inside the charge.
        let inside = group.run(|| {
            let charge = group.charge(200_000).unwrap();
            let refusal = group.charge(2 << 20).unwrap_err();
            let text = refusal.to_string();
            assert!(text.contains("/g"), "{text}");
            drop((charge, refusal, text));
            bytes(0, 4_096)
        });
        assert!(cache.calls.load(Ordering::Relaxed) > 0 && heard.load(Ordering::Relaxed) > 0);
        drop((registration, listener));
        let owned = |vectors: &Vec<Vec<u8>>| {
            vectors
                .iter()
                .map(|object| object.capacity() as u64)
                .sum::<u64>()
        };
        let vector = {
            let held = cache.held.lock().unwrap();
            owned(&held) + (held.capacity() * size_of::<Vec<u8>>()) as u64
        };
        assert_eq!(group.live(), vector + 4_096);
        drop((cache, inside));
        memcg_alloc::catch_up();
        assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
    });
}

/// A victim's hook allocates, prints why, and frees what the victim has; so does the drop of the
/// hook.
#[test]
fn hooks_of_victims_allocate_and_free() {
    struct Dropped(Group, Arc<AtomicU64>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let text = self
                .0
                .run(|| black_box(format!("{} has no hook", self.0.path())));
            self.1.fetch_add(text.len() as u64, Ordering::Relaxed);
        }
    }
    watched(|| {
        let runtime = Runtime::builder().max(1 << 20).build().unwrap();
        runtime.root().set_oom_policy(OomPolicy::Choose);
        let [hog, query] =
            ["hog", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        let held = Arc::new(Mutex::new(
            hog.run(|| (0..100).map(|_| bytes(1, 10_000)).collect::<Vec<_>>()),
        ));
        let called = Arc::new(AtomicU64::new(0));
        let dropped = Arc::new(AtomicU64::new(0));
        let hook = hog.on_cancel({
            let held = Arc::clone(&held);
            let called = Arc::clone(&called);
            let dropped = Dropped(hog.clone(), Arc::clone(&dropped));
            move |cancel| {
                let group = cancel.group();
                let why = group.run(|| {
                    let refusal = group.charge(2 << 20).unwrap_err();
                    black_box(format!(
                        "{} for {}: {refusal}",
                        group.path(),
                        cancel.domain().path()
                    ))
                });
                assert!(why.starts_with("/hog for /: "), "{why}");
                called.fetch_add(1, Ordering::Relaxed);
                held.lock().unwrap().clear();
                black_box(&dropped);
            }
        });
        let charge = query.run(|| query.charge(500_000)).unwrap();
        assert!(called.load(Ordering::Relaxed) > 0);
        drop(hook);
        assert!(dropped.load(Ordering::Relaxed) > 0);
        assert_eq!(query.live(), 500_000);
        drop((charge, held));
        memcg_alloc::catch_up();
        assert_eq!(
            (hog.live(), query.live(), runtime.counts().underflows),
            (0, 0, 0)
        );
        assert!(runtime.verify().is_ok(), "{}", runtime.verify());
    });
}

/// A waiter that allocates when it is woken.
struct Allocates(Group, Mutex<Vec<Vec<u8>>>);

impl Wake for Allocates {
    fn wake(self: Arc<Self>) {
        let held = self.0.run(|| bytes(0, 100));
        self.1.lock().unwrap().push(held);
    }
}

/// A charge waits for room that an allocator gives back: the waiter is woken at the next call
/// outside of an allocator.
#[test]
fn a_free_makes_room_for_a_waiter() {
    watched(|| {
        let runtime = Runtime::builder().build().unwrap();
        let [full, other] =
            ["full", "other"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        full.set_max(100_000).unwrap();
        let held = full.run(|| bytes(0, 100_000));
        let woken = Arc::new(Allocates(other.clone(), Mutex::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut waits = Box::pin(full.charge_async(50_000_usize));
        let first = waits.as_mut().poll(&mut context);
        assert!(first.is_pending(), "{first:?}, {}", full.live());
        drop(held);
        // A thread of the process may have taken what this one has left, and be about to wake the
        // waiter.
        let end = Instant::now() + Duration::from_secs(30);
        while woken.1.lock().unwrap().is_empty() && Instant::now() < end {
            memcg_alloc::catch_up();
        }
        assert_eq!(woken.1.lock().unwrap().len(), 1, "woken once");
        let Poll::Ready(Ok(charge)) = waits.as_mut().poll(&mut context) else {
            panic!("there is room")
        };
        assert_eq!(full.live(), 50_000);
        drop((charge, waits));
        woken.1.lock().unwrap().clear();
        assert_eq!((full.live(), other.live()), (0, 0));
    });
}

/// A task that only allocates meets its limit at its next checkpoint; its neighbours do not.
#[test]
fn a_checkpoint_finds_what_the_allocator_has_forced() {
    watched(|| {
        let runtime = Runtime::builder().build().unwrap();
        let [hog, neighbour] = ["hog", "neighbour"].map(|name| {
            runtime
                .root()
                .create(name, Limits::new().max(1 << 20))
                .unwrap()
        });
        let mut held = Vec::new();
        let stopped = hog.run(|| {
            for _ in 0..1_000 {
                held.push(bytes(0, 10_000));
                Group::checkpoint()?;
            }
            Ok::<(), memcg::ChargeError>(())
        });
        let refusal = stopped.unwrap_err().to_string();
        assert!(refusal.contains("/hog"), "{refusal}");
        assert!((100..=120).contains(&held.len()), "{} objects", held.len());
        assert!(
            neighbour
                .run(|| (bytes(0, 10_000), Group::checkpoint()))
                .1
                .is_ok()
        );
        assert!(hog.forced() > 0 && hog.events().get(Event::Overcharge) > 0);
        drop(held);
        memcg_alloc::catch_up();
        assert!(hog.run(Group::checkpoint).is_ok());
    });
}

/// Tasks are aborted, and their futures dropped outside of any poll: nothing stays charged.
#[test]
fn aborted_tasks_leave_nothing() {
    watched(|| {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let runtime = Runtime::builder().build().unwrap();
        let groups: Vec<Group> = (0..20)
            .map(|at| {
                runtime
                    .root()
                    .create(&format!("g{at}"), Limits::new())
                    .unwrap()
            })
            .collect();
        let started = Arc::new(AtomicU64::new(0));
        tokio.block_on(async {
            let tasks: Vec<_> = (0..200)
                .map(|at| {
                    let started = Arc::clone(&started);
                    let task = async move {
                        let mut held = Vec::with_capacity(60);
                        started.fetch_add(1, Ordering::Relaxed);
                        loop {
                            held.push(bytes(0, 100 + at));
                            tokio::task::yield_now().await;
                            if held.len() > 50 {
                                held.clear();
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                    };
                    tokio::spawn(task.in_group(&groups[at % 20]))
                })
                .collect();
            while started.load(Ordering::Relaxed) < 200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Each task holds a vector from its first poll on.
            for group in &groups {
                let ledger = group.ledger();
                let vectors = 10 * 60 * size_of::<Vec<u8>>() as u64;
                assert!(
                    ledger.allocated() + ledger.max_error() >= vectors,
                    "{}: {ledger:?}",
                    group.path()
                );
            }
            for task in &tasks {
                task.abort();
            }
            for task in tasks {
                assert!(task.await.unwrap_err().is_cancelled());
            }
        });
        drop(tokio);
        memcg_alloc::catch_up();
        for group in groups {
            assert_eq!(group.live(), 0, "{}", group.path());
            group.offline().unwrap();
        }
        runtime.settle();
        assert_eq!(
            (
                runtime.dying_count(),
                runtime.root().usage(),
                runtime.counts().underflows
            ),
            (0, 0, 0)
        );
    });
}
