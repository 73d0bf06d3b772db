//! More than one level that is full: a charge waits at the level that refused it, and goes on to
//! the next.

use memcg::Limit;
use memcg::{Bytes, OnFull};

use super::{
    Cache, KIB, Log, WATCHDOG, admitted, assert_woken, blocked, charge, create, in_line, join,
    limited, runtimes, turned_away,
};

/// There is room below, and none above: the waiter moves, once, and no thread wakes for that.
#[test]
fn from_one_to_the_next() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let inner = limited(&top, "inner", 5 * KIB);
        let other = create(&top, "other");
        let below = charge(&inner, 5 * KIB);
        let mut beside = charge(&other, KIB);
        let mut waiter = in_line(&inner, 3 * KIB);
        let thread = blocked(&inner, 2 * KIB, &inner);
        assert_eq!((inner.waiting_count(), top.waiting_count()), (2, 0));
        let _more = charge(&other, 4 * KIB);
        // Its own level is still full.
        beside.shrink(Bytes(KIB));
        let _again = charge(&other, KIB);
        assert_woken(&waiter, false);
        let all = other.force_charge(Bytes(5 * KIB));
        drop(below);
        // 5 KiB of room below, and none above.
        assert_eq!((inner.waiting_count(), top.waiting_count()), (0, 2));
        assert_woken(&waiter, false);
        drop(all);
        assert_woken(&waiter, true);
        let _charges = (admitted(&mut waiter), join(thread).expect("its turn"));
        assert_eq!((inner.live(), top.live()), (5 * KIB, 10 * KIB));
    }
}

/// A charge that can never fit at a level above is turned away when it comes there, if not before.
#[test]
fn never_at_a_level_above() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let inner = limited(&top, "inner", 100 * KIB);
        let held = charge(&inner, 5 * KIB);
        inner.set_max(Limit::Bytes(20 * KIB)).expect("a number");
        let error = inner
            .charge_with(Bytes(15 * KIB), OnFull::Wait(WATCHDOG * 10))
            .expect_err("more than top has");
        assert!(
            error
                .over_limit()
                .is_some_and(|refusal| refusal.group() == &top),
            "{error}"
        );
        drop(error);
        // It waits below, or it does not; when there is room below, it does not any more.
        inner.set_max(Limit::Bytes(15 * KIB)).expect("a number");
        let mut waiter = super::Polled::new(inner.charge_async(Bytes(11 * KIB)));
        let waits = waiter.poll().is_pending();
        drop(held);
        if waits {
            let error = turned_away(&mut waiter);
            assert!(
                error
                    .over_limit()
                    .is_some_and(|refusal| refusal.group() == &top),
                "{error}"
            );
        }
        assert_eq!((inner.waiting_count(), top.waiting_count()), (0, 0));
    }
}

/// Charges that barge past a waiter in one line take from its budget for the next line, too: one
/// budget for the whole wait.
#[test]
fn passed_once() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let inner = limited(&top, "inner", 100 * KIB);
        let other = create(&top, "other");
        let below = charge(&inner, 40 * KIB);
        let mut waiter = in_line(&inner, 70 * KIB);
        drop(charge(&inner, 10 * KIB));
        let forced = other.force_charge(Bytes(80 * KIB));
        drop(below);
        assert_eq!(
            (inner.waiting_count(), top.waiting_count(), top.live()),
            (0, 1, 80 * KIB)
        );
        for _ in 0..3 {
            drop(charge(&other, 20 * KIB));
        }
        let error = other
            .charge(1)
            .expect_err("charges of 70 KiB have barged past the first");
        assert!(
            error
                .over_limit()
                .is_some_and(|refusal| refusal.is_behind()),
            "{error}"
        );
        drop((error, forced));
        drop((admitted(&mut waiter), waiter, inner, other, top));
    }
}

