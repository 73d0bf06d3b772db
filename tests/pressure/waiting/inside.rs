//! A reclaimer does not wait: what does not fit is refused at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{Bytes, OnFull, ReclaimPriority};

use super::{KIB, Polled, WATCHDOG, call, charge, full, limited, lock, runtimes, turned_away};

#[test]
fn refused_at_once() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let asked = Arc::new(AtomicU64::new(0));
        let errors = Arc::new(Mutex::new(Vec::new()));
        let _registration = {
            let asked = Arc::clone(&asked);
            let errors = Arc::clone(&errors);
            let reclaimer = call(move |_, context| {
                let group = context.group();
                asked.fetch_add(1, Ordering::SeqCst);
                let mut future = Polled::new(group.charge_async(Bytes(5 * KIB)));
                let wait = OnFull::Wait(WATCHDOG * 10);
                lock(&errors).extend([
                    group
                        .charge_with(Bytes(5 * KIB), OnFull::Wait(WATCHDOG * 10))
                        .expect_err("no room"),
                    turned_away(&mut future),
                    group
                        .charge_with(Bytes(5 * KIB), wait)
                        .expect_err("no room"),
                ]);
                // A charge that fits is made, whatever the form.
                drop(
                    group
                        .charge_with(1, OnFull::Wait(WATCHDOG))
                        .expect("room for one"),
                );
                drop(super::block_on(group.charge_async(1)).expect("room for one"));
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let _held = charge(&group, 9 * KIB);
        assert!(matches!(group.charge(Bytes(2 * KIB)), Err(error) if error.is_over_limit()));
        assert!(asked.load(Ordering::SeqCst) > 0);
        for error in lock(&errors).drain(..) {
            let Some(refusal) = error.over_limit() else {
                panic!("{error}")
            };
            assert_eq!((refusal.group(), refusal.requested()), (&group, 5 * KIB));
        }
        assert_eq!(group.waiting_count(), 0);
    }
}

/// One that got in line before is none of it: a reclaimer may poll it, and it stays.
#[test]
fn a_charge_in_line_stays_there() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let waiter = Arc::new(Mutex::new(super::in_line(&group, KIB)));
        let _registration = {
            let waiter = Arc::clone(&waiter);
            let reclaimer = call(move |_, _| {
                assert!(lock(&waiter).poll().is_pending());
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        assert!(group.charge(Bytes(KIB)).is_err());
        assert_eq!(group.events().local().get(memcg::Event::Panic), 0);
        drop(held);
        drop(super::admitted(&mut lock(&waiter)));
    }
}
