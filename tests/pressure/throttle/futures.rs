//! A future does not sleep: it is woken once, when its delay is over or usage is below high again.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, Limit, Limits};

use super::{BATCH, MIB, Polled, build, charge, kinds, left_empty, with_high};
use crate::support::trees;

/// It would be the end of the test.
const LONG: Duration = Duration::from_secs(600);

/// Two polls, however long it takes: one that begins the delay, one that ends it.
#[test]
fn it_is_woken_once_when_the_delay_is_over() {
    for builder in kinds() {
        let delay = Duration::from_millis(150);
        let runtime = left_empty(build(builder.delay_max(delay)));
        let group = with_high(&runtime.root(), "q", MIB);
        let _held = group.force_charge(Bytes(8 * MIB));
        let mut polls = 0;
        let mut charged = Box::pin(group.charge_async(Bytes(BATCH)));
        let mut future = Polled::new(std::future::poll_fn(|context| {
            polls += 1;
            charged.as_mut().poll(context)
        }));
        let started = Instant::now();
        let charge = future.finish().expect("high refuses no charge");
        assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
        assert_eq!(
            (charge.bytes(), group.live(), group.waiting_count()),
            (BATCH, 8 * MIB + BATCH, 0)
        );
        assert_eq!(future.wakes(), 1);
        drop(future);
        assert_eq!(polls, 2);
    }
}

/// A transfer is not delayed, and nor is the next charge from the stock for it.
#[test]
fn a_hit_is_ready_at_once() {
    // An audit looks at each charge: nothing hits.
    for builder in
        [trees::stocked(), trees::stocked().adaptive(false)].map(|builder| builder.audit(false))
    {
        let runtime = build(builder.delay_max(LONG));
        let top = with_high(&runtime.root(), "top", MIB);
        let group = super::create(&top, "q");
        let other = super::create(&top, "other");
        let mut held = charge(&runtime.root(), 8 * MIB);
        // Two walks, of which the second opens an adaptive stock, and what is left of a batch.
        (0..2).for_each(|_| drop(charge(&group, 100)));
        held.transfer(&other).expect("no max");
        let Poll::Ready(charge) = Polled::new(group.charge_async(100)).poll() else {
            panic!("it hit")
        };
        drop((charge.expect("no limit"), held, group, other));
        assert_eq!(top.live(), 0);
    }
}

/// A thread that has a timer of its own has the charge at once, whether or not the charge had to
/// wait in line.
#[test]
fn undelayed_is_ready_as_soon_as_it_is_charged() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let limits = Limits::new()
            .high(Limit::Bytes(MIB))
            .max(Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let mut held = group.force_charge(Bytes(4 * MIB));
        let Poll::Ready(more) = Polled::new(group.charge_async(Bytes(4 * MIB)).undelayed()).poll()
        else {
            panic!("it fits")
        };
        let _more = more.expect("high refuses no charge");
        assert_eq!(
            group.inspect().high_delay(Bytes(BATCH)),
            LONG,
            "it is the caller's to serve"
        );
        let mut waiter = Polled::new(group.charge_async(Bytes(MIB)).undelayed());
        assert!(waiter.poll().is_pending() && group.waiting_count() == 1);
        held.shrink(Bytes(MIB));
        let Poll::Ready(last) = waiter.poll() else {
            panic!("it was served, and is far above high")
        };
        assert_eq!(
            (last.expect("room").bytes(), waiter.wakes()),
            (MIB, 1),
            "it has not woken itself"
        );
        assert_eq!(group.events().local().get(Event::High), 2);
    }
}

/// Usage falls below high: there is nothing to wait for any more.
#[test]
fn it_ends_when_usage_is_below_again() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.force_charge(Bytes(8 * MIB));
        let mut future = Polled::new(group.charge_async(Bytes(BATCH)));
        assert!(future.poll().is_pending());
        drop(held);
        let charge = future.finish().expect("high refuses no charge");
        assert_eq!((charge.bytes(), group.live()), (BATCH, BATCH));
        drop((charge, future));
        // Or high is raised.
        let _held = group.force_charge(Bytes(8 * MIB));
        let mut future = Polled::new(group.charge_async(Bytes(BATCH)));
        assert!(future.poll().is_pending());
        group
            .set_limits(Limits::new().high(Limit::Unlimited))
            .expect("no number");
        drop(future.finish().expect("high refuses no charge"));
    }
}

