//! The time that a call has: a reclaimer that takes long is followed by no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Bytes, Group, Limit, Limits, ReclaimContext, ReclaimPriority};

use super::{Cache, KIB, Log, MIB, assert_sound, bare, build, call, charge, create_with, kinds};

/// Works until the time is over, however long that takes.
fn until_over(context: &ReclaimContext<'_>) {
    while Instant::now() <= context.deadline() {
        std::thread::yield_now();
    }
}

fn limited(root: &Group) -> Group {
    create_with(root, "q", Limits::new().max(Limit::Bytes(16 * MIB)))
}

#[test]
fn no_group_is_asked_once_the_time_is_over() {
    for builder in kinds() {
        let runtime = build(builder.reclaim_time(Duration::from_millis(2)));
        let group = limited(&runtime.root());
        let log = Log::default();
        let calls = Arc::new(AtomicU64::new(0));
        let _slow = {
            let calls = Arc::clone(&calls);
            let reclaimer = call(move |_, context| {
                calls.fetch_add(1, Ordering::SeqCst);
                until_over(context);
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::LOW)
        };
        let (cache, _registration) = Cache::of(&group, 16 * MIB, &log);
        let refused = group.charge(Bytes(MIB)).expect_err("the time is over");
        assert!(refused.is_over_limit(), "{refused}");
        assert_eq!(
            (calls.load(Ordering::SeqCst), log.len(), cache.bytes()),
            (1, 0, 16 * MIB)
        );
        assert_sound(&runtime);
    }
}

/// `Group::reclaim` says that it ran out of time, and what there was of it.
#[test]
fn the_report_says_so() {
    let runtime = build(bare().reclaim_time(Duration::from_millis(2)));
    let group = limited(&runtime.root());
    let log = Log::default();
    let slow = Cache::alone(&group, 8 * MIB, &log);
    let _registered = {
        let slow = Arc::clone(&slow);
        let reclaimer = call(move |_, context| {
            let freed = slow.evict(64 * KIB);
            until_over(context);
            freed
        });
        group.register_reclaimer(reclaimer, ReclaimPriority::LOW)
    };
    let (cache, registration) = Cache::of(&group, 8 * MIB, &log);
    let report = group
        .reclaim(Bytes(4 * MIB))
        .expect("not inside a reclaimer");
    assert!(report.timed_out, "{report:?}");
    assert_eq!(
        (report.freed, report.requested, cache.bytes()),
        (64 * KIB, 4 * MIB, 8 * MIB)
    );
    drop((registration, cache));
    assert_sound(&runtime);
}

#[test]
fn one_that_is_in_time_says_so_too() {
    let runtime = build(bare());
    let group = limited(&runtime.root());
    let log = Log::default();
    let (_cache, _registration) = Cache::of(&group, 8 * MIB, &log);
    for want in [MIB, 100 * MIB] {
        let report = group.reclaim(Bytes(want)).expect("not inside a reclaimer");
        assert!(!report.timed_out, "{report:?}");
    }
}

/// Memory that was freed in time, or late, admits the charge if it is enough.
#[test]
fn late_is_not_lost() {
    for builder in kinds() {
        let runtime = build(builder.reclaim_time(Duration::from_millis(2)));
        let group = limited(&runtime.root());
        let cache = Cache::alone(&group, 16 * MIB, &Log::default());
        let _registration = {
            let cache = Arc::clone(&cache);
            let reclaimer = call(move |_, context| {
                until_over(context);
                cache.evict(2 * MIB)
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let held = charge(&group, MIB);
        assert_eq!(cache.bytes(), 14 * MIB);
        assert_sound(&runtime);
        drop(held);
    }
}

/// It frees, and takes again what it freed: the call ends all the same.
#[test]
fn one_that_refills_is_left_in_the_end() {
    for builder in kinds() {
        let runtime = build(builder.reclaim_time(Duration::from_millis(20)));
        let group = limited(&runtime.root());
        let cache = Cache::alone(&group, 16 * MIB, &Log::default());
        let _registration = {
            let cache = Arc::clone(&cache);
            let reclaimer = call(move |want, _| {
                let freed = cache.evict(want);
                // Inside a reclaimer it takes only what there is.
                drop(cache.add(freed));
                freed
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        assert!(group.charge(Bytes(MIB)).is_err());
        let report = group
            .reclaim(Bytes(u64::MAX))
            .expect("not inside a reclaimer");
        assert!(
            report.requested == u64::MAX && group.live() <= 16 * MIB,
            "{report:?}"
        );
        group.set_max(Limit::Bytes(8 * MIB)).expect("a number");
        assert_sound(&runtime);
    }
}
