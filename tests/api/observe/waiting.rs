//! Charges that wait when observing begins are made; no charge waits while it lasts.

use super::{KIB, WATCHDOG, admitted, blocked, charge, create, in_line, join, limited, runtimes};
use memcg::{Bytes, OnFull};

#[test]
fn a_charge_that_waits_is_let_through() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        let group = limited(&top, "q", 10 * KIB);
        let _held = charge(&group, 10 * KIB);
        let mut waiters = [in_line(&group, 5 * KIB), in_line(&group, 10 * KIB)];
        let thread = blocked(&group, 3 * KIB, &group);
        top.set_observe_only(true);
        for waiter in &waiters {
            assert_eq!(waiter.wakes(), 1);
        }
        let _charges = (
            waiters.each_mut().map(admitted),
            join(thread).expect("let through"),
        );
        assert_eq!((group.waiting_count(), group.live()), (0, 28 * KIB));
    }
}

/// A limit above holds the charges that wait for it.
#[test]
fn a_charge_that_waits_above_waits_on() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 20 * KIB);
        let group = limited(&top, "q", 10 * KIB);
        let held = (charge(&group, 10 * KIB), charge(&top, 10 * KIB));
        let mut waiter = in_line(&group, 5 * KIB);
        assert_eq!((group.waiting_count(), top.waiting_count()), (1, 0));
        group.set_observe_only(true);
        assert_eq!(
            (group.waiting_count(), top.waiting_count(), waiter.wakes()),
            (0, 1, 0)
        );
        drop(held.1);
        drop(admitted(&mut waiter));
        drop((held.0, waiter, group, top));
    }
}

/// Afterwards there is a line again.
#[test]
fn afterwards_they_wait_again() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        group.set_observe_only(true);
        let mut held = charge(&group, 30 * KIB);
        group.set_observe_only(false);
        let mut waiter = in_line(&group, 5 * KIB);
        held.shrink(Bytes(24 * KIB));
        assert_eq!(waiter.wakes(), 0);
        held.shrink(Bytes(KIB));
        drop(admitted(&mut waiter));
    }
}

/// On and off while threads wait: all are served.
#[test]
fn on_and_off_while_threads_wait() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            drop(
                                group
                                    .charge_with(Bytes(6 * KIB), OnFull::Wait(WATCHDOG))
                                    .expect("its turn"),
                            );
                        }
                    })
                })
                .collect();
            let mut round = 0;
            while threads.iter().any(|thread| !thread.is_finished()) {
                group.set_observe_only(round % 2 == 0);
                round += 1;
                std::thread::yield_now();
            }
            group.set_observe_only(false);
        });
    }
}