/// A delay too short to sleep is none.
#[test]
fn what_is_short_is_ready_at_once() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", 100 * MIB);
        let held = group.force_charge(Bytes(101 * MIB - BATCH));
        let Poll::Ready(charge) = Polled::new(group.charge_async(Bytes(BATCH))).poll() else {
            panic!("6 ms are none")
        };
        drop((charge.expect("high refuses no charge"), held, group));
    }
}

/// One that waited for room first.
#[test]
fn after_it_has_waited() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let limits = memcg::Limits::new()
            .high(memcg::Limit::Bytes(MIB))
            .max(memcg::Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let mut held = group.force_charge(Bytes(8 * MIB));
        let mut future = crate::support::waiters::in_line(&group, BATCH);
        held.shrink(Bytes(MIB));
        assert_eq!(
            (future.wakes(), group.waiting_count(), group.live()),
            (1, 0, 7 * MIB + BATCH)
        );
        for _ in 0..10 {
            assert!(future.poll().is_pending(), "delayed");
        }
        drop(held);
        drop(future.finish().expect("below high again"));
    }
}

fn delayed(group: &Group) -> Polled<memcg::ChargeFuture> {
    let mut future = Polled::new(group.charge_async(Bytes(BATCH)));
    assert!(future.poll().is_pending(), "delayed");
    future
}

/// A thousand at once: each is woken once.
#[test]
fn many_are_woken_once_each() {
    let runtime = left_empty(build(
        trees::stocked().delay_max(Duration::from_millis(300)),
    ));
    let group = with_high(&runtime.root(), "q", MIB);
    let _held = group.force_charge(Bytes(8 * MIB));
    let futures: Vec<_> = (0..1_000).map(|_| delayed(&group)).collect();
    super::until("each is woken", || {
        futures.iter().all(|future| future.wakes() > 0)
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(futures.iter().all(|future| future.wakes() == 1));
}

/// Dropped, or polled with another waker: nothing refers to the old one any more, and it is not
/// woken.
#[test]
fn what_is_dropped_leaves_nothing() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", MIB);
        let _held = group.force_charge(Bytes(8 * MIB));
        let mut future = delayed(&group);
        let old = future.renew();
        assert!(Arc::strong_count(&old) > 1, "it is to be woken");
        assert!(future.poll().is_pending());
        assert_eq!(Arc::strong_count(&old), 1, "another one is");
        let new = future.renew();
        drop(future);
        assert_eq!(
            (Arc::strong_count(&new), new.count(), old.count()),
            (1, 0, 0)
        );
        assert_eq!(group.live(), 8 * MIB);
    }
}

/// Panics wherever it can.
struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("on purpose");
        }
    }
}

/// A waker that panics, when it is woken or when it is dropped, keeps no charge asleep, and the
/// thread that wakes goes on.
#[test]
fn a_waker_that_panics() {
    let runtime = left_empty(build(trees::stocked().delay_max(LONG)));
    let group = with_high(&runtime.root(), "q", MIB);
    let _held = group.force_charge(Bytes(8 * MIB));
    let bad = || {
        let mut future = Polled::new(group.charge_async(Bytes(BATCH)));
        let waker = Waker::from(Arc::new(Bad));
        assert!(future.poll_with(&waker).is_pending());
        // The one that it has kept is the last.
        drop(waker);
        future
    };
    let mut futures = [bad(), delayed(&group), bad(), delayed(&group), bad()];
    assert!(
        futures[4].poll().is_pending(),
        "the old waker's panic ends there"
    );
    group
        .set_limits(Limits::new().high(Limit::Unlimited))
        .expect("no number");
    super::until("the others are woken", || {
        [1, 3, 4].iter().all(|&at| futures[at].wakes() == 1)
    });
    for mut future in futures {
        drop(future.finish().expect("high refuses no charge"));
    }
    group
        .set_limits(Limits::new().high(Limit::Bytes(MIB)))
        .expect("a number");
    let mut last = delayed(&group);
    group
        .set_limits(Limits::new().high(Limit::Unlimited))
        .expect("no number");
    drop(last.finish().expect("high refuses no charge"));
}
