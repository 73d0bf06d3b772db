//! The caller's answer to a lack of room.

use std::time::{Duration, Instant};

use memcg::{Bytes, ChargeError, Event, OnFull};

use super::{
    Cache, KIB, Log, WATCHDOG, blocked, build, charge, create, join, left_empty, limited, runtimes,
    until,
};

#[test]
fn refuse_is_as_ever() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held = group
            .charge_with(Bytes(10 * KIB), OnFull::Refuse)
            .expect("room");
        let error = group.charge_with(1, OnFull::Refuse).expect_err("no room");
        assert!(
            matches!(&error, ChargeError::Limit(refusal) if refusal.group() == &group),
            "{error}"
        );
        assert_eq!((group.waiting_count(), group.forced()), (0, 0));
    }
}

#[test]
fn wait_waits() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = group
            .charge_with(Bytes(10 * KIB), OnFull::Wait(WATCHDOG))
            .expect("room");
        let started = Instant::now();
        let time = Duration::from_millis(20);
        let error = group
            .charge_with(1, OnFull::Wait(time))
            .expect_err("no room");
        assert!(
            matches!(&error, ChargeError::TimedOut { waited, .. } if *waited >= time),
            "{error}"
        );
        assert!(started.elapsed() >= time);
        // Behind another. It may barge, so its thread lets go by itself what the other may wait
        // for.
        let before = blocked(&group, 10 * KIB, &group);
        let waits = {
            let group = group.clone();
            std::thread::spawn(move || {
                group
                    .charge_with(Bytes(KIB), OnFull::Wait(WATCHDOG))
                    .map(drop)
            })
        };
        until("two in line", || group.waiting_count() == 2);
        drop(held);
        drop(join(before).expect("its turn"));
        join(waits).expect("room");
    }
}

/// Never refused; but others give first what they have.
#[test]
fn force_asks_before_it_exceeds() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = create(&top, "q");
        let (cache, _registration) = Cache::of(&top, 60 * KIB, &Log::default());
        let _held = charge(&group, 40 * KIB);
        let first = group
            .charge_with(Bytes(50 * KIB), OnFull::Force)
            .expect("the cache gives");
        assert_eq!(
            (
                first.bytes(),
                top.forced(),
                top.events().get(Event::Overcharge)
            ),
            (50 * KIB, 0, 0)
        );
        assert!(cache.bytes() <= 10 * KIB, "{}", cache.bytes());
        let second = group
            .charge_with(Bytes(50 * KIB), OnFull::Force)
            .expect("by force");
        assert_eq!(
            (second.bytes(), top.live()),
            (50 * KIB, 140 * KIB + cache.bytes())
        );
        assert_eq!(
            (top.forced(), top.events().local().get(Event::Overcharge)),
            (40 * KIB + cache.bytes(), 1)
        );
        // Not even what can never fit.
        let third = group
            .charge_with(Bytes(500 * KIB), OnFull::Force)
            .expect("by force");
        assert_eq!((third.bytes(), group.waiting_count()), (500 * KIB, 0));
    }
}

const ALL: [OnFull; 7] = [
    OnFull::Refuse,
    OnFull::Wait(Duration::from_millis(1)),
    OnFull::Force,
    OnFull::Reclaim,
    OnFull::Start,
    OnFull::Now,
    OnFull::IfRoom,
];

/// Each form makes and refuses the same charges with a guard and without.
#[test]
fn without_a_guard_as_with_one() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for full in ALL {
            group
                .raw()
                .charge_with(Bytes(10 * KIB), full)
                .expect("room");
            let guard = group.charge_with(1, full);
            let raw = group.raw().charge_with(1, full);
            assert_eq!(
                (guard.is_ok(), raw.is_ok()),
                (full == OnFull::Force, full == OnFull::Force),
                "{full:?}"
            );
            assert_eq!(
                group.live(),
                10 * KIB + 2 * u64::from(raw.is_ok()),
                "{full:?}"
            );
            if full == OnFull::IfRoom {
                assert!(
                    matches!(&raw, Err(ChargeError::NoRoom { requested: 1, .. })),
                    "{raw:?}"
                );
            }
            group
                .raw()
                .uncharge(Bytes(10 * KIB + u64::from(raw.is_ok())));
            drop((guard, raw));
            assert_eq!(group.live(), 0, "{full:?}");
            group.raw().charge_with(0, full).expect("nothing");
        }
        group.offline().expect("no children");
        for full in ALL {
            let error = group.raw().charge_with(1, full).expect_err("offline");
            assert_eq!(
                matches!(error, ChargeError::Offline { .. }),
                full != OnFull::IfRoom,
                "{full:?}: {error}"
            );
        }
        drop(group);
        // A thread that was started for a charge keeps the group until it is through.
        until("no group is dying", || runtime.dying_count() == 0);
    }
}

/// A guard holds fewer bytes than were asked for; an amount alone cannot say so, and is refused.
#[test]
fn beyond_what_a_level_counts() {
    let runtime = left_empty(build(super::bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held = group
        .charge_with(Bytes(u64::MAX), OnFull::Force)
        .expect("by force");
    assert_eq!(held.bytes(), (1 << 63) - 1);
    let error = group
        .raw()
        .charge_with(1, OnFull::Force)
        .expect_err("usage would pass 2^63");
    assert!(
        matches!(error, ChargeError::NoRoom { requested: 1, .. }),
        "{error}"
    );
    assert_eq!(group.live(), held.bytes());
}
