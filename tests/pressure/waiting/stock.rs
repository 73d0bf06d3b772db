//! Other threads' credit is room: no byte that is given back stays where the first in line cannot
//! see it.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;

use memcg::{Bytes, RuntimeBuilder};

use super::{
    KIB, admitted, assert_woken, build, charge, create, in_line, kinds, left_empty, limited,
};

/// Batches that matter beside the limit.
fn large_batches() -> impl Iterator<Item = RuntimeBuilder> {
    kinds()
        .into_iter()
        .skip(1)
        .map(|builder| builder.batch(Bytes(64 * KIB)).budget(Bytes(u64::MAX)))
}

/// Credit of a thread that does nothing is taken back before any charge waits.
#[test]
fn what_lies_idle_is_taken() {
    for builder in large_batches() {
        let runtime = left_empty(build(builder));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let (stop, stopped) = channel::<()>();
        let (charged, ready) = channel();
        let other = {
            let group = group.clone();
            thread::spawn(move || {
                let held = charge(&group, KIB);
                charged.send(()).expect("a thread listens");
                let _ = stopped.recv();
                drop(held);
            })
        };
        ready.recv().expect("it has charged");
        let all = super::block_on(group.charge_async(Bytes(99 * KIB))).expect("99 are left");
        let mut waiter = in_line(&group, 2);
        drop(stop);
        super::join(other);
        // The other's bytes were in no stock: the first in line has them.
        assert_woken(&waiter, true);
        drop((all, admitted(&mut waiter)));
    }
}

/// Charged before, given back by another thread while a thread waits.
#[test]
fn what_another_thread_gives_back() {
    for builder in large_batches() {
        let runtime = left_empty(build(builder));
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let groups = ["a", "b"].map(|name| create(&top, name));
        let mut held: Vec<_> = (0..20)
            .map(|number| charge(&groups[number % 2], 5 * KIB))
            .collect();
        let mut waiter = in_line(&groups[0], 23 * KIB);
        thread::scope(|scope| {
            for mut part in held.split_off(15) {
                scope.spawn(move || {
                    // In pieces, as from a stock.
                    while part.shrink(100) > 0 {}
                });
            }
        });
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

/// When no thread waits any more, hits are hits again: the line leaves nothing behind.
#[test]
fn afterwards_stocks_fill_again() {
    for builder in large_batches() {
        let runtime = left_empty(build(builder));
        let group = limited(&runtime.root(), "q", 100 * 1_024 * KIB);
        let held = charge(&group, 100 * 1_024 * KIB);
        let mut waiter = in_line(&group, KIB);
        assert_eq!(group.memory().stocked(), 0);
        drop(held);
        drop(admitted(&mut waiter));
        for _ in 0..1_000 {
            drop(charge(&group, 10));
        }
        assert!(group.memory().stocked() > 0, "credit is kept again");
    }
}

/// Credit that another thread had before is none any more: it passes as any charge, and is counted.
#[test]
fn credit_from_before_passes_no_charge() {
    for builder in large_batches() {
        let runtime = left_empty(build(builder));
        let top = limited(&runtime.root(), "top", 1_024 * KIB);
        let group = create(&top, "q");
        let go = Barrier::new(2);
        let gone = Barrier::new(2);
        thread::scope(|scope| {
            let passed = scope.spawn(|| {
                let held = charge(&group, KIB);
                go.wait();
                // A charge gets in line.
                gone.wait();
                let mut passed = 0_u64;
                while group.charge(Bytes(KIB)).is_ok() {
                    passed += 1;
                }
                drop(held);
                passed
            });
            go.wait();
            let held = charge(&top, 900 * KIB);
            let first = in_line(&top, 200 * KIB);
            assert_eq!((group.memory().stocked(), top.memory().stocked()), (0, 0));
            gone.wait();
            assert_eq!(passed.join().expect("no panic"), 200);
            assert_woken(&first, false);
            drop((held, first));
        });
    }
}
