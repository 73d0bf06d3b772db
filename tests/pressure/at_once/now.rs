//! A charge that never blocks and starts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Event, Limit, Limits, OnFull, OomPolicy, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, bare, build, call, charge, create, credit_elsewhere, kinds, left_empty,
    limited, local, not_made, refused, runtimes, stocked, would_block,
};

/// The call starts nothing: no reclaimer is asked, no group cancelled, no event counted.
#[test]
fn it_starts_nothing() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let log = Log::default();
        let (_cache, registration) = Cache::of(&group, 80 * KIB, &log);
        let refusal = would_block(group.charge_with(Bytes(30 * KIB), OnFull::Now));
        assert_eq!(
            (refusal.group(), refusal.requested(), refusal.want()),
            (&group, 30 * KIB, 10 * KIB)
        );
        let held = group
            .charge_with(Bytes(20 * KIB), OnFull::Now)
            .expect("it fits");
        would_block(group.charge_with(1, OnFull::Now));
        assert!(log.is_empty());
        assert_eq!(
            [Event::Max, Event::Oom].map(|event| local(&group, event)),
            [0, 0]
        );
        assert_eq!(
            (group.refused_count(), held.bytes(), group.live()),
            (2, 20 * KIB, 100 * KIB)
        );
        refused(group.charge_with(Bytes(101 * KIB), OnFull::Now));
        drop(registration);
        not_made(group.charge_with(1, OnFull::Now));
    }
}

#[test]
fn no_group_is_cancelled() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let _held = charge(&group, 100 * KIB);
        group.set_oom_policy(OomPolicy::Choose);
        let cancelled = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&cancelled);
        let _hook = group.on_cancel(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        would_block(group.charge_with(1, OnFull::Now));
        assert_eq!(
            (cancelled.load(Ordering::SeqCst), group.waiting_count()),
            (0, 0)
        );
    }
}

/// The quiet form makes what fits, and else leaves no trace: no event, no refusal that is counted,
/// no handle.
#[test]
fn where_there_is_room_alone() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(super::WATCHDOG)));
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = create(&top, "q");
        let log = Log::default();
        let (cache, registration) = Cache::of(&group, 80 * KIB, &log);
        let held = group
            .charge_with(Bytes(20 * KIB), OnFull::IfRoom)
            .expect("it fits");
        assert!(
            group.charge_with(1, OnFull::IfRoom).is_err()
                && top.charge_with(1, OnFull::IfRoom).is_err()
        );
        assert_eq!(
            (held.bytes(), group.live(), top.live(), log.is_empty()),
            (20 * KIB, 100 * KIB, 100 * KIB, true)
        );
        assert_eq!(
            [Event::Max, Event::Oom].map(|event| local(&top, event)),
            [0, 0]
        );
        assert_eq!((top.refused_count(), group.refused_count()), (0, 0));
        drop(held);
        // Above a high nothing is charged: the caller's next step is the one that is delayed.
        group
            .set_limits(Limits::new().high(Limit::Bytes(0)))
            .expect("a number");
        log.take();
        let before = group.live();
        let started = std::time::Instant::now();
        assert!(group.charge_with(Bytes(MIB / 64), OnFull::IfRoom).is_err());
        assert!(started.elapsed() < super::WATCHDOG / 2, "it has slept");
        assert_eq!((group.live(), local(&group, Event::High)), (before, 0));
        let none = group
            .charge_with(0, OnFull::IfRoom)
            .expect("nothing always fits");
        drop((registration, cache, none));
        group.offline().expect("no children");
        assert!(
            group.charge_with(1, OnFull::IfRoom).is_err()
                && group.charge_with(0, OnFull::IfRoom).is_err()
        );
    }
}

/// As any charge: to its sum, at all levels, and never above a max.
#[test]
fn it_is_a_charge() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = limited(&top, "q", 8 * KIB);
        let mut held = group
            .charge_with(Bytes(6 * KIB), OnFull::Now)
            .expect("it fits");
        held.merge(
            group
                .charge_with(Bytes(2 * KIB), OnFull::Now)
                .expect("it fits"),
        )
        .expect("of the same group");
        drop(
            group
                .charge_with(0, OnFull::Now)
                .expect("nothing always fits"),
        );
        assert_eq!(
            (held.bytes(), group.live(), top.live()),
            (8 * KIB, 8 * KIB, 8 * KIB)
        );
        assert_eq!(not_made(group.charge_with(1, OnFull::Now)).group(), &group);
        assert_eq!(
            not_made(top.charge_with(Bytes(3 * KIB), OnFull::Now)).group(),
            &top
        );
        let _none = group
            .charge_with(0, OnFull::Now)
            .expect("nothing always fits");
        group.offline().expect("no children");
        for bytes in [0, 1] {
            assert!(
                matches!(group.charge_with(bytes, OnFull::Now), Err(error) if error.is_offline())
            );
        }
    }
}

