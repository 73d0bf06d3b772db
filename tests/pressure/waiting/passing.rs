//! Which charges may barge past the first in line: others, until together they have taken as many bytes as it asks for.

use std::sync::Barrier;
use std::thread;

use memcg::{Bytes, Charge, ChargeError, Group, OnFull};

use super::{KIB, Waiter, admitted, assert_empty, assert_woken, build, charge, create, in_line, kinds, limited};

/// Charges of `bytes`, each given back at once, until one is refused.
#[track_caller]
fn pass(group: &Group, bytes: u64) -> u64 {
    let mut passed = 0;
    loop {
        match group.try_charge(Bytes(bytes)) {
            Ok(charge) => drop(charge),
            Err(ChargeError::Limit(_)) => return passed,
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
            let runtime = build(builder.clone());
            let group = limited(&runtime.root(), "q", 100 * KIB);
            let held = charge(&group, 50 * KIB);
            let mut first = in_line(&group, 64 * KIB);
            assert_eq!(pass(&group, bytes), 64 * KIB / bytes);
            // There is room, and no charge has it; no charge gets in by trying again, however little it asks for.
            assert_eq!(group.live(), 50 * KIB);
            assert_eq!((pass(&group, bytes), pass(&group, 1)), (0, 0));
            assert_woken(&first, false);
            drop(held);
            let admitted = admitted(&mut first);
            // No charge is in line any more.
            drop(charge(&group, 36 * KIB));
            drop((admitted, first, group));
            assert_empty(&runtime);
        }
    }
}

/// What is forced in asks no charge.
#[test]
fn force_passes_every_charge() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let held = charge(&group, 50 * KIB);
        let first = in_line(&group, 64 * KIB);
        pass(&group, KIB);
        for _ in 0..100 {
            let forced = group.force_charge(Bytes(10 * KIB));
            assert_eq!((forced.bytes(), group.forced()), (10 * KIB, 0));
        }
        assert_woken(&first, false);
        drop((held, first, group));
        assert_empty(&runtime);
    }
}

/// The next one has as much patience as the one before.
#[test]
fn the_count_starts_anew_for_the_next() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let held = charge(&group, 50 * KIB);
        let (mut first, mut second) = (in_line(&group, 64 * KIB), in_line(&group, 80 * KIB));
        assert_eq!(pass(&group, 2 * KIB), 32);
        drop(held);
        let admitted_first = admitted(&mut first);
        assert_woken(&second, false);
        assert_eq!(pass(&group, 2 * KIB), 40);
        drop(admitted_first);
        drop(admitted(&mut second));
        drop((first, second, group));
        assert_empty(&runtime);
    }
}

/// A thread that stands behind may pass as well, and is counted as newcomers are.
#[test]
fn those_behind_may_pass() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let mut held: Vec<Charge> = (0..10).map(|_| charge(&group, 10 * KIB)).collect();
        let mut first = in_line(&group, 64 * KIB);
        let mut behind: Vec<Waiter> = (0..25).map(|_| in_line(&group, KIB)).collect();
        for freed in 1..=2 {
            drop(held.pop());
            for (number, waiter) in behind.iter().enumerate() {
                assert_woken(waiter, number < 10 * freed);
            }
            assert_eq!((group.live(), group.waiting_count()), (100 * KIB, 26 - 10 * freed));
        }
        drop(held.pop());
        // 25 have passed: 39 may.
        assert_eq!(pass(&group, KIB), 39);
        assert_woken(&first, false);
        drop(held);
        // 25 behind, and the first: 89 of 100.
        let charges: Vec<Charge> = behind.iter_mut().chain([&mut first]).map(admitted).collect();
        assert_eq!(group.live(), 89 * KIB);
        drop((charges, behind, first, group));
        assert_empty(&runtime);
    }
}

/// They are looked at one by one: so many, and no more.
#[test]
fn not_from_far_behind() {
    for builder in kinds() {
        for (between, passes) in [(8, true), (63, true), (200, false)] {
            let runtime = build(builder.clone());
            let group = limited(&runtime.root(), "q", 100 * KIB);
            let mut held = charge(&group, 100 * KIB);
            let first = in_line(&group, 64 * KIB);
            let large: Vec<Waiter> = (0..between).map(|_| in_line(&group, 50 * KIB)).collect();
            let small = in_line(&group, KIB);
            held.shrink(Bytes(10 * KIB));
            assert_eq!(small.wakes(), u64::from(passes), "with {between} between");
            assert_woken(&first, false);
            drop((small, large, first, held, group));
            assert_empty(&runtime);
        }
    }
}

