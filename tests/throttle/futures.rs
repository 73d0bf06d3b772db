//! A future does not sleep: it yields until its delay is over, or usage is below high again.

use std::task::Poll;
use std::time::{Duration, Instant};

use memcg::{Event, Limit, Limits};

use crate::trees;
use crate::{BATCH, MIB, Polled, assert_empty, build, charge, kinds, with_high};

/// It would be the end of the test.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn it_yields_until_the_delay_is_over() {
    for builder in kinds() {
        let delay = Duration::from_millis(150);
        let runtime = build(builder.delay_max(delay));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.charge(8 * MIB);
        let mut future = Polled::new(group.charge_async(BATCH));
        let started = Instant::now();
        let charge = future.finish().expect("high refuses nobody");
        assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
        assert_eq!((charge.bytes(), group.live(), group.waiting()), (BATCH, 8 * MIB + BATCH, 0));
        assert!(future.wakes() > 0, "it wakes itself");
        drop((charge, future, held, group));
        assert_empty(&runtime);
    }
}

/// The thread is not held up: other futures on it go on.
#[test]
fn others_on_the_thread_go_on() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(LONG));
        let group = with_high(&runtime.root(), "q", MIB);
        let free = crate::create(&runtime.root(), "free");
        let held = group.charge(8 * MIB);
        let mut delayed = Polled::new(group.charge_async(BATCH));
        for _ in 0..100 {
            assert!(delayed.poll().is_pending());
            let Poll::Ready(charge) = Polled::new(free.charge_async(BATCH)).poll() else { panic!("no high there") };
            drop(charge.expect("no limit there"));
        }
        drop((delayed, held));
        assert_eq!(group.live(), 0, "dropped while it was delayed, its charge is gone");
        drop((free, group));
        assert_empty(&runtime);
    }
}

/// A transfer is not delayed, and nor is the next charge from the stock for it.
#[test]
fn a_hit_is_ready_at_once() {
    // An audit looks at each charge: nothing hits.
    for builder in [trees::stocked(), trees::stocked().adaptive(false)].map(|builder| builder.audit(false)) {
        let runtime = build(builder.delay_max(LONG));
        let top = with_high(&runtime.root(), "top", MIB);
        let (group, other) = (crate::create(&top, "q"), crate::create(&top, "other"));
        let mut held = charge(&runtime.root(), 8 * MIB);
        // A walk, and what is left of its batch.
        drop(charge(&group, 100));
        held.transfer(&other).expect("no max");
        let Poll::Ready(charge) = Polled::new(group.charge_async(100)).poll() else { panic!("it hit") };
        drop((charge.expect("no limit"), held, group, other));
        assert_eq!(top.live(), 0);
    }
}

/// Who has a timer of his own has the charge at once, whether or not he had to stand in line for it.
#[test]
fn undelayed_is_ready_as_soon_as_it_is_charged() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(LONG));
        let limits = Limits::new().high(Limit::Bytes(MIB)).max(Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let mut held = group.charge(4 * MIB);
        let Poll::Ready(more) = Polled::new(group.charge_async(4 * MIB).undelayed()).poll() else { panic!("it fits") };
        let more = more.expect("high refuses nobody");
        assert_eq!(group.high_delay(BATCH), LONG, "it is the caller's to serve");
        let mut waiter = Polled::new(group.charge_async(MIB).undelayed());
        assert!(waiter.poll().is_pending() && group.waiting() == 1);
        held.shrink(MIB);
        let Poll::Ready(last) = waiter.poll() else { panic!("it was served, and is far above high") };
        assert_eq!((last.expect("room").bytes(), waiter.wakes()), (MIB, 1), "it has not woken itself");
        assert_eq!(group.events_local().get(Event::High), 2);
        drop((waiter, more, held, group));
        assert_empty(&runtime);
    }
}

/// Usage falls below high: there is nothing to wait for any more.
#[test]
fn it_ends_when_usage_is_below_again() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(LONG));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.charge(8 * MIB);
        let mut future = Polled::new(group.charge_async(BATCH));
        assert!(future.poll().is_pending());
        drop(held);
        let charge = future.finish().expect("high refuses nobody");
        assert_eq!((charge.bytes(), group.live()), (BATCH, BATCH));
        drop((charge, future));
        // Or high is raised.
        let held = group.charge(8 * MIB);
        let mut future = Polled::new(group.charge_async(BATCH));
        assert!(future.poll().is_pending());
        group.set_high(Limit::Max).expect("no number");
        drop(future.finish().expect("high refuses nobody"));
        drop((future, held, group));
        assert_empty(&runtime);
    }
}

/// A delay that nobody would sleep is none.
#[test]
fn what_is_short_is_ready_at_once() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(LONG));
        let group = with_high(&runtime.root(), "q", 100 * MIB);
        let held = group.charge(101 * MIB - BATCH);
        let Poll::Ready(charge) = Polled::new(group.charge_async(BATCH)).poll() else { panic!("6 ms are none") };
        drop((charge.expect("high refuses nobody"), held, group));
        assert_empty(&runtime);
    }
}

/// Offline while it is delayed: it has its charge, which is one like any other.
#[test]
fn offline_meanwhile() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(Duration::from_millis(50)));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.charge(8 * MIB);
        let mut future = Polled::new(group.charge_async(BATCH));
        assert!(future.poll().is_pending());
        group.offline().expect("no children");
        match future.finish() {
            Ok(charge) => assert_eq!(charge.bytes(), BATCH),
            Err(error) => assert!(matches!(error, memcg::ChargeError::Offline { .. }), "{error}"),
        }
        assert_eq!(group.live(), 8 * MIB);
        drop((future, held, group));
        assert_empty(&runtime);
    }
}

/// One that waited for room first.
#[test]
fn after_it_has_waited() {
    for builder in kinds() {
        let runtime = build(builder.delay_max(LONG));
        let limits = memcg::Limits::new().high(memcg::Limit::Bytes(MIB)).max(memcg::Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let mut held = group.charge(8 * MIB);
        let mut future = crate::waiters::in_line(&group, BATCH);
        held.shrink(MIB);
        assert_eq!((future.wakes(), group.waiting(), group.live()), (1, 0, 7 * MIB + BATCH));
        for _ in 0..10 {
            assert!(future.poll().is_pending(), "delayed");
        }
        drop(held);
        drop(future.finish().expect("below high again"));
        drop((future, group));
        assert_empty(&runtime);
    }
}