/// The same for a waiter that was first until an older one came from another line.
#[test]
fn passed_once_though_a_charge_older_comes() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let inner = limited(&top, "inner", 100 * KIB);
        let other = create(&top, "other");
        let below = charge(&inner, 40 * KIB);
        let older = in_line(&inner, 70 * KIB);
        let beside = charge(&other, 40 * KIB);
        let mut younger = in_line(&other, 50 * KIB);
        assert_eq!((inner.waiting_count(), top.waiting_count()), (1, 1));
        for _ in 0..3 {
            drop(charge(&other, 10 * KIB));
        }
        // Room below for the older one, and none above.
        let forced = other.force_charge(Bytes(45 * KIB));
        drop(below);
        assert_eq!(
            (inner.waiting_count(), top.waiting_count(), top.live()),
            (0, 2, 85 * KIB)
        );
        drop(charge(&other, 15 * KIB));
        drop(older);
        for _ in 0..2 {
            drop(charge(&other, 10 * KIB));
        }
        let error = other
            .charge(1)
            .expect_err("charges of 50 KiB have barged past the younger waiter while it was first");
        assert!(
            error
                .over_limit()
                .is_some_and(|refusal| refusal.is_behind()),
            "{error}"
        );
        drop((error, forced));
        drop((admitted(&mut younger), beside, younger, inner, other, top));
    }
}

/// A waiter came before the first in line at either level, and no charge may barge past these two
/// any more. The waiter goes before them, and not from one line to the other for ever.
#[test]
fn older_than_the_first_of_two_lines() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 200 * KIB);
        let inner = limited(&top, "inner", 100 * KIB);
        let other = create(&top, "other");
        let below = charge(&inner, 60 * KIB);
        let beside = charge(&other, 80 * KIB);
        let mut oldest = in_line(&inner, 50 * KIB);
        let above = in_line(&other, 90 * KIB);
        (0..9).for_each(|_| drop(charge(&other, 10 * KIB)));
        // Up, and back again.
        let mut forced = other.force_charge(Bytes(120 * KIB));
        drop(below);
        assert_eq!((inner.waiting_count(), top.waiting_count()), (0, 2));
        let held = inner.force_charge(Bytes(50 * KIB));
        let younger = in_line(&inner, 60 * KIB);
        forced.shrink(Bytes(70 * KIB));
        (0..5).for_each(|_| drop(charge(&inner, 10 * KIB)));
        let more = inner.force_charge(Bytes(20 * KIB));
        drop(forced);
        assert_eq!((inner.waiting_count(), top.waiting_count()), (2, 1));
        assert!(
            other.charge(Bytes(KIB)).is_err(),
            "no charge passes at the one"
        );
        // Now there is room for the oldest at both.
        let giver = std::thread::spawn(move || drop(more));
        join(giver);
        assert_woken(&oldest, true);
        assert_eq!(
            (inner.waiting_count(), top.waiting_count(), inner.live()),
            (1, 1, 100 * KIB)
        );
        drop((
            admitted(&mut oldest),
            oldest,
            above,
            younger,
            held,
            beside,
            inner,
            other,
            top,
        ));
    }
}

/// A waiter that has moved asks there for memory, as it did where it came from. It is woken once
/// more for that, where there is a reclaimer to ask.
#[test]
fn at_the_next_level_a_charge_may_have_something() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let inner = limited(&top, "inner", 5 * KIB);
        let other = create(&top, "other");
        let below = charge(&inner, 5 * KIB);
        let (cache, _registration) = Cache::of(&other, 5 * KIB, &Log::default());
        let mut waiter = in_line(&inner, 3 * KIB);
        let thread = blocked(&inner, 2 * KIB, &inner);
        let _forced = other.force_charge(Bytes(5 * KIB));
        assert!(cache.bytes() == 5 * KIB && inner.waiting_count() == 2);
        drop(below);
        let _charges =
            [waiter.finish(), join(thread)].map(|charge| charge.expect("the cache gives"));
        assert!(
            waiter.wakes() <= 2 && cache.bytes() == 0,
            "{} and {}",
            waiter.wakes(),
            cache.bytes()
        );
        assert_eq!((inner.live(), top.live()), (5 * KIB, 10 * KIB));
    }
}
