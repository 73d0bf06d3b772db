//! First come, first served.

use std::thread::JoinHandle;

use memcg::{Bytes, Charge, ChargeError};

use super::{
    KIB, Waiter, admitted, assert_sound, assert_woken, blocked, build, charge, create, in_line,
    join, kinds, left_empty, limited, runtimes, until,
};

/// One line for all that wait for the same room, in whatever groups, in whatever way.
#[test]
fn one_line_for_all_below() {
    enum Kind {
        Future(Waiter),
        Thread(JoinHandle<Result<Charge, ChargeError>>),
    }
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 6 * KIB);
        let groups = [create(&top, "a"), create(&top, "b"), top.clone()];
        let mut held: Vec<Charge> = (0..6)
            .map(|number| charge(&groups[number % 3], KIB))
            .collect();
        let mut waiters = Vec::new();
        for number in 0..6 {
            let group = &groups[number % 3];
            waiters.push(match number % 2 {
                0 => Kind::Future(in_line(group, KIB)),
                _ => Kind::Thread(blocked(group, KIB, &top)),
            });
            assert_eq!(top.waiting_count(), number + 1);
        }
        let mut admitted_charges = Vec::new();
        for (number, kind) in waiters.into_iter().enumerate() {
            assert_eq!(top.live(), 6 * KIB);
            drop(held.pop());
            let charge = match kind {
                Kind::Future(mut waiter) => {
                    assert_woken(&waiter, true);
                    admitted(&mut waiter)
                }
                Kind::Thread(thread) => join(thread).expect("it is its turn"),
            };
            assert_eq!(
                (charge.group(), charge.bytes()),
                (groups[number % 3].clone(), KIB)
            );
            admitted_charges.push(charge);
        }
        assert_sound(&runtime);
    }
}

/// The thread that frees is not one that waits: another thread serves the threads in line, one by
/// one.
#[test]
fn threads_in_the_order_in_which_they_came() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 4 * KIB);
        let mut held = charge(&group, 4 * KIB);
        let threads: Vec<_> = (0..4).map(|_| blocked(&group, KIB, &group)).collect();
        let mut charges = Vec::new();
        for (number, thread) in threads.into_iter().enumerate() {
            held.shrink(Bytes(KIB));
            charges.push(join(thread).expect("it is its turn"));
            until("one less", || group.waiting_count() == 3 - number);
        }
        drop((held, charges));
    }
}

/// A way to give a charge back; another group is at hand.
type Way = fn(Charge, &memcg::Group);

/// By whatever verb: what is given back is handed over.
#[test]
fn whatever_is_given_back() {
    for builder in kinds() {
        let mut builder = builder;
        let swap = builder.counter("swap", memcg::Unit::Bytes);
        let runtime = left_empty(build(builder));
        let group = limited(&runtime.root(), "q", 8 * KIB);
        let below = create(&group, "below");
        let other = create(&runtime.root(), "other");
        let ways: [(&str, Way); 7] = [
            ("drop", |held, _| drop(held)),
            ("shrink", |mut held, other| {
                held.shrink(Bytes(u64::MAX));
                held.transfer(other).expect("of nothing");
            }),
            ("resize", |mut held, _| {
                held.resize(0).expect("less always fits")
            }),
            ("split", |mut held, _| {
                drop(held.split(Bytes(KIB)).expect("of 8"));
                drop(held.split(Bytes(7 * KIB)).expect("of 7"));
            }),
            ("take", |mut held, _| drop(held.take())),
            ("transfer", |mut held, other| {
                held.transfer(other).expect("no limit there")
            }),
            ("merge", |mut held, _| {
                let mut all = held.take();
                all.merge(held).expect("of the same group");
            }),
        ];
        for (name, way) in ways {
            for from in [&group, &below] {
                let held = charge(from, 8 * KIB);
                let mut waiter = in_line(&group, 5 * KIB);
                way(held, &other);
                assert_eq!(waiter.wakes(), 1, "{name}");
                drop(admitted(&mut waiter));
            }
        }
        // And as part of a set.
        let held = group
            .charge_set(&[
                (memcg::CounterKey::MEMORY, Bytes(8 * KIB)),
                (swap, Bytes(1)),
            ])
            .expect("room");
        let mut waiter = in_line(&below, 5 * KIB);
        drop(held);
        drop(admitted(&mut waiter));
    }
}
