//! A future that is dropped: whenever that is, nothing remains of it.

use memcg::Bytes;
use std::sync::Barrier;
use std::thread;

use memcg::Charge;

use super::{
    KIB, Polled, Waiter, admitted, assert_empty, assert_sound, assert_woken, build, charge, in_line, kinds, limited,
    until,
};

#[test]
fn before_it_is_polled() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        drop(group.charge_async(Bytes(KIB)));
        assert_eq!((group.waiting_count(), group.live()), (0, 10 * KIB));
        drop(held);
        // Nor does a future do anything by itself.
        let waiter = group.charge_async(Bytes(KIB));
        assert_eq!((group.waiting_count(), group.live()), (0, 0));
        drop((waiter, group));
        assert_empty(&runtime);
    }
}

#[test]
fn while_it_waits() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let waiter = in_line(&group, KIB);
        assert_eq!(group.waiting_count(), 1);
        drop(waiter);
        assert_eq!((group.waiting_count(), group.live()), (0, 10 * KIB));
        drop(held);
        assert_eq!(group.live(), 0, "no waiter takes it");
        drop(charge(&group, 10 * KIB));
        drop(group);
        assert_empty(&runtime);
    }
}

/// It has been charged and does not know it: the next in line has it.
#[test]
fn after_it_was_admitted() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let (first, mut second) = (in_line(&group, 8 * KIB), in_line(&group, 9 * KIB));
        drop(held);
        assert_woken(&first, true);
        assert_woken(&second, false);
        assert_eq!((group.live(), group.waiting_count()), (8 * KIB, 1));
        drop(first);
        assert_woken(&second, true);
        assert_eq!((group.live(), group.waiting_count()), (9 * KIB, 0));
        drop(admitted(&mut second));
        assert_eq!(group.live(), 0);
        drop((second, group));
        assert_empty(&runtime);
    }
}

/// What it has given away is not its own.
#[test]
fn after_it_is_done() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let mut waiter = in_line(&group, KIB);
        drop(held);
        let charge = admitted(&mut waiter);
        drop(waiter);
        assert_eq!(group.live(), KIB);
        drop(charge);
        // The same for one that never waited.
        let mut quick = Polled::new(group.charge_async(Bytes(KIB)));
        let charge = admitted(&mut quick);
        drop(quick);
        assert_eq!((group.live(), charge.bytes()), (KIB, KIB));
        drop((charge, group));
        assert_empty(&runtime);
    }
}

/// Out of the middle of a long line; the others keep their places.
#[test]
fn out_of_the_middle() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 50 * KIB);
        let mut held: Vec<Charge> = (0..50).map(|_| charge(&group, KIB)).collect();
        let waiters: Vec<Waiter> = (0..100).map(|_| in_line(&group, KIB)).collect();
        let mut waiters: Vec<Waiter> =
            waiters.into_iter().enumerate().filter(|(number, _)| number % 2 == 1).map(|(_, waiter)| waiter).collect();
        assert_eq!((group.waiting_count(), waiters.len()), (50, 50));
        for first in 0..waiters.len() {
            drop(held.pop());
            assert!(waiters.iter().enumerate().all(|(number, of)| of.wakes() == u64::from(number <= first)));
        }
        let charges: Vec<Charge> = waiters.iter_mut().map(admitted).collect();
        assert_eq!(group.live(), 50 * KIB);
        drop((charges, waiters, group));
        assert_empty(&runtime);
    }
}

/// All at once, the first to the last and the other way round.
#[test]
fn all_of_them() {
    for builder in kinds() {
        for backwards in [false, true] {
            let runtime = build(builder.clone());
            let group = limited(&runtime.root(), "q", 10 * KIB);
            let held = charge(&group, 10 * KIB);
            let mut waiters: Vec<Waiter> = (0..1_000).map(|number| in_line(&group, 1 + number)).collect();
            if backwards {
                waiters.reverse();
            }
            drop(waiters);
            assert_eq!((group.waiting_count(), group.live()), (0, 10 * KIB));
            drop(held);
            drop(charge(&group, 10 * KIB));
            drop(group);
            assert_empty(&runtime);
        }
    }
}

/// One thread frees while another drops the first in line: whatever came first, the second is admitted.
#[test]
fn while_it_is_admitted() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for _ in 0..500 {
            let held = charge(&group, 10 * KIB);
            let (first, mut second) = (in_line(&group, 10 * KIB), in_line(&group, 9 * KIB));
            let start = Barrier::new(2);
            thread::scope(|scope| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drop(held);
                });
                start.wait();
                drop(first);
            });
            drop(second.finish().expect("no charge is before it"));
            assert_eq!((group.live(), group.waiting_count()), (0, 0));
        }
        assert_sound(&runtime);
        drop(group);
        assert_empty(&runtime);
    }
}

/// Futures that are dropped by other threads than those that polled them, with others that are served meanwhile.
#[test]
fn by_other_threads() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        thread::scope(|scope| {
            let (gives, takes) = std::sync::mpsc::channel::<Waiter>();
            scope.spawn(move || takes.into_iter().for_each(drop));
            for round in 0..500 {
                let held = charge_in_line(&group);
                let (first, mut second) = (in_line(&group, 10 * KIB), in_line(&group, KIB));
                gives.send(first).expect("it takes them");
                if round % 2 == 0 {
                    thread::yield_now();
                }
                drop(held);
                drop(second.finish().expect("no charge is before it"));
            }
            drop(gives);
        });
        until("all are gone", || group.waiting_count() == 0);
        drop(group);
        assert_empty(&runtime);
    }
}

/// The last of the round before may still be in.
fn charge_in_line(group: &memcg::Group) -> Charge {
    super::block_on(group.charge_async(Bytes(10 * KIB))).expect("its turn")
}
