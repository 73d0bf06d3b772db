//! Registered is asked; dropped is gone; a group that goes offline leaves its reclaimers to its
//! parent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, Reclaim, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, assert_sound, bare, build, call, charge, create, left_empty, lock,
    runtimes,
};

const ROUNDS: u64 = if cfg!(debug_assertions) {
    2_000
} else {
    20_000
};

/// The same one twice is two, each with an end of its own.
#[test]
fn registered_twice_is_asked_until_both_are_gone() {
    let runtime = build(bare());
    let group = create(&runtime.root(), "q");
    let log = Log::default();
    let (cache, first) = Cache::of(&group, 8 * MIB, &log);
    let second = group.register_reclaimer(
        Arc::clone(&cache) as Arc<dyn Reclaim>,
        ReclaimPriority::HIGH,
    );
    assert_eq!(Arc::strong_count(&cache), 3);
    for registration in [first, second] {
        assert_eq!(
            group
                .reclaim(Bytes(MIB))
                .expect("not inside a reclaimer")
                .freed,
            MIB
        );
        drop(registration);
    }
    assert_eq!(
        group
            .reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        0
    );
    assert_eq!((cache.bytes(), Arc::strong_count(&cache)), (6 * MIB, 1));
    assert_sound(&runtime);
}

/// Threads ask again and again, another drops the registration: once the drop has returned no call
/// begins, and none is under way.
#[test]
fn no_call_after_the_drop() {
    let runtime = build(bare());
    let group = create(&runtime.root(), "q");
    let _held = charge(&group, MIB);
    let stop = AtomicBool::new(false);
    let late = Arc::new(AtomicU64::new(0));
    let calls = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let report = group.reclaim(Bytes(KIB)).expect("not inside a reclaimer");
                    assert_eq!(report.freed, 0);
                }
            });
        }
        for round in 0..ROUNDS {
            let gone = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&gone);
            let late = Arc::clone(&late);
            let calls = Arc::clone(&calls);
            let registration = group.register_reclaimer(
                call(move |_, _| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..50 {
                        late.fetch_add(u64::from(seen.load(Ordering::SeqCst)), Ordering::SeqCst);
                    }
                    0
                }),
                ReclaimPriority::NORMAL,
            );
            // It is being asked, or was just now, when it goes; now and then at once.
            (0..round % 7 * 100).for_each(|_| std::hint::spin_loop());
            drop(registration);
            gone.store(true, Ordering::SeqCst);
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(
        late.load(Ordering::SeqCst),
        0,
        "seen after the drop, in {calls:?} calls"
    );
    assert!(calls.load(Ordering::SeqCst) > 0);
    assert_sound(&runtime);
}

/// A call that has begun is over before the drop returns.
#[test]
fn the_drop_waits_for_a_call() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let _held = charge(&group, MIB);
        let flags = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let [inside, dropping, gone] = flags.each_ref().map(Arc::clone);
        let late = Arc::new(AtomicBool::new(false));
        let noticed = Arc::clone(&late);
        let reclaimer = call(move |_, _| {
            inside.store(true, Ordering::SeqCst);
            while !dropping.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Time enough for a drop that does not wait.
            std::thread::sleep(Duration::from_millis(2));
            noticed.fetch_or(gone.load(Ordering::SeqCst), Ordering::SeqCst);
            0
        });
        let registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
        std::thread::scope(|scope| {
            scope.spawn(|| group.reclaim(Bytes(MIB)).expect("not inside a reclaimer"));
            while !flags[0].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            flags[1].store(true, Ordering::SeqCst);
            drop(registration);
            flags[2].store(true, Ordering::SeqCst);
        });
        assert!(
            !late.load(Ordering::SeqCst),
            "the drop returned in the middle of a call"
        );
        assert_sound(&runtime);
    }
}

/// Its charges stay with the group that went, and its parent is asked for them.
#[test]
fn the_parent_inherits() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let a = create(&root, "a");
        let b = create(&a, "b");
        let c = create(&b, "c");
        let (cache, registration) = Cache::of(&c, 8 * MIB, &log);
        c.offline().expect("no children");
        assert_eq!(
            b.reclaim(Bytes(MIB)).expect("not inside a reclaimer").freed,
            MIB
        );
        assert_eq!(log.order(), ["/a/b"]);
        b.offline().expect("no children online");
        log.take();
        for target in [&a, &root] {
            assert_eq!(
                target
                    .reclaim(Bytes(MIB))
                    .expect("not inside a reclaimer")
                    .freed,
                MIB
            );
            assert!(
                log.take()
                    .iter()
                    .all(|asked| asked.group == "/a" && asked.target == target.path())
            );
        }
        a.offline().expect("no children online");
        assert_eq!(
            root.reclaim(Bytes(MIB))
                .expect("not inside a reclaimer")
                .freed,
            MIB
        );
        assert_eq!(log.order(), ["/"]);
        assert_eq!((root.live(), cache.bytes()), (4 * MIB, 4 * MIB));
        log.take();
        drop(registration);
        assert_eq!(
            root.reclaim(Bytes(MIB))
                .expect("not inside a reclaimer")
                .freed,
            0
        );
        assert!(log.is_empty());
        assert_sound(&runtime);
    }
}