/// When the first in line goes, the waiters that it held up are served at once.
#[test]
fn a_first_that_gives_up_holds_no_charge_up() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let held = charge(&group, 50 * KIB);
        let first = in_line(&group, 64 * KIB);
        assert_eq!(pass(&group, KIB), 64);
        let mut next = [10 * KIB, 20 * KIB].map(|bytes| in_line(&group, bytes));
        drop(first);
        for waiter in &mut next {
            assert_woken(waiter, true);
            drop(admitted(waiter));
        }
        assert_eq!(group.waiting_count(), 0);
        drop((held, next, group));
        assert_empty(&runtime);
    }
}

/// A charge elsewhere barges past no waiter, though its group is below the same root.
#[test]
fn other_levels_are_other_lines() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let (group, other) = (limited(&root, "q", 100 * KIB), create(&root, "other"));
        let held = charge(&group, 50 * KIB);
        let first = in_line(&group, 64 * KIB);
        assert_eq!(pass(&group, KIB), 64);
        for _ in 0..1_000 {
            drop(charge(&other, KIB));
            drop(charge(&root, KIB));
        }
        assert_eq!((group.waiting_count(), root.waiting_count(), other.waiting_count()), (1, 0, 0));
        drop((held, first, group, other));
        assert_empty(&runtime);
    }
}

/// The same, exactly, with threads: each goes on until it is refused.
#[test]
fn counted_exactly_among_threads() {
    const THREADS: usize = 4;
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let below: Vec<Group> = (0..THREADS).map(|number| create(&group, &number.to_string())).collect();
        for _ in 0..20 {
            let held = charge(&group, 50 * KIB);
            let first = in_line(&group, 64 * KIB);
            let start = Barrier::new(THREADS);
            let passed: u64 = thread::scope(|scope| {
                let (start, pass) = (&start, &pass);
                let threads = below.iter().map(|group| {
                    scope.spawn(move || {
                        start.wait();
                        pass(group, KIB)
                    })
                });
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert_eq!(passed, 64);
            assert_woken(&first, false);
            drop((held, first));
            assert_eq!((group.waiting_count(), group.live()), (0, 0));
        }
        drop((group, below));
        assert_empty(&runtime);
    }
}

/// Every verb that may be refused is a charge: it passes, is counted, and is stopped as any other.
#[test]
fn in_every_verb() {
    for builder in kinds() {
        let runtime = build(builder);
        let (group, other) = (limited(&runtime.root(), "q", 100 * KIB), create(&runtime.root(), "other"));
        let mut held = charge(&group, 40 * KIB);
        let first = in_line(&group, 64 * KIB);
        let memory = memcg::Counter::MEMORY;
        let mut moved = charge(&other, 8 * KIB);
        for _ in 0..2 {
            held.try_grow(Bytes(8 * KIB)).expect("it may pass");
            held.shrink(Bytes(8 * KIB));
            held.resize(Bytes(48 * KIB)).expect("it may pass");
            held.resize(Bytes(40 * KIB)).expect("less always fits");
            drop(group.try_charge_set(&[(memory, 8 * KIB)]).expect("it may pass"));
            moved.transfer(&group).expect("it may pass");
            moved.transfer(&other).expect("no limit there");
        }
        assert_eq!((group.live(), pass(&group, 1)), (40 * KIB, 0));
        assert!(held.try_grow(1).is_err() && held.resize(Bytes(41 * KIB)).is_err() && moved.transfer(&group).is_err());
        assert!(group.try_charge_set(&[(memory, 1)]).is_err() && group.try_charge_with(1, OnFull::Reclaim).is_err());
        assert!(group.try_charge_with(1, memcg::OnFull::Refuse).is_err());
        assert_eq!((held.bytes(), moved.group(), group.live()), (40 * KIB, other.clone(), 40 * KIB));
        drop((held, moved, first, group, other));
        assert_empty(&runtime);
    }
}

/// A thread that gets past the first in line and is refused at a level above has taken nothing.
#[test]
fn what_is_refused_above_has_passed_no_charge() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let (group, other) = (limited(&top, "q", 80 * KIB), create(&top, "other"));
        let held = charge(&group, 40 * KIB);
        let mut rest = charge(&other, 60 * KIB);
        let first = in_line(&group, 64 * KIB);
        assert_eq!((group.waiting_count(), top.waiting_count()), (1, 0));
        for _ in 0..1_000 {
            assert!(group.try_charge(Bytes(KIB)).is_err(), "top is full");
        }
        rest.shrink(Bytes(50 * KIB));
        assert_eq!(pass(&group, KIB), 64);
        drop((held, rest, first, group, other, top));
        assert_empty(&runtime);
    }
}

/// A charge that moves from one group to another below the full level takes no room there.
#[test]
fn moving_below_the_level_passes_no_charge() {
    for builder in kinds() {
        let runtime = build(builder);
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
        drop((held, first, one, other, top));
        assert_empty(&runtime);
    }
}
