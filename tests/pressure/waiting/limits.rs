//! Limits that move while a thread waits, and charges that can never fit.

use memcg::{Bytes, ChargeError, Group, Limit, Limits, OnFull};

use super::{
    KIB, Polled, WATCHDOG, Waiter, admitted, assert_woken, blocked, charge, create, full, in_line,
    join, limited, runtimes, turned_away,
};

#[track_caller]
fn set_max(group: &Group, bytes: u64) {
    group.set_max(Limit::Bytes(bytes)).expect("a number");
}

/// A refusal that no waiting would have helped.
#[track_caller]
fn assert_never(error: ChargeError, level: &Group, bytes: u64) {
    match error {
        error if error.is_over_limit() => {
            let refusal = error.over_limit().expect("a refusal");
            assert_eq!((refusal.group(), refusal.requested()), (level, bytes))
        }
        other => panic!("{other}"),
    }
}

/// Stored for later is stored all the same.
#[test]
fn raised_without_asking_any_charge() {
    for runtime in runtimes() {
        let (group, _held) = full(&runtime);
        let mut waiter = in_line(&group, 5 * KIB);
        assert_eq!(
            group
                .memory()
                .set_max_now(Limit::Bytes(15 * KIB))
                .expect("a number"),
            0
        );
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

/// A percentage of a max above is a max that moves with it.
#[test]
fn raised_above_it_admits_below() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 20 * KIB);
        let half = top
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let _held = charge(&half, 10 * KIB);
        let mut waiter = in_line(&half, 5 * KIB);
        assert_eq!((half.waiting_count(), top.waiting_count()), (1, 0));
        set_max(&top, 30 * KIB);
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
    }
}

#[test]
fn what_can_never_fit_does_not_wait() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = create(&top, "q");
        let held = charge(&group, 5 * KIB);
        for bytes in [10 * KIB + 1, 11 * KIB, u64::MAX] {
            assert_never(
                group
                    .charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG * 10))
                    .expect_err("it is too large"),
                &top,
                bytes,
            );
            assert_never(
                turned_away(&mut Polled::new(group.charge_async(Bytes(bytes)))),
                &top,
                bytes,
            );
        }
        assert_eq!((top.waiting_count(), group.waiting_count()), (0, 0));
        // The largest that may.
        let mut largest = in_line(&group, 10 * KIB);
        drop(held);
        drop(admitted(&mut largest));
    }
}

/// A max that is lowered turns away the charges that can never fit any more, and no other charge.
#[test]
fn lowered_it_turns_away() {
    for runtime in runtimes() {
        let (group, mut held) = full(&runtime);
        let mut waiters: [Waiter; 3] = [8, 3, 6].map(|number| in_line(&group, number * KIB));
        let thread = blocked(&group, 7 * KIB, &group);
        set_max(&group, 5 * KIB);
        for (waiter, woken) in waiters.iter().zip([true, false, true]) {
            assert_woken(waiter, woken);
        }
        assert_never(turned_away(&mut waiters[0]), &group, 8 * KIB);
        assert_never(turned_away(&mut waiters[2]), &group, 6 * KIB);
        assert_never(join(thread).expect_err("it is too large"), &group, 7 * KIB);
        assert_eq!((group.waiting_count(), group.live()), (1, 10 * KIB));
        held.shrink(Bytes(5 * KIB));
        assert_woken(&waiters[1], false);
        held.shrink(Bytes(3 * KIB));
        assert_woken(&waiters[1], true);
        drop(admitted(&mut waiters[1]));
        drop((held, waiters, group));
    }
}

/// The same with a max that is set for later.
#[test]
fn lowered_for_later_it_turns_away() {
    for runtime in runtimes() {
        let (group, _held) = full(&runtime);
        let mut waiter = in_line(&group, 6 * KIB);
        assert_eq!(
            group
                .memory()
                .set_max_now(Limit::Bytes(5 * KIB))
                .expect("a number"),
            5 * KIB
        );
        assert_never(turned_away(&mut waiter), &group, 6 * KIB);
        assert_eq!(group.waiting_count(), 0);
    }
}

/// The same where the charge waits in another line: that of its own group, of the group above, or
/// of the root. The refusal names the max that is in the way.
#[test]
fn lowered_at_another_level_it_turns_away() {
    for full_at in 0..3 {
        for lowered_at in 0..3 {
            for now in [false, true] {
                for runtime in runtimes() {
                    let root = runtime.root();
                    set_max(&root, 40 * KIB);
                    let parent = limited(&root, "parent", 30 * KIB);
                    let child = limited(&parent, "child", 20 * KIB);
                    let path = [&root, &parent, &child];
                    let full = path[full_at];
                    let held = full.force_charge(Bytes(full.max() - full.usage()));
                    let mut waiter = in_line(&child, 8 * KIB);
                    let mut small = in_line(&child, KIB);
                    let thread = blocked(&child, 7 * KIB, full);
                    let lowered = path[lowered_at];
                    if now {
                        lowered
                            .memory()
                            .set_max_now(Limit::Bytes(5 * KIB))
                            .expect("a number");
                    } else {
                        set_max(lowered, 5 * KIB);
                    }
                    assert_woken(&waiter, true);
                    assert_never(turned_away(&mut waiter), lowered, 8 * KIB);
                    assert_never(join(thread).expect_err("too large"), lowered, 7 * KIB);
                    assert_eq!(full.waiting_count(), 1);
                    drop(held);
                    drop(admitted(&mut small));
                }
            }
        }
    }
}

