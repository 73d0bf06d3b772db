//! A future with a time limit, by the crate's own thread or by any timer.

use std::future::{pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, Limits, OnFull};

use super::{
    KIB, Polled, SHORT, WATCHDOG, assert_sound, block_on, build, charge, create, left_empty,
    limited, nearly_full, runtimes, timed_out, until,
};

const MIB: u64 = 1024 * KIB;

fn counted(group: &Group) -> u64 {
    group.events().local().get(Event::TimedOut)
}

/// It names what was asked for where, and is counted once: at the group that refused, and above.
#[test]
fn it_leaves_a_trace_and_nothing_else() {
    for runtime in runtimes() {
        let (top, group, _held) = nearly_full(&runtime);
        let started = Instant::now();
        let mut future = Polled::new(group.charge_async(Bytes(3 * KIB)).timeout(SHORT));
        assert!(future.poll().is_pending());
        assert_eq!(top.waiting_count(), 1);
        // A poll before it would find that the time is over, and then nobody wakes it.
        until("its time wakes it", || future.wakes() > 0);
        let (refusal, waited) = timed_out(future.finish());
        assert!(waited >= SHORT && waited <= started.elapsed(), "{waited:?}");
        assert_eq!(
            (refusal.group(), refusal.requester(), refusal.requested()),
            (&top, &group, 3 * KIB)
        );
        assert_eq!(
            (
                counted(&top),
                counted(&group),
                runtime.root().events().get(Event::TimedOut)
            ),
            (1, 0, 1)
        );
        assert_eq!(
            (top.waiting_count(), top.live(), top.refused_count()),
            (0, 8 * KIB, 1)
        );
        assert_eq!(future.wakes(), 1, "one wake-up for the whole wait");
        assert!(
            catch_unwind(AssertUnwindSafe(|| future.poll())).is_err(),
            "it is done"
        );
    }
}

#[test]
fn any_timer_ends_it() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 8 * KIB);
        let mut future = Polled::new(group.charge_async(Bytes(3 * KIB)).until(ready("whatever")));
        let Poll::Ready(ended) = future.poll() else {
            panic!("the timer was over before")
        };
        assert_eq!(timed_out(ended).0.requested(), 3 * KIB);
        let mut future = Polled::new(group.charge_async(Bytes(3 * KIB)).until(pending::<()>()));
        assert!(future.poll().is_pending() && group.waiting_count() == 1);
        drop(held);
        let Poll::Ready(Ok(charge)) = future.poll() else {
            panic!("there is room")
        };
        assert_eq!((charge.bytes(), counted(&group)), (3 * KIB, 1));
    }
}

/// If the charge need not wait, no timer is asked: a panic would say so.
#[test]
fn without_a_wait_no_timer_is_asked() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let asks = || std::future::poll_fn(|_| -> Poll<()> { panic!("asked") });
        drop(block_on(group.charge_async(Bytes(KIB)).until(asks())).expect("it fits"));
        let never = [
            block_on(group.charge_async(Bytes(11 * KIB)).until(asks())),
            block_on(group.charge_async(Bytes(11 * KIB)).timeout(Duration::ZERO)),
        ];
        assert!(
            never
                .iter()
                .all(|ended| matches!(&ended, Err(error) if error.is_over_limit())),
            "{never:?}"
        );
        assert_eq!(counted(&group), 0);
    }
}

/// A charge that came in time holds, however late the future is polled.
#[test]
fn what_came_in_time_holds() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        // A machine that stands still meanwhile lets the time pass: then there is another try.
        let (mut ours, mut theirs) = loop {
            let started = Instant::now();
            let held = charge(&group, 10 * KIB);
            let mut ours = Polled::new(group.charge_async(Bytes(4 * KIB)).timeout(SHORT));
            let mut theirs =
                Polled::new(group.charge_async(Bytes(4 * KIB)).until(tokio_like(SHORT)));
            let wait = ours.poll().is_pending() && theirs.poll().is_pending();
            drop(held);
            if started.elapsed() < SHORT {
                assert!(wait, "nobody waits where there is no room");
                break (ours, theirs);
            }
        };
        let late = counted(&group);
        std::thread::sleep(2 * SHORT);
        let charges = [ours.finish(), theirs.finish()]
            .map(|charge| charge.expect("charged long ago").bytes());
        assert_eq!((charges, counted(&group)), ([4 * KIB; 2], late));
    }
}

