//! A group that goes offline wakes a charge that waits for it, and no other charge.

use memcg::{Bytes, ChargeError, Group, OnFull};

use super::{
    KIB, Polled, WATCHDOG, assert_woken, blocked, charge, create, in_line, join, limited, runtimes,
    turned_away,
};

#[track_caller]
fn assert_offline(error: ChargeError, of: &Group, bytes: u64) {
    assert!(error.is_offline(), "{error}");
    assert_eq!((error.group(), error.requested()), (of, bytes));
}

#[test]
fn with_a_whole_subtree() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let going = create(&top, "going");
        let below: Vec<Group> = (0..4)
            .map(|number| create(&going, &number.to_string()))
            .collect();
        let _held = charge(&top, 10 * KIB);
        let mut waiters: Vec<_> = below.iter().map(|group| in_line(group, KIB)).collect();
        let threads: Vec<_> = below
            .iter()
            .map(|group| blocked(group, KIB, &top))
            .collect();
        going.offline_tree();
        for ((waiter, thread), group) in waiters.iter_mut().zip(threads).zip(&below) {
            assert_offline(turned_away(waiter), group, KIB);
            assert_offline(join(thread).expect_err("it is offline"), group, KIB);
        }
        assert_eq!(top.waiting_count(), 0);
    }
}

/// It has the charge already and does not know it.
#[test]
fn after_it_was_admitted() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let going = create(&top, "going");
        let held = charge(&top, 10 * KIB);
        let mut waiter = in_line(&going, KIB);
        drop(held);
        assert_woken(&waiter, true);
        going.offline().expect("no children");
        // It is told of one or of the other: nothing is left.
        match Polled::poll(&mut waiter) {
            std::task::Poll::Ready(Ok(charge)) => assert_eq!(charge.bytes(), KIB),
            std::task::Poll::Ready(Err(error)) => assert_offline(error, &going, KIB),
            std::task::Poll::Pending => panic!("for what?"),
        }
        assert_eq!(top.live(), 0);
    }
}

#[test]
fn no_charge_waits_for_one_that_is_offline() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let gone = create(&top, "gone");
        gone.offline().expect("no children");
        assert_offline(
            gone.charge_with(Bytes(KIB), OnFull::Wait(WATCHDOG))
                .expect_err("it is offline"),
            &gone,
            KIB,
        );
        assert_offline(
            turned_away(&mut Polled::new(gone.charge_async(Bytes(KIB)))),
            &gone,
            KIB,
        );
        // One that was made before, and is polled for the first time afterwards.
        let going = create(&top, "going");
        let mut late = Polled::new(going.charge_async(Bytes(KIB)));
        going.offline().expect("no children");
        assert_offline(turned_away(&mut late), &going, KIB);
    }
}
