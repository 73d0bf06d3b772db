//! Nothing, everything, and very many.

use std::time::Duration;

use memcg::{Bytes, OnFull};

use super::{
    KIB, Polled, WATCHDOG, Waiter, admitted, build, charge, create, in_line, kinds, limited,
    runtimes, turned_away,
};

/// Nothing always fits, whichever charge is in line.
#[test]
fn zero_bytes_wait_for_no_charge() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let full = limited(&runtime.root(), "full", 0);
        let _held = charge(&group, 10 * KIB);
        let _waiter = in_line(&group, KIB);
        for group in [&group, &full] {
            let charges = [
                group
                    .charge_with(0, OnFull::Wait(Duration::ZERO))
                    .expect("nothing"),
                group
                    .charge_with(0, OnFull::Wait(WATCHDOG))
                    .expect("nothing"),
                admitted(&mut Polled::new(group.charge_async(0))),
                group.charge(0).expect("nothing"),
                group.try_charge(0).expect("nothing"),
                group
                    .charge_with(0, OnFull::Wait(WATCHDOG))
                    .expect("nothing"),
                group.force_charge(0),
            ];
            assert!(
                charges
                    .iter()
                    .all(|charge| charge.bytes() == 0 && charge.group() == *group)
            );
        }
        assert_eq!(
            (group.waiting_count(), full.waiting_count(), group.live()),
            (1, 0, 10 * KIB)
        );
    }
}

/// More than can be counted, with a limit and without.
#[test]
fn more_than_there_can_be() {
    for runtime in runtimes() {
        let limited = limited(&runtime.root(), "limited", KIB);
        let free = create(&runtime.root(), "free");
        for group in [&limited, &free] {
            for bytes in [u64::MAX, u64::MAX - 1, 1 << 63] {
                let errors = [
                    group
                        .charge_with(Bytes(bytes), OnFull::Wait(Duration::MAX))
                        .expect_err("more than can be counted"),
                    turned_away(&mut Polled::new(group.charge_async(Bytes(bytes)))),
                    group
                        .charge_with(Bytes(bytes), OnFull::Wait(Duration::MAX))
                        .expect_err("the same"),
                ];
                for error in errors {
                    assert!(
                        error.over_limit().is_some_and(|by| by.requested() == bytes),
                        "{error}"
                    );
                }
            }
            assert_eq!((group.waiting_count(), group.usage()), (0, 0));
        }
    }
}

/// The largest that can ever fit, to the byte.
#[test]
fn all_there_is() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 1 << 40);
        let held = charge(&group, 1);
        let mut waiter = in_line(&group, 1 << 40);
        drop(held);
        assert_eq!(admitted(&mut waiter).bytes(), 1 << 40);
    }
}

/// A line of ten thousand, served from its first to its last, each by the one before.
#[test]
fn a_very_long_line() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", KIB);
        let groups: Vec<_> = (0..100)
            .map(|number| create(&group, &number.to_string()))
            .collect();
        let mut held = charge(&group, KIB);
        let mut line: Vec<Waiter> = (0..10_000)
            .map(|number| in_line(&groups[number % 100], KIB))
            .collect();
        assert_eq!(group.waiting_count(), 10_000);
        for waiter in &mut line {
            drop(held);
            held = admitted(waiter);
        }
        assert!(line.iter().all(|waiter| waiter.wakes() == 1));
    }
}

/// A future is moved and sent as any value is, and outlives handle and runtime.
#[test]
fn futures_are_values() {
    fn owned<T: Send + Unpin + 'static>(value: T) -> T {
        value
    }
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", KIB);
        let mut never_polled = Polled::new(owned(group.charge_async(Bytes(KIB))));
        let held = charge(&group, KIB);
        let moved = in_line(&group, KIB);
        drop((group, runtime));
        let mut moved = std::thread::spawn(move || owned(moved))
            .join()
            .expect("no panic");
        assert!(matches!(turned_away(&mut moved), error if error.is_offline()));
        assert!(matches!(turned_away(&mut never_polled), error if error.is_offline()));
        drop(held);
    }
}
