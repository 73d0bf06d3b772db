//! Limits that move while a thread waits, and charges that can never fit.

use memcg::{Bytes, ChargeError, Group, Limit, Limits, OnFull};

use super::{
    KIB, Polled, WATCHDOG, Waiter, admitted, assert_empty, assert_sound, assert_woken, blocked, build, charge, create,
    in_line, join, kinds, limited, turned_away,
};

#[track_caller]
fn set_max(group: &Group, bytes: u64) {
    group.set_max(Limit::Bytes(bytes)).expect("a number");
}

/// A refusal that no waiting would have helped.
#[track_caller]
fn assert_never(error: ChargeError, level: &Group, bytes: u64) {
    match error {
        ChargeError::Limit(refusal) => assert_eq!((refusal.group(), refusal.requested()), (level, bytes)),
        other => panic!("{other}"),
    }
}

#[test]
fn raised_it_admits_what_fits() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let mut waiters = [2, 3, 4].map(|number| in_line(&group, number * KIB));
        let thread = blocked(&group, 5 * KIB, &group);
        set_max(&group, 11 * KIB);
        assert!(waiters.iter().all(|waiter| waiter.wakes() == 0));
        set_max(&group, 15 * KIB);
        for (waiter, woken) in waiters.iter().zip([true, true, false]) {
            assert_woken(waiter, woken);
        }
        assert_eq!((group.live(), group.waiting_count()), (15 * KIB, 2));
        group.set_max(Limit::Unlimited).expect("no number");
        let charges: Vec<_> = waiters.iter_mut().map(admitted).collect();
        let last = join(thread).expect("no limit any more");
        assert_eq!((group.live(), group.waiting_count()), (24 * KIB, 0));
        drop((held, charges, last, waiters, group));
        assert_empty(&runtime);
    }
}

/// Stored for later is stored all the same.
#[test]
fn raised_without_asking_any_charge() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let mut waiter = in_line(&group, 5 * KIB);
        assert_eq!(group.set_max_now(Limit::Bytes(15 * KIB)).expect("a number"), 0);
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
        drop((held, waiter, group));
        assert_empty(&runtime);
    }
}

/// A percentage of a max above is a max that moves with it.
#[test]
fn raised_above_it_admits_below() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 20 * KIB);
        let half = top.create("half", Limits::new().max(Limit::percent(50))).expect("a free name");
        let held = charge(&half, 10 * KIB);
        let mut waiter = in_line(&half, 5 * KIB);
        assert_eq!((half.waiting_count(), top.waiting_count()), (1, 0));
        set_max(&top, 30 * KIB);
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
        drop((held, waiter, half, top));
        assert_empty(&runtime);
    }
}

#[test]
fn what_can_never_fit_does_not_wait() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = create(&top, "q");
        let held = charge(&group, 5 * KIB);
        for bytes in [10 * KIB + 1, 11 * KIB, u64::MAX] {
            assert_never(
                group.try_charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG * 10)).expect_err("it is too large"),
                &top,
                bytes,
            );
            assert_never(turned_away(&mut Polled::new(group.charge_async(Bytes(bytes)))), &top, bytes);
        }
        assert_eq!((top.waiting_count(), group.waiting_count()), (0, 0));
        // The largest that may.
        let mut largest = in_line(&group, 10 * KIB);
        drop(held);
        drop(admitted(&mut largest));
        drop((largest, group, top));
        assert_empty(&runtime);
    }
}

/// A max that is lowered turns away the charges that can never fit any more, and no other charge.
#[test]
fn lowered_it_turns_away() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let mut held = charge(&group, 10 * KIB);
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
        assert_empty(&runtime);
    }
}

/// The same with a max that is set for later.
#[test]
fn lowered_for_later_it_turns_away() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let mut waiter = in_line(&group, 6 * KIB);
        assert_eq!(group.set_max_now(Limit::Bytes(5 * KIB)).expect("a number"), 5 * KIB);
        assert_never(turned_away(&mut waiter), &group, 6 * KIB);
        assert_eq!(group.waiting_count(), 0);
        drop((held, waiter, group));
        assert_empty(&runtime);
    }
}

/// Up and down, many times, by one thread, while others wait: all are served in the end.
#[test]
fn up_and_down() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let done = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..3_u64 {
                let (group, done) = (&group, &done);
                scope.spawn(move || {
                    for round in 0..300 {
                        let bytes = (1 + (number + round) % 4) * KIB;
                        drop(group.try_charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG)).expect("its turn"));
                    }
                    done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                });
            }
            for round in 0.. {
                // Never below what a charge asks for.
                set_max(&group, (4 + round % 7) * KIB);
                if done.load(std::sync::atomic::Ordering::SeqCst) == 3 {
                    break;
                }
            }
        });
        assert_sound(&runtime);
        drop(group);
        assert_empty(&runtime);
    }
}
