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
