//! A group that goes offline wakes a charge that waits for it, and no other charge.

use memcg::{Bytes, ChargeError, Group, OnFull};

use super::{
    KIB, Polled, WATCHDOG, admitted, assert_empty, assert_sound, assert_woken, blocked, build, charge, create, in_line,
    join, kinds, limited, turned_away,
};

#[track_caller]
fn assert_offline(error: ChargeError, of: &Group, bytes: u64) {
    match error {
        ChargeError::Offline { group, requested, .. } => assert_eq!((&group, requested), (of, bytes)),
        other => panic!("{other}"),
    }
}

#[test]
fn a_charge_that_waits_is_woken() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let [going, staying] = ["going", "staying"].map(|name| create(&top, name));
        let held = charge(&staying, 10 * KIB);
        let mut gone = [in_line(&going, KIB), in_line(&going, 2 * KIB)];
        let thread = blocked(&going, 3 * KIB, &top);
        let mut stays = in_line(&staying, 4 * KIB);
        assert_eq!(top.waiting_count(), 4);
        going.offline().expect("no children");
        for (waiter, bytes) in gone.iter_mut().zip([KIB, 2 * KIB]) {
            assert_woken(waiter, true);
            assert_offline(turned_away(waiter), &going, bytes);
        }
        assert_offline(join(thread).expect_err("it is offline"), &going, 3 * KIB);
        assert_eq!((top.waiting_count(), going.usage(), top.live()), (1, 0, 10 * KIB));
        assert_woken(&stays, false);
        drop(held);
        drop(admitted(&mut stays));
        drop((gone, stays, going, staying, top));
        assert_empty(&runtime);
    }
}

#[test]
fn with_a_whole_subtree() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let going = create(&top, "going");
        let below: Vec<Group> = (0..4).map(|number| create(&going, &number.to_string())).collect();
        let held = charge(&top, 10 * KIB);
        let mut waiters: Vec<_> = below.iter().map(|group| in_line(group, KIB)).collect();
        let threads: Vec<_> = below.iter().map(|group| blocked(group, KIB, &top)).collect();
        going.offline_tree();
        for ((waiter, thread), group) in waiters.iter_mut().zip(threads).zip(&below) {
            assert_offline(turned_away(waiter), group, KIB);
            assert_offline(join(thread).expect_err("it is offline"), group, KIB);
        }
        assert_eq!(top.waiting_count(), 0);
        drop((held, waiters, below, going, top));
        assert_empty(&runtime);
    }
}

/// A runtime that is dropped takes its groups offline.
#[test]
fn with_the_runtime() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let mut waiter = in_line(&group, KIB);
        let thread = blocked(&group, KIB, &group);
        drop(runtime);
        assert_offline(turned_away(&mut waiter), &group, KIB);
        assert_offline(join(thread).expect_err("it is offline"), &group, KIB);
        assert_eq!(held.group().live(), 10 * KIB);
    }
}

/// It has the charge already and does not know it.
#[test]
fn after_it_was_admitted() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let going = create(&top, "going");
        let held = charge(&top, 10 * KIB);
        let mut waiter = in_line(&going, KIB);
        drop(held);
        assert_woken(&waiter, true);
        going.offline().expect("no children");
        // Whether it is told of one or of the other: nothing is left.
        match Polled::poll(&mut waiter) {
            std::task::Poll::Ready(Ok(charge)) => assert_eq!(charge.bytes(), KIB),
            std::task::Poll::Ready(Err(error)) => assert_offline(error, &going, KIB),
            std::task::Poll::Pending => panic!("for what?"),
        }
        assert_eq!(top.live(), 0);
        drop((waiter, going, top));
        assert_empty(&runtime);
    }
}

#[test]
fn no_charge_waits_for_one_that_is_offline() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let gone = create(&top, "gone");
        gone.offline().expect("no children");
        assert_offline(
            gone.try_charge_with(Bytes(KIB), OnFull::Wait(WATCHDOG)).expect_err("it is offline"),
            &gone,
            KIB,
        );
        assert_offline(turned_away(&mut Polled::new(gone.charge_async(Bytes(KIB)))), &gone, KIB);
        // One that was made before, and is polled for the first time afterwards.
        let going = create(&top, "going");
        let mut late = Polled::new(going.charge_async(Bytes(KIB)));
        going.offline().expect("no children");
        assert_offline(turned_away(&mut late), &going, KIB);
        drop((late, gone, going, top));
        assert_empty(&runtime);
    }
}

/// The first in line, past which no charge may barge any more, is the one that goes.
#[test]
fn those_behind_move_up() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let [going, staying] = ["going", "staying"].map(|name| create(&top, name));
        let held = charge(&staying, 50 * KIB);
        let mut first = in_line(&going, 64 * KIB);
        while staying.try_charge(Bytes(KIB)).is_ok() {}
        let mut second = in_line(&staying, 10 * KIB);
        going.offline().expect("no children");
        assert_offline(turned_away(&mut first), &going, 64 * KIB);
        assert_woken(&second, true);
        drop(admitted(&mut second));
        assert_sound(&runtime);
        drop((held, first, second, going, staying, top));
        assert_empty(&runtime);
    }
}

/// Going offline while another thread frees what is waited for: one or the other, and nothing is lost.
#[test]
fn while_it_is_admitted() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 10 * KIB);
        for round in 0..300 {
            let going = create(&top, &round.to_string());
            let held = charge(&top, 10 * KIB);
            let mut waiter = in_line(&going, KIB);
            let thread = blocked(&going, KIB, &top);
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drop(held);
                });
                start.wait();
                going.offline().expect("no children");
            });
            for outcome in [waiter.finish(), join(thread)] {
                match outcome {
                    Ok(charge) => assert_eq!(charge.bytes(), KIB),
                    Err(error) => assert_offline(error, &going, KIB),
                }
            }
            assert_eq!((top.live(), top.waiting_count()), (0, 0));
        }
        drop(top);
        assert_empty(&runtime);
    }
}