/// Ready so long after it was made.
fn tokio_like(time: Duration) -> impl Future<Output = ()> {
    let until = Instant::now() + time;
    std::future::poll_fn(move |_| {
        if Instant::now() < until {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
}

/// No time is one try, and more time than there is has no end.
#[test]
fn extremes() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held =
            block_on(group.charge_async(Bytes(10 * KIB)).timeout(Duration::ZERO)).expect("it fits");
        timed_out(block_on(group.charge_async(1).timeout(Duration::ZERO)));
        for time in [Duration::MAX, WATCHDOG] {
            let mut future = Polled::new(group.charge_async(1).timeout(time));
            assert!(future.poll().is_pending() && future.poll().is_pending());
            drop(future);
        }
        assert_eq!(
            (group.waiting_count(), counted(&group)),
            (0, 1),
            "one that is dropped leaves no trace"
        );
    }
}

/// The time of many ends at once while others give memory back: each is charged or timed out, and
/// it adds up.
#[test]
fn time_is_over_while_memory_comes() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 64 * KIB);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let group = group.clone();
                scope.spawn(move || {
                    for round in 0..50 {
                        let time = Duration::from_micros((thread * 37 + round * 13) % 700);
                        let charges = [17, 23].map(|kib| {
                            block_on(group.charge_async(Bytes(kib * KIB)).timeout(time))
                        });
                        for ended in charges.iter().filter_map(|charge| charge.as_ref().err()) {
                            assert!(ended.is_timeout(), "{ended}");
                        }
                    }
                });
            }
        });
        assert_eq!(
            (group.waiting_count(), group.live(), counted(&group)),
            (0, 0, group.refused_count())
        );
        assert_sound(&runtime);
    }
}

/// Time is for the delay above a high, too: at its end a charge that was admitted returns.
#[test]
fn a_delay_ends_in_time() {
    let runtime = left_empty(build(super::bare().delay_max(WATCHDOG * 10)));
    let group = create(&runtime.root(), "q");
    group
        .set_limits(Limits::new().high(memcg::Limit::Bytes(MIB)))
        .expect("a number");
    let _held = group.force_charge(Bytes(8 * MIB));
    for time in [Duration::ZERO, Duration::from_millis(5)] {
        let more = [
            block_on(group.charge_async(Bytes(MIB)).timeout(time)).expect("high refuses no charge"),
            group
                .charge_with(Bytes(MIB), OnFull::Wait(time))
                .expect("high refuses no charge"),
            group
                .charge_with(Bytes(MIB), memcg::OnFull::Wait(time))
                .expect("high refuses no charge"),
            block_on(group.charge_async(Bytes(MIB)).until(std::future::ready(())))
                .expect("as before"),
        ];
        assert_eq!(group.live(), 12 * MIB);
        drop(more);
    }
}

/// Time is for reclaim, too: once it is over, no reclaimer is asked but the one at work.
#[test]
fn no_reclaimer_is_asked_after_it() {
    let runtime = build(super::bare().reclaim_time(WATCHDOG * 10));
    let domain = limited(&runtime.root(), "domain", 100);
    let asked = Arc::new(AtomicU64::new(0));
    let groups: Vec<_> = (0..4)
        .map(|number| create(&domain, &number.to_string()))
        .collect();
    let held: Vec<_> = groups.iter().map(|group| charge(group, 25)).collect();
    let time = Duration::from_millis(1);
    let slow = {
        let asked = Arc::clone(&asked);
        super::call(move |_, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            thread::sleep(2 * time);
            1
        })
    };
    let _registrations: Vec<_> = groups
        .iter()
        .map(|group| group.register_reclaimer(slow.clone(), memcg::ReclaimPriority::NORMAL))
        .collect();
    domain
        .charge_with(Bytes(50), OnFull::Wait(time))
        .expect_err("nothing is freed");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    block_on(domain.charge_async(Bytes(50)).timeout(time)).expect_err("nothing is freed");
    // The thread that asks for tasks finds that none waits.
    let then = asked.load(Ordering::SeqCst);
    thread::sleep(20 * time);
    assert!(asked.load(Ordering::SeqCst) <= then + 1);
    drop(held);
}