/// A whole tree goes at once; its reclaimers end at the one that is still online, each at its
/// priority.
#[test]
fn the_nearest_that_is_online_inherits_from_a_tree() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let top = create(&root, "top");
    let below = create(&top, "below");
    let deep = create(&below, "deep");
    let caches = [
        Cache::at(&deep, MIB, ReclaimPriority::HIGH, &log),
        Cache::at(&below, MIB, ReclaimPriority::NORMAL, &log),
        Cache::at(&top, MIB, ReclaimPriority::LOW, &log),
    ];
    top.offline_tree();
    let left = || caches.each_ref().map(|(cache, _)| cache.bytes());
    for (freed, expected) in [(MIB, [MIB, MIB, 0]), (MIB, [MIB, 0, 0]), (MIB, [0, 0, 0])] {
        assert_eq!(
            root.reclaim(Bytes(freed))
                .expect("not inside a reclaimer")
                .freed,
            freed
        );
        assert_eq!(left(), expected);
    }
    assert_eq!(log.order(), ["/"]);
    assert_sound(&runtime);
}

/// A group that is offline already hands on what is registered with it.
#[test]
fn registered_with_a_group_that_is_offline() {
    let runtime = left_empty(build(bare()));
    let root = runtime.root();
    let log = Log::default();
    let group = create(&root, "q");
    let cache = Cache::alone(&group, 2 * MIB, &log);
    group.offline().expect("no children");
    let _registration = group.register_reclaimer(
        Arc::clone(&cache) as Arc<dyn Reclaim>,
        ReclaimPriority::NORMAL,
    );
    assert_eq!(
        root.reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        MIB
    );
    assert_eq!(log.order(), ["/"]);
}

/// The name is free at once: the next group of it does not inherit.
#[test]
fn the_next_of_the_name_does_not_inherit() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let first = create(&root, "q");
    let (cache, _registration) = Cache::of(&first, 2 * MIB, &log);
    first.offline().expect("no children");
    let second = create(&root, "q");
    let held = charge(&second, MIB);
    assert_eq!(
        second
            .reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        0
    );
    assert!(log.is_empty());
    assert_eq!((cache.bytes(), held.bytes()), (2 * MIB, MIB));
    assert_sound(&runtime);
}

/// In whatever order they go: registration, reclaimer, group, runtime.
#[test]
fn a_registration_outlives_what_it_was_made_with() {
    for order in 0..4 {
        let runtime = build(bare());
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (cache, registration) = Cache::of(&group, MIB, &log);
        let alive = Arc::downgrade(&cache);
        match order {
            0 => drop((runtime, group, registration, cache)),
            1 => drop((registration, runtime, cache, group)),
            2 => drop((cache, runtime, group, registration)),
            _ => drop((group, registration, cache, runtime)),
        }
        assert!(alive.upgrade().is_none(), "order {order}");
        assert!(log.is_empty());
    }
}

/// While the first of many is asked all of them go, with their parents, and others take the names:
/// the walk goes on with those, and a group that has gone is not asked.
#[test]
fn the_tree_may_go_under_the_walk() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let top = create(&root, "top");
        let made = Arc::new(Mutex::new(Vec::new()));
        let once = Arc::new(AtomicBool::new(false));
        let mut gone = Vec::new();
        for number in 0..8 {
            let parent = create(&top, &number.to_string());
            let old = Log::default();
            let leaf = create(&parent, "leaf");
            let root = root.clone();
            let log = log.clone();
            let made = Arc::clone(&made);
            let once = Arc::clone(&once);
            let cache = Cache::alone(&leaf, 4 * MIB, &old);
            let reclaimer = call(move |_, context| {
                if once.swap(true, Ordering::SeqCst) {
                    return cache.evict(u64::MAX);
                }
                context
                    .group()
                    .parent()
                    .and_then(|parent| parent.parent())
                    .expect("/top")
                    .offline_tree();
                let top = create(&root, "top");
                for number in 0..8 {
                    let group = create(&top, &number.to_string());
                    lock(&made).push(Cache::of(&group, 4 * MIB, &log));
                }
                0
            });
            gone.push(leaf.register_reclaimer(reclaimer, ReclaimPriority::NORMAL));
        }
        drop(top);
        let report = root
            .reclaim(Bytes(64 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!(report.panics, 0);
        assert!(
            lock(&made).iter().any(|(cache, _)| cache.bytes() < 4 * MIB),
            "no new group was asked"
        );
        assert!(report.freed >= 60 * MIB, "{report:?}");
        assert!(log.order().iter().all(|path| path.starts_with("/top/")));
        assert_sound(&runtime);
        drop(gone);
        lock(&made).clear();
    }
}