/// A percentage of a max that is lowered is lowered with it.
#[test]
fn a_percentage_that_follows_turns_away() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 20 * KIB);
        let half = top
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let _held = top.force_charge(Bytes(20 * KIB));
        let mut waiter = in_line(&half, 8 * KIB);
        set_max(&top, 15 * KIB);
        assert_never(turned_away(&mut waiter), &half, 8 * KIB);
    }
}

/// A max that has moved by itself is named as it is by then, and not as it was while charges could
/// wait for it.
#[test]
fn a_refusal_names_the_max_as_it_is() {
    for runtime in runtimes() {
        let root = runtime.root();
        set_max(&root, 20 * KIB);
        let group = limited(&root, "group", 30 * KIB);
        let _held = charge(&group, 15 * KIB);
        let mut waiter = in_line(&group, 18 * KIB);
        root.inspect().move_max(Bytes(12 * KIB));
        let assert_told = |error: ChargeError, bytes: u64, max: u64| {
            let refusal = error.over_limit().expect("a refusal");
            let told = (refusal.max(), refusal.want());
            assert_eq!(told, (max, 15 * KIB + bytes - max), "{error}");
            assert_never(error, &root, bytes);
        };
        let come_now = turned_away(&mut Polled::new(group.charge_async(Bytes(25 * KIB))));
        assert_told(come_now, 25 * KIB, 12 * KIB);

        // It falls further before it has stood for long enough at what is too little already.
        let moved = std::time::Instant::now();
        while moved.elapsed() < std::time::Duration::from_millis(500) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        root.inspect().move_max(Bytes(8 * KIB));
        while moved.elapsed() < std::time::Duration::from_millis(1_100) {
            std::thread::sleep(std::time::Duration::from_millis(10));
            root.inspect().end_vain_waits();
        }
        assert_told(turned_away(&mut waiter), 18 * KIB, 8 * KIB);
    }
}

/// A max that moves by itself loses no charge for a moment, also not one that comes in that moment.
/// Once it has stood for a second, those that can never fit are turned away.
#[test]
fn a_dip_turns_no_charge_away() {
    for runtime in runtimes() {
        let root = runtime.root();
        set_max(&root, 20 * KIB);
        let half = root
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let (group, other) = (create(&half, "group"), create(&root, "other"));
        let held = charge(&other, 20 * KIB);
        let mut before = in_line(&group, 5 * KIB);
        root.inspect().move_max(Bytes(8 * KIB));
        assert_eq!(half.max(), 4 * KIB);
        let mut meanwhile = in_line(&group, 5 * KIB);
        root.inspect().end_vain_waits();
        assert_woken(&before, false);
        root.inspect().move_max(Bytes(20 * KIB));
        drop(held);
        drop((admitted(&mut before), admitted(&mut meanwhile)));

        let _held = charge(&other, 20 * KIB);
        let (mut stays, mut ends) = (in_line(&other, 8 * KIB), in_line(&group, 8 * KIB));
        let ended = std::time::Instant::now();
        root.inspect().move_max(Bytes(8 * KIB));
        while ended.elapsed() < std::time::Duration::from_millis(1_100) {
            std::thread::sleep(std::time::Duration::from_millis(10));
            root.inspect().end_vain_waits();
        }
        assert_never(turned_away(&mut ends), &half, 8 * KIB);
        assert_woken(&stays, false);
        assert_never(
            turned_away(&mut Polled::new(group.charge_async(Bytes(5 * KIB)))),
            &half,
            5 * KIB,
        );
        // The program sets a max: at once.
        set_max(&root, 7 * KIB);
        assert_never(turned_away(&mut stays), &root, 8 * KIB);
    }
}

/// A max that the program sets to what it has become by itself moves by itself no more, and nor does
/// a part of it.
#[test]
fn a_part_of_a_max_that_the_program_sets_turns_away_at_once() {
    for runtime in runtimes() {
        let root = runtime.root();
        set_max(&root, 20 * KIB);
        let half = root
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let _held = charge(&create(&root, "other"), 20 * KIB);
        let mut waiter = in_line(&half, 5 * KIB);
        root.inspect().move_max(Bytes(8 * KIB));
        assert_woken(&waiter, false);
        set_max(&root, 8 * KIB);
        assert_never(turned_away(&mut waiter), &half, 5 * KIB);
    }
}

/// A part of another max does as that does.
#[test]
fn a_part_of_a_max_that_moves_by_itself_waits_whatever_is_set_above() {
    for runtime in runtimes() {
        let root = runtime.root();
        set_max(&root, 20 * KIB);
        let top = limited(&root, "top", 10 * KIB);
        let half = top
            .create("half", Limits::new().max(Limit::percent(50)))
            .expect("a free name");
        let _held = charge(&create(&top, "other"), 10 * KIB);
        let mut waiter = in_line(&half, 4 * KIB);
        top.inspect().move_max(Bytes(4 * KIB));
        set_max(&root, 20 * KIB);
        assert_woken(&waiter, false);
        set_max(&top, 4 * KIB);
        assert_never(turned_away(&mut waiter), &half, 4 * KIB);
    }
}

/// A max that only counted acts again.
#[test]
fn a_max_that_acts_again_turns_away() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = limited(&top, "group", 5 * KIB);
        group.set_observe_only(true);
        let _held = charge(&top, 10 * KIB);
        let mut waiter = in_line(&group, 8 * KIB);
        group.set_observe_only(false);
        assert_never(turned_away(&mut waiter), &group, 8 * KIB);
    }
}
