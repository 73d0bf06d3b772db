//! The time is over.

use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, OnFull};

use super::{
    KIB, SHORT, admitted, build, charge, full, in_line, join, left_empty, limited, nearly_full,
    runtimes, timed_out, until,
};

#[test]
fn it_names_the_group_that_refused_and_the_time_waited() {
    for runtime in runtimes() {
        let (top, group, _held) = nearly_full(&runtime);
        let started = Instant::now();
        let (refusal, waited) = timed_out(group.charge_with(Bytes(3 * KIB), OnFull::Wait(SHORT)));
        assert!(waited >= SHORT && started.elapsed() >= waited, "{waited:?}");
        assert_eq!((refusal.group(), refusal.requester()), (&top, &group));
        assert_eq!(
            (refusal.requested(), refusal.usage(), refusal.max()),
            (3 * KIB, 8 * KIB, 10 * KIB)
        );
        assert_eq!(
            (top.waiting_count(), top.live()),
            (0, 8 * KIB),
            "nothing is left of it"
        );
        drop(charge(&group, 2 * KIB));
    }
}

#[test]
fn it_reads_as_one_line() {
    let runtime = build(super::bare());
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let _held = charge(&group, 8 * KIB);
    let error = group
        .charge_with(Bytes(3 * KIB), OnFull::Wait(SHORT))
        .expect_err("no room");
    let text = error.to_string();
    let start = "/q refused 3 KiB for /q: short by 1 KiB, usage 8 KiB of max 10 KiB; after ";
    let end = "in line; waiting can help; to fit, wait longer, release memory in /q, register a reclaimer there or raise max of /q";
    assert!(text.starts_with(start) && text.ends_with(end), "{text}");
}

/// No time at all: tried, and no more.
#[test]
fn no_time_is_one_try() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held = group
            .charge_with(Bytes(10 * KIB), OnFull::Wait(Duration::ZERO))
            .expect("it fits");
        let (refusal, _) = timed_out(group.charge_with(1, OnFull::Wait(Duration::ZERO)));
        assert_eq!((refusal.group(), group.waiting_count()), (&group, 0));
    }
}

/// Memory that comes in time is taken, whenever that is.
#[test]
fn in_time_is_in_time() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for _ in 0..10 {
            let held = charge(&group, 10 * KIB);
            let thread = super::blocked(&group, 10 * KIB, &group);
            thread::spawn(move || drop(held)).join().expect("no panic");
            drop(join(thread).expect("there is room"));
        }
    }
}

/// The next in line is not held up by a charge that has left.
#[test]
fn the_next_in_line_moves_up() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let _held = charge(&group, 50 * KIB);
        let first = {
            let group = group.clone();
            thread::spawn(move || {
                group.charge_with(Bytes(64 * KIB), OnFull::Wait(Duration::from_millis(500)))
            })
        };
        until("one in line", || group.waiting_count() == 1);
        // Until no charge may pass, or the time is over.
        while group.charge(Bytes(KIB)).is_ok() && group.waiting_count() == 1 {}
        let mut second = in_line_or_in(&group, 10 * KIB);
        assert!(matches!(join(first), Err(error) if error.is_timeout()));
        drop(second.finish().expect("no charge is before it"));
    }
}

/// Polled once.
fn in_line_or_in(group: &Group, bytes: u64) -> super::Waiter {
    let mut waiter = super::Polled::new(group.charge_async(Bytes(bytes)));
    if let std::task::Poll::Ready(charge) = waiter.poll() {
        // The first has gone already: as good as woken.
        drop(charge);
        return super::Polled::new(group.charge_async(Bytes(bytes)));
    }
    waiter
}

/// Times that no clock has.
#[test]
fn for_ever() {
    for time in [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_secs(1 << 40),
    ] {
        let runtime = left_empty(build(super::bare()));
        let group = limited(&runtime.root(), "q", 10 * KIB);
        drop(
            group
                .charge_with(Bytes(10 * KIB), OnFull::Wait(time))
                .expect("it fits"),
        );
        let held = charge(&group, 10 * KIB);
        let waits = {
            let group = group.clone();
            thread::spawn(move || group.charge_with(Bytes(KIB), OnFull::Wait(time)))
        };
        until("one in line", || {
            group.waiting_count() == 1 || waits.is_finished()
        });
        drop(held);
        drop(join(waits).expect("there is room"));
    }
}

/// A waiter that was admitted in the end was not refused. A waiter that was not was refused once.
#[test]
fn what_is_counted() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut waiter = in_line(&group, 5 * KIB);
        let thread = super::blocked(&group, 5 * KIB, &group);
        let local = |event| group.events().local().get(event);
        let counts = || {
            (
                group.refused_count(),
                local(Event::Oom),
                local(Event::TimedOut),
            )
        };
        assert_eq!(counts(), (0, 0, 0));
        drop(held);
        let _charges = (admitted(&mut waiter), join(thread).expect("its turn"));
        assert_eq!(counts(), (0, 0, 0));
        assert!(local(Event::Max) >= 2, "met it was");
        drop(timed_out(group.charge_with(
            Bytes(KIB),
            OnFull::Wait(Duration::from_millis(1)),
        )));
        assert_eq!(counts(), (1, 1, 1));
        drop(in_line(&group, KIB));
        assert_eq!(counts(), (1, 1, 1), "given up is not refused");
        group.charge(Bytes(KIB)).expect_err("no room");
        assert_eq!(counts(), (2, 2, 1), "it did not wait");
    }
}
