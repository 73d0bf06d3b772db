//! The sum of a group's memory, and the limits that slow it down or stop it: current, peak, high
//! and max.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, Limit, Limits, Registration, StatKey};

use super::pages::{Page, PageCache};
use super::{
    Cell, PAGE, PATIENCE, alloc_anon, assert_current, assert_sound, count, create, stat,
    values_close,
};
use crate::support::reclaimers::MIB;
use crate::support::workers::Other;

/// `alloc_anon_50M_check` in `test_memcontrol.c`: current and *anon* while a process has it. It
/// exits.
#[track_caller]
fn alloc_anon_50m_check(group: &Group) {
    let process = Other::spawn();
    let work = |group: &Group| {
        (0..50 * MIB / PAGE)
            .map(|_| Page::of(group, StatKey::ANON))
            .collect::<Result<Vec<_>, _>>()
    };
    let held = process.with(group, work).expect("no limit");
    assert!(group.usage() >= 50 * MIB && group.live() >= 50 * MIB);
    assert_current(group, 50 * MIB, 3);
    assert_current(group, stat(group, StatKey::ANON), 3);
    process.run(move || drop(held));
}

/// `alloc_pagecache_50M_check` in `test_memcontrol.c`: whether current came to be 50M, and *file*
/// to be close to it.
fn alloc_pagecache_50m_check(group: &Group) -> bool {
    let process = Other::spawn();
    let (registration, cache) = PageCache::of(group);
    process
        .with(&cache, |cache| cache.alloc(50 * MIB))
        .expect("the cache takes from itself");
    let came = [group.usage(), group.live()].map(|current| {
        current >= 50 * MIB && values_close(stat(group, StatKey::FILE), current, 10)
    });
    drop((registration, cache));
    assert_eq!(came[0], came[1], "credit is not what it came by");
    came[0]
}

/// `alloc_pagecache_max_30M` in `test_memcontrol.c`: 50M are read where high or max is 30M, and 30M
/// of them stay.
#[track_caller]
fn alloc_pagecache_max_30m(group: &Group) -> (Other, Registration, Arc<PageCache>) {
    assert!(group.inspect().high() == 30 * MIB || group.max() == 30 * MIB);
    let process = Other::spawn();
    let (registration, cache) = PageCache::of(group);
    process
        .with(&cache, |cache| cache.alloc(50 * MIB))
        .expect("the cache takes from itself");
    assert_current(group, 30 * MIB, 5);
    (process, registration, cache)
}

/// `test_memcg_current_peak` in `test_memcontrol.c`: current and items of the statistics agree, the
/// peak remains, and windows on it are reset and closed one by one, in another order than they were
/// opened.
fn test_memcg_current_peak(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    assert_eq!((group.usage(), group.peak()), (0, 0));
    alloc_anon_50m_check(&group);
    assert!(group.peak() >= 50 * MIB);

    let [first, second, third] = [
        group.memory().peak_window(),
        group.memory().peak_window(),
        group.memory().peak_window(),
    ];
    for window in [&first, &second, &third] {
        window.reset();
    }
    assert!(group.peak() >= 50 * MIB, "a window is no other group's");
    drop(second);
    let fourth = group.memory().peak_window();
    fourth.reset();
    assert!(first.peak() <= 30 * MIB, "{}", first.peak());

    assert!(alloc_pagecache_50m_check(&group));
    for peak in [group.peak(), first.peak(), fourth.peak()] {
        assert!(peak >= 50 * MIB, "{peak}");
    }
    drop(third);
    drop(fourth);
    assert!(first.peak() >= 50 * MIB);
    assert_sound(&runtime);
}

/// `test_memcg_high` in `test_memcontrol.c`: 31M of memory that cannot be reclaimed are admitted at
/// a high of 30M; page cache is held to it.
fn test_memcg_high(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    assert_eq!(group.inspect().high(), u64::MAX);
    group
        .set_limits(Limits::new().high(Limit::Bytes(30 * MIB)))
        .expect("a number");
    assert!(alloc_anon(&group, 31 * MIB), "high refuses no charge");
    assert!(!alloc_pagecache_50m_check(&group), "never 50M");
    drop(alloc_pagecache_max_30m(&group));
    assert!(count(&group, Event::High) > 0);
    assert_eq!(
        [Event::Max, Event::Oom].map(|event| count(&group, event)),
        [0, 0]
    );
    assert_sound(&runtime);
}

/// Bytes that a thread of the kernel is charged before it looks whether it is above high:
/// `MEMCG_CHARGE_BATCH` pages.
const BATCH: u64 = 64 * PAGE;

/// `alloc_anon_mlock` in `test_memcontrol.c`: one call of a process populates 200M, and looks at
/// each batch whether it has been killed meanwhile. The process says each time that it has been
/// delayed. A charge that takes no more than credit is not delayed, and no group is for 10 ms or
/// less.
fn alloc_anon_mlock(group: &Group, killed: &AtomicBool, delayed: Sender<()>) {
    let mut held = Vec::new();
    while held.len() as u64 * BATCH < 200 * MIB && !killed.load(Ordering::Relaxed) {
        let noticed = count(group, Event::High);
        let began = Instant::now();
        held.push(group.charge(Bytes(BATCH)).expect("max is far away"));
        let delay = group.inspect().high_delay(Bytes(BATCH));
        if count(group, Event::High) > noticed && delay > Duration::from_millis(10) {
            assert!(
                began.elapsed() >= delay,
                "within the call: {:?} of {delay:?}",
                began.elapsed()
            );
            // No group may be listening any more.
            let _ = delayed.send(());
        }
    }
}

/// `test_memcg_high_sync` in `test_memcontrol.c`: one call populates 200M where high is 30M and max
/// 140M. A group that waits for an event finds *high* counted and *max* not, for the process is
/// delayed within that call, not after it.
fn test_memcg_high_sync(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    group
        .set_limits(Limits::new().high(Limit::Bytes(30 * MIB)))
        .expect("a number");
    group.set_max(Limit::Bytes(140 * MIB)).expect("a number");
    let before = group.events();
    let killed = AtomicBool::new(false);
    let (delayed, says_so) = channel();
    std::thread::scope(|scope| {
        let process = scope.spawn(|| alloc_anon_mlock(&group, &killed, delayed));
        let noticed = before.wait(Event::High, PATIENCE);
        let was_delayed = says_so.recv_timeout(PATIENCE);
        let after = group.events();
        killed.store(true, Ordering::Relaxed);
        process.join().expect("no panic");
        assert!(noticed && was_delayed.is_ok() && after.get(Event::High) > before.get(Event::High));
        assert_eq!(after.get(Event::Max), before.get(Event::Max));
    });
    assert_sound(&runtime);
}

/// `test_memcg_max` in `test_memcontrol.c`: 100M that cannot be reclaimed get their process killed
/// at a max of 30M; page cache takes from itself.
fn test_memcg_max(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    assert_eq!(group.max(), u64::MAX);
    group.set_max(Limit::Bytes(30 * MIB)).expect("a number");
    assert!(!alloc_anon(&group, 100 * MIB));
    let reader = alloc_pagecache_max_30m(&group);
    assert!(
        group.usage() <= 30 * MIB && group.live() > 0,
        "{}",
        group.usage()
    );
    assert!(count(&group, Event::Max) > 0);
    assert_eq!(
        [Event::Oom, Event::OomKill].map(|event| count(&group, event)),
        [1, 1],
        "not for the cache"
    );
    drop(reader);
    assert_sound(&runtime);
}

matrix! { test_memcg_current_peak test_memcg_high test_memcg_high_sync test_memcg_max }
