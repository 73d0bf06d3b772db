//! Which charges may barge past the first in line: others, until together they have taken as many
//! bytes as it asks for.

use std::sync::Barrier;
use std::thread;

use memcg::{Bytes, Group, OnFull};

use super::{
    KIB, Waiter, admitted, assert_woken, build, charge, create, in_line, kinds, left_empty,
    limited, runtimes,
};

/// Charges of `bytes`, each given back at once, until one is refused.
#[track_caller]
fn pass(group: &Group, bytes: u64) -> u64 {
    let mut passed = 0;
    loop {
        match group.charge(Bytes(bytes)) {
            Ok(charge) => drop(charge),
            Err(error) if error.is_over_limit() => return passed,
            Err(other) => panic!("{other}"),
        }
        passed += 1;
        assert!(passed < 1_000_000, "nothing stops them");
    }
}

#[test]
fn as_many_bytes_as_the_first_asks_for() {
    for builder in kinds() {
        for bytes in [KIB, 4 * KIB, 16 * KIB] {
            let runtime = left_empty(build(builder.clone()));
            let group = limited(&runtime.root(), "q", 100 * KIB);
            let held = charge(&group, 50 * KIB);
            let mut first = in_line(&group, 64 * KIB);
            assert_eq!(pass(&group, bytes), 64 * KIB / bytes);
            // There is room, and no charge has it; no charge gets in by trying again, however
            // little it asks for.
            assert_eq!(group.live(), 50 * KIB);
            assert_eq!((pass(&group, bytes), pass(&group, 1)), (0, 0));
            assert_woken(&first, false);
            drop(held);
            let _admitted = admitted(&mut first);
            // No charge is in line any more.
            drop(charge(&group, 36 * KIB));
        }
    }
}

/// They are looked at one by one: so many, and no more.
#[test]
fn not_from_far_behind() {
    for builder in kinds() {
        for (between, passes) in [(8, true), (63, true), (200, false)] {
            let runtime = left_empty(build(builder.clone()));
            let group = limited(&runtime.root(), "q", 100 * KIB);
            let mut held = charge(&group, 100 * KIB);
            let first = in_line(&group, 64 * KIB);
            let _large: Vec<Waiter> = (0..between).map(|_| in_line(&group, 50 * KIB)).collect();
            let small = in_line(&group, KIB);
            held.shrink(Bytes(10 * KIB));
            assert_eq!(small.wakes(), u64::from(passes), "with {between} between");
            assert_woken(&first, false);
        }
    }
}

/// A charge elsewhere barges past no waiter, though its group is below the same root.
#[test]
fn other_levels_are_other_lines() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = limited(&root, "q", 100 * KIB);
        let other = create(&root, "other");
        let _held = charge(&group, 50 * KIB);
        let _first = in_line(&group, 64 * KIB);
        assert_eq!(pass(&group, KIB), 64);
        for _ in 0..1_000 {
            drop(charge(&other, KIB));
            drop(charge(&root, KIB));
        }
        assert_eq!(
            (
                group.waiting_count(),
                root.waiting_count(),
                other.waiting_count()
            ),
            (1, 0, 0)
        );
    }
}

/// The same, exactly, with threads: each goes on until it is refused.
#[test]
fn counted_exactly_among_threads() {
    const THREADS: usize = 4;
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let below: Vec<Group> = (0..THREADS)
            .map(|number| create(&group, &number.to_string()))
            .collect();
        for _ in 0..20 {
            let held = charge(&group, 50 * KIB);
            let first = in_line(&group, 64 * KIB);
            let start = Barrier::new(THREADS);
            let passed: u64 = thread::scope(|scope| {
                let start = &start;
                let pass = &pass;
                let threads = below.iter().map(|group| {
                    scope.spawn(move || {
                        start.wait();
                        pass(group, KIB)
                    })
                });
                let threads: Vec<_> = threads.collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .sum()
            });
            assert_eq!(passed, 64);
            assert_woken(&first, false);
            drop((held, first));
            assert_eq!((group.waiting_count(), group.live()), (0, 0));
        }
    }
}

/// Every verb that may be refused is a charge: it passes, is counted, and is stopped as any other.
#[test]
fn in_every_verb() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let other = create(&runtime.root(), "other");
        let mut held = charge(&group, 40 * KIB);
        let _first = in_line(&group, 64 * KIB);
        let memory = memcg::CounterKey::MEMORY;
        let mut moved = charge(&other, 8 * KIB);
        for _ in 0..2 {
            held.grow(Bytes(8 * KIB)).expect("it may pass");
            held.shrink(Bytes(8 * KIB));
            held.resize(Bytes(48 * KIB)).expect("it may pass");
            held.resize(Bytes(40 * KIB)).expect("less always fits");
            drop(
                group
                    .charge_set(&[(memory, Bytes(8 * KIB))])
                    .expect("it may pass"),
            );
            moved.transfer(&group).expect("it may pass");
            moved.transfer(&other).expect("no limit there");
        }
        assert_eq!((group.live(), pass(&group, 1)), (40 * KIB, 0));
        assert!(
            held.grow(1).is_err()
                && held.resize(Bytes(41 * KIB)).is_err()
                && moved.transfer(&group).is_err()
        );
        assert!(
            group.charge_set(&[(memory, 1)]).is_err()
                && group.charge_with(1, OnFull::Reclaim).is_err()
        );
        assert!(group.charge(1).is_err() && group.try_charge(1).is_err());
        assert_eq!(
            (held.bytes(), moved.group(), group.live()),
            (40 * KIB, other.clone(), 40 * KIB)
        );
    }
}

/// A thread that gets past the first in line and is refused at a level above has taken nothing.
#[test]
fn what_is_refused_above_has_passed_no_charge() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = limited(&top, "q", 80 * KIB);
        let other = create(&top, "other");
        let _held = charge(&group, 40 * KIB);
        let mut rest = charge(&other, 60 * KIB);
        let _first = in_line(&group, 64 * KIB);
        assert_eq!((group.waiting_count(), top.waiting_count()), (1, 0));
        for _ in 0..1_000 {
            assert!(group.charge(Bytes(KIB)).is_err(), "top is full");
        }
        rest.shrink(Bytes(50 * KIB));
        assert_eq!(pass(&group, KIB), 64);
    }
}

/// A charge that moves from one group to another below the full level takes no room there.
#[test]
fn moving_below_the_level_passes_no_charge() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let [one, other] = ["one", "other"].map(|name| create(&top, name));
        let mut held = charge(&one, 50 * KIB);
        let first = in_line(&top, 64 * KIB);
        assert_eq!(pass(&other, KIB), 64);
        for to in [&other, &one, &other] {
            held.transfer(to).expect("top is not touched");
            assert_eq!((to.live(), top.live()), (50 * KIB, 50 * KIB));
        }
        assert_woken(&first, false);
    }
}
