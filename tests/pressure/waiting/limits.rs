//! Limits that move while a thread waits, and charges that can never fit.

use memcg::{Bytes, ChargeError, Group, Limit, Limits, OnFull};

use super::{
    KIB, Polled, WATCHDOG, Waiter, admitted, assert_woken, blocked, charge, create, full, in_line,
    join, limited, runtimes, turned_away,
};

#[track_caller]
fn set_max(group: &Group, bytes: u64) {
    group.set_max(Limit::Bytes(bytes)).expect("a number");
}

/// A refusal that no waiting would have helped.
#[track_caller]
fn assert_never(error: ChargeError, level: &Group, bytes: u64) {
    match error {
        ChargeError::Limit(refusal) => {
            assert_eq!((refusal.group(), refusal.requested()), (level, bytes))
        }
        other => panic!("{other}"),
    }
}

/// Stored for later is stored all the same.
#[test]
fn raised_without_asking_any_charge() {
    for runtime in runtimes() {
        let (group, _held) = full(&runtime);
        let mut waiter = in_line(&group, 5 * KIB);
        assert_eq!(
            group
                .memory()
                .set_max_now(Limit::Bytes(15 * KIB))
                .expect("a number"),
            0
        );
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

/// A percentage of a max above is a max that moves with it.
#[test]
fn raised_above_it_admits_below() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 20 * KIB);
        let half = top
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let _held = charge(&half, 10 * KIB);
        let mut waiter = in_line(&half, 5 * KIB);
        assert_eq!((half.waiting_count(), top.waiting_count()), (1, 0));
        set_max(&top, 30 * KIB);
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

#[test]
fn what_can_never_fit_does_not_wait() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = create(&top, "q");
        let held = charge(&group, 5 * KIB);
        for bytes in [10 * KIB + 1, 11 * KIB, u64::MAX] {
            assert_never(
                group
                    .charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG * 10))
                    .expect_err("it is too large"),
                &top,
                bytes,
            );
            assert_never(
                turned_away(&mut Polled::new(group.charge_async(Bytes(bytes)))),
                &top,
                bytes,
            );
        }
        assert_eq!((top.waiting_count(), group.waiting_count()), (0, 0));
        // The largest that may.
        let mut largest = in_line(&group, 10 * KIB);
        drop(held);
        drop(admitted(&mut largest));
    }
}

/// A max that is lowered turns away the charges that can never fit any more, and no other charge.
#[test]
fn lowered_it_turns_away() {
    for runtime in runtimes() {
        let (group, mut held) = full(&runtime);
        let mut waiters: [Waiter; 3] = [8, 3, 6].map(|number| in_line(&group, number * KIB));
        let thread = blocked(&group, 7 * KIB, &group);
        set_max(&group, 5 * KIB);
        for (waiter, woken) in waiters.iter().zip([true, false, true]) {
            assert_woken(waiter, woken);
        }
        assert_never(turned_away(&mut waiters[0]), &group, 8 * KIB);
        assert_never(turned_away(&mut waiters[2]), &group, 6 * KIB);
        assert_never(join(thread).expect_err("it is too large"), &group, 7 * KIB);
        assert_eq!((group.waiting_count(), group.live()), (1, 10 * KIB));
        held.shrink(Bytes(5 * KIB));
        assert_woken(&waiters[1], false);
        held.shrink(Bytes(3 * KIB));
        assert_woken(&waiters[1], true);
        drop(admitted(&mut waiters[1]));
        drop((held, waiters, group));
    }
}

/// The same with a max that is set for later.
#[test]
fn lowered_for_later_it_turns_away() {
    for runtime in runtimes() {
        let (group, _held) = full(&runtime);
        let mut waiter = in_line(&group, 6 * KIB);
        assert_eq!(
            group
                .memory()
                .set_max_now(Limit::Bytes(5 * KIB))
                .expect("a number"),
            5 * KIB
        );
        assert_never(turned_away(&mut waiter), &group, 6 * KIB);
        assert_eq!(group.waiting_count(), 0);
    }
}