/// This thread's own credit is no reason to refuse it.
#[test]
fn its_own_credit_is_room() {
    for builder in [
        stocked(),
        stocked().adaptive(false),
        stocked().adaptive(false).audit(false),
    ] {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 8 * KIB);
        let one = group.charge_with(1, OnFull::Now).expect("it fits");
        let rest = group
            .charge_with(Bytes(8 * KIB - 1), OnFull::Now)
            .expect("all else is credit of this thread");
        assert_eq!((group.live(), group.usage()), (8 * KIB, 8 * KIB));
        drop((one, rest, group));
        runtime.root().memory().drain();
        assert_eq!(runtime.root().usage(), 0);
    }
}

/// Another thread's credit takes a drain: the call says that it would have to wait.
#[test]
fn others_credit_is_not_drained() {
    let runtime = left_empty(build(stocked().adaptive(false)));
    let group = limited(&runtime.root(), "q", 8 * KIB);
    let _other = credit_elsewhere(&group);
    let before = (
        group.memory().stocked(),
        group.live(),
        runtime.counts().barriers,
    );
    assert_eq!((before.0, before.1), (4 * KIB, 0));
    would_block(group.charge_with(Bytes(8 * KIB), OnFull::Now));
    assert_eq!(
        (
            group.memory().stocked(),
            group.live(),
            runtime.counts().barriers
        ),
        before
    );
    drop(charge(&group, 8 * KIB));
}

/// Above a high it is made, at once, and nothing is reclaimed.
#[test]
fn a_high_does_not_hold_it_up() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(super::WATCHDOG)));
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (cache, _registration) = Cache::of(&group, 8 * MIB, &log);
        group
            .set_limits(Limits::new().high(Limit::Bytes(MIB)))
            .expect("a number");
        log.take();
        cache.evict(u64::MAX);
        let _more = group.force_charge(Bytes(8 * MIB));
        let started = std::time::Instant::now();
        let _held = group
            .charge_with(Bytes(8 * MIB), OnFull::Now)
            .expect("high refuses no charge");
        assert!(started.elapsed() < super::QUICK);
        assert!(log.is_empty() && !group.inspect().high_delay(Bytes(MIB)).is_zero());
    }
}

/// Inside a reclaimer it is refused as any charge there.
#[test]
fn inside_a_reclaimer() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let _held = charge(&group, 10 * KIB);
    let inside = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&inside);
    let again = group.clone();
    let reclaimer = call(move |_, _| {
        let asks = [
            again.charge_with(1, OnFull::Now),
            again.charge_with(1, OnFull::Start),
        ];
        let told = asks
            .iter()
            .filter(|ended| matches!(&ended, Err(error) if error.is_in_reclaim()))
            .count();
        count.fetch_add(told as u64, Ordering::SeqCst);
        0
    });
    let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    group.charge(1).expect_err("nothing is freed");
    assert_eq!(inside.load(Ordering::SeqCst), 2);
}

/// What a thread charges ahead is credit, and no reason to refuse below a high.
#[test]
fn a_batch_is_not_in_the_way_below_high() {
    let runtime = build(bare().batch(16).adaptive(false));
    let group = create(&runtime.root(), "q");
    // From the second charge on the stock is open.
    let mut held: Vec<_> = (0..3).map(|_| charge(&group, 1)).collect();
    let credit = group.usage() - group.live();
    assert!(credit > 0, "the stock is open");
    held.push(charge(&group, 32));
    group
        .set_limits(Limits::new().high(Limit::Bytes(group.usage() + 1)))
        .expect("no percentage");
    let of_another_thread = |bytes: u64| {
        let group = &group;
        std::thread::scope(|scope| {
            let job = scope.spawn(move || group.charge_with(Bytes(bytes), OnFull::IfRoom));
            job.join().expect("no panic")
        })
    };
    held.push(of_another_thread(1).expect("below high"));
    let refused = of_another_thread(17).expect_err("above high, and more than a batch");
    assert!(refused.is_would_block(), "{refused}");
}

/// An observed high delays nobody.
#[test]
fn an_observed_high_is_in_nobodys_way() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        group
            .set_limits(Limits::new().high(Limit::Bytes(10 * KIB)))
            .expect("no percentage");
        group.set_observe_only(true);
        let held = charge(&group, 20 * KIB);
        let more = group.charge_with(Bytes(KIB), OnFull::IfRoom);
        drop(more.expect("nothing in the way"));
        group.set_observe_only(false);
        group
            .charge_with(Bytes(40 * MIB), OnFull::IfRoom)
            .expect_err("above high");
        drop(held);
    }
}
