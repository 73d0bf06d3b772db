//! The caller's answer to a lack of room.

use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, ChargeError, Event, Group, OnFull};

use super::{
    Cache, KIB, Log, WATCHDOG, blocked, build, charge, create, join, left_empty, limited, runtimes,
    until,
};

/// Neither waits in line, and without reclaimers and victims both say that there is no room.
#[test]
fn charge_and_try_charge_refuse() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held = charge(&group, 10 * KIB);
        for error in
            [group.charge(1), group.try_charge(1)].map(|refused| refused.expect_err("full"))
        {
            assert!(
                error
                    .over_limit()
                    .is_some_and(|refusal| refusal.group() == &group),
                "{error}"
            );
        }
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
        assert!(error.waited() >= Some(time), "{error}");
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

/// A charge that is made in any case, and others give first what they have.
fn charge_or_force(group: &Group, bytes: u64) -> Charge {
    let charged = group.charge(Bytes(bytes));
    charged.unwrap_or_else(|_| group.force_charge(Bytes(bytes)))
}

#[test]
fn charge_or_force_asks_before_it_exceeds() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = create(&top, "q");
        let (cache, _registration) = Cache::of(&top, 60 * KIB, &Log::default());
        let _held = charge(&group, 40 * KIB);
        let first = charge_or_force(&group, 50 * KIB);
        assert_eq!(
            (
                first.bytes(),
                top.forced(),
                top.events().get(Event::Overcharge)
            ),
            (50 * KIB, 0, 0)
        );
        assert!(cache.bytes() <= 10 * KIB, "{}", cache.bytes());
        let second = charge_or_force(&group, 50 * KIB);
        assert_eq!(
            (second.bytes(), top.live()),
            (50 * KIB, 140 * KIB + cache.bytes())
        );
        assert_eq!(
            (top.forced(), top.events().local().get(Event::Overcharge)),
            (40 * KIB + cache.bytes(), 1)
        );
        // Not even what can never fit.
        let third = charge_or_force(&group, 500 * KIB);
        assert_eq!((third.bytes(), group.waiting_count()), (500 * KIB, 0));
    }
}

/// A verb that may refuse.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Charge,
    Try,
    With(OnFull),
}

const VERBS: [Verb; 7] = [
    Verb::Charge,
    Verb::Try,
    Verb::With(OnFull::Wait(Duration::from_millis(1))),
    Verb::With(OnFull::Reclaim),
    Verb::With(OnFull::Start),
    Verb::With(OnFull::Now),
    Verb::With(OnFull::IfRoom),
];

impl Verb {
    fn guard(self, group: &Group, bytes: u64) -> Result<Charge, ChargeError> {
        match self {
            Verb::Charge => group.charge(Bytes(bytes)),
            Verb::Try => group.try_charge(Bytes(bytes)),
            Verb::With(full) => group.charge_with(Bytes(bytes), full),
        }
    }

    fn raw(self, group: &Group, bytes: u64) -> Result<(), ChargeError> {
        match self {
            Verb::Charge => group.raw().charge(Bytes(bytes)),
            Verb::Try => group.raw().try_charge(Bytes(bytes)),
            Verb::With(full) => group.raw().charge_with(Bytes(bytes), full),
        }
    }
}

/// Each form makes and refuses the same charges with a guard and without.
#[test]
fn without_a_guard_as_with_one() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for verb in VERBS {
            verb.raw(&group, 10 * KIB).expect("room");
            let (guard, raw) = (verb.guard(&group, 1), verb.raw(&group, 1));
            assert!(guard.is_err() && raw.is_err(), "{verb:?}");
            assert_eq!(group.live(), 10 * KIB, "{verb:?}");
            assert_eq!(
                matches!(&raw, Err(error) if error.is_would_block() && error.over_limit().is_none()),
                verb == Verb::With(OnFull::IfRoom),
                "{verb:?}: {raw:?}"
            );
            group.raw().uncharge(Bytes(10 * KIB));
            assert_eq!(group.live(), 0, "{verb:?}");
            verb.raw(&group, 0).expect("nothing");
        }
        group.offline().expect("no children");
        for verb in VERBS {
            let error = verb.raw(&group, 1).expect_err("offline");
            assert_eq!(
                error.is_offline(),
                verb != Verb::With(OnFull::IfRoom),
                "{verb:?}: {error}"
            );
        }
        drop(group);
        // A thread that was started for a charge keeps the group until it is through.
        until("no group is dying", || runtime.dying_count() == 0);
    }
}

/// A guard holds fewer bytes than were asked for, and an amount says how many were charged.
#[test]
fn beyond_what_a_level_counts() {
    let runtime = left_empty(build(super::bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held = group.force_charge(Bytes(u64::MAX));
    assert_eq!(held.bytes(), (1 << 63) - 1);
    assert_eq!(group.raw().force_charge(1), 0, "usage would pass 2^63");
    assert!(group.try_charge(1).is_err() && group.charge(1).is_err());
    assert_eq!(group.live(), held.bytes());
}
