//! Which threads sleep, at least how long, and which do not sleep at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Bytes, Group, Limit, Limits, OnFull, ReclaimPriority};

use super::{
    BATCH, Cache, KIB, Log, MIB, WATCHDOG, build, call, charge, create, kinds, left_empty,
    with_high,
};

/// So long that no test mistakes a slow machine for it, but no longer than a test may take to fail.
const LONG: Duration = Duration::from_secs(60);
const QUICK: Duration = Duration::from_secs(40);

fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let started = Instant::now();
    let result = work();
    (result, started.elapsed())
}

#[test]
fn a_charge_above_high_takes_its_time() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(Duration::from_millis(150))));
        let group = with_high(&runtime.root(), "q", 10 * MIB);
        let held = group.force_charge(Bytes(20 * MIB - BATCH));
        let (more, took) = timed(|| charge(&group, BATCH));
        assert!(took >= Duration::from_millis(150), "{took:?}");
        assert_eq!(group.live(), 20 * MIB);
        // By the formula, where that is less: 4 of 100 is 102 ms.
        drop((held, more));
        group
            .set_limits(Limits::new().high(Limit::Bytes(100 * MIB)))
            .expect("a number");
        let _held = group.force_charge(Bytes(104 * MIB - BATCH));
        let (_more, took) = timed(|| charge(&group, BATCH));
        assert!(took >= Duration::from_millis(102), "{took:?}");
    }
}

/// Credit of idle groups is no charge's excess, and there need not be a reclaimer for it to go
/// back.
#[test]
fn not_for_credit() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.budget(Bytes(1 << 30)).delay_max(LONG)));
        let tenant = with_high(&runtime.root(), "tenant", MIB);
        let idle: Vec<Group> = (0..1_000)
            .map(|number| create(&tenant, &number.to_string()))
            .collect();
        let warm = || {
            idle.iter()
                .for_each(|group| (0..3).for_each(|_| drop(charge(group, BATCH / 2))))
        };
        warm();
        assert_eq!(
            tenant.inspect().high_delay(Bytes(MIB)),
            Duration::ZERO,
            "{} B of credit",
            tenant.memory().stocked()
        );
        let (_, took) = timed(warm);
        assert!(took < QUICK, "{took:?}");
        let (_held, took) = timed(|| charge(&tenant, MIB / 2));
        assert!(took < QUICK, "{took:?}");
    }
}

#[test]
fn not_below_and_not_without() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", 10 * MIB);
        let beside = create(&runtime.root(), "beside");
        let over = with_high(&runtime.root(), "over", MIB);
        let _forced = over.force_charge(Bytes(10 * MIB));
        let (_, took) = timed(|| {
            drop(charge(&group, 10 * MIB));
            drop(charge(&beside, 100 * MIB));
        });
        assert!(took < QUICK, "{took:?}");
    }
}

/// Memory that exists already is charged and not waited for.
#[test]
fn not_by_force() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", 0);
        let (mut held, took) = timed(|| {
            let mut held = group.force_charge(Bytes(100 * MIB));
            held.force_grow(Bytes(100 * MIB));
            held
        });
        assert!(took < QUICK && group.live() == 200 * MIB, "{took:?}");
        // Nor is giving back.
        let (_, took) = timed(|| {
            held.shrink(Bytes(MIB));
            held
        });
        assert!(took < QUICK, "{took:?}");
    }
}

/// A charge sleeps for no excess that no charge could give back.
#[test]
fn not_for_nothing() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", 0);
        let _held = group.force_charge(Bytes(100 * MIB));
        let (_, took) = timed(|| drop(charge(&group, 0)));
        assert!(took < QUICK, "{took:?}");
    }
}

/// Memory to reclaim with is not waited for: others wait for that.
#[test]
fn not_inside_a_reclaimer() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", MIB);
        let asked = Arc::new(AtomicBool::new(false));
        let _registration = {
            let asked = Arc::clone(&asked);
            let reclaimer = call(move |_, context| {
                drop(charge(&context.group(), 4 * MIB));
                asked.store(true, Ordering::SeqCst);
                0
            });
            group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
        };
        let _held = group.force_charge(Bytes(10 * MIB));
        let (report, took) = timed(|| group.reclaim(Bytes(MIB)).expect("not inside a reclaimer"));
        assert!(
            report.freed == 0 && asked.load(Ordering::SeqCst) && took < QUICK,
            "{took:?}"
        );
    }
}

/// While reclaim gets somewhere no charge sleeps.
#[test]
fn not_while_reclaim_gets_somewhere() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", 10 * MIB);
        let (cache, _registration) = Cache::of(&group, 8 * MIB, &Log::default());
        let (_, took) = timed(|| {
            for _ in 0..64 {
                cache.add(MIB).expect("high refuses no charge");
            }
        });
        assert!(took < QUICK, "{took:?}");
        assert!(group.live() <= 10 * MIB + MIB, "{}", group.live());
    }
}

/// A delay of none: high asks for memory, and no charge ever sleeps.
#[test]
fn a_cap_of_nothing() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(Duration::ZERO)));
        let group = with_high(&runtime.root(), "q", 0);
        let _held = group.force_charge(Bytes(1_000 * MIB));
        let (_, took) = timed(|| {
            for _ in 0..1_000 {
                drop(charge(&group, MIB));
            }
        });
        assert!(took < QUICK, "{took:?}");
        assert_eq!(group.inspect().high_delay(Bytes(MIB)), Duration::ZERO);
    }
}

/// One that sleeps holds its charge, and nothing else: others go on, and may free what it is above.
#[test]
fn a_thread_that_sleeps_is_in_no_charges_way() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(Duration::from_millis(300))));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.force_charge(Bytes(10 * MIB));
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let group = &group;
            let done = &done;
            scope.spawn(move || {
                drop(charge(group, MIB));
                done.store(1, Ordering::SeqCst);
            });
            super::until("it has charged", || {
                group.live() > 10 * MIB || done.load(Ordering::SeqCst) == 1
            });
            group
                .set_limits(Limits::new().high(Limit::Bytes(5 * MIB)))
                .expect("a number");
            let other = create(group, "other");
            drop(other.force_charge(Bytes(MIB)));
            other.offline().expect("no children");
            drop(held);
        });
        assert_eq!(group.live(), 0);
    }
}

/// The verbs of a charge that may be refused are charges like any other.
#[test]
fn a_charge_that_grows_is_delayed_too() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(Duration::from_millis(100))));
        let group: Group = with_high(&runtime.root(), "q", MIB);
        let mut held = group.force_charge(Bytes(4 * MIB));
        let (_, took) = timed(|| held.grow(Bytes(BATCH)).expect("high refuses no charge"));
        assert!(took >= Duration::from_millis(100), "{took:?}");
        let (_more, took) = timed(|| {
            group
                .charge_with(Bytes(BATCH), OnFull::Wait(WATCHDOG))
                .expect("high refuses no charge")
        });
        assert!(took >= Duration::from_millis(100), "{took:?}");
    }
}

/// Runs `work` while another thread has credit of a group that is far above its high. Whether it
/// had any before.
pub(super) fn beside_credit(group: &Group, work: impl FnOnce()) -> bool {
    let (left, wait) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The second walk opens an adaptive stock.
            (0..2).for_each(|_| {
                drop(
                    group
                        .charge_with(1, OnFull::Reclaim)
                        .expect("high refuses no charge"),
                )
            });
            left.send(group.memory().stocked() > 0)
                .expect("the test waits");
            assert!(ended.recv().is_err(), "nothing is sent");
        });
        let stocked = wait.recv().expect("no panic there");
        work();
        drop(end);
        stocked
    })
}

/// Bytes above high are given back while a charge is delayed, and part of them goes into a stock:
/// that delays no charge.
#[test]
fn credit_delays_no_charge() {
    let mut stocked = 0;
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let group = with_high(&runtime.root(), "q", MIB);
        let held = group.force_charge(Bytes(8 * MIB));
        let thread = {
            let group = group.clone();
            std::thread::spawn(move || group.charge(Bytes(MIB - 4 * KIB)))
        };
        super::until("the thread has charged", || group.live() > 8 * MIB);
        stocked += u32::from(beside_credit(&group, || {
            drop(held);
            let (charged, took) = timed(|| crate::support::waiters::join(thread));
            drop(charged.expect("high refuses no charge"));
            assert!(took < QUICK, "{took:?}");
        }));
    }
    assert!(stocked > 0, "no kind of stock has credit here");
}

/// A charge that waited for room and is made above high is delayed as any charge. The thread that
/// made room is not.
#[test]
fn a_charge_that_waited_is_delayed_by_its_own() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(LONG)));
        let limits = memcg::Limits::new()
            .high(Limit::Bytes(MIB))
            .max(Limit::Bytes(10 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let other = with_high(&runtime.root(), "other", 100 * MIB);
        let mut held = group.force_charge(Bytes(10 * MIB));
        let _above = other.force_charge(Bytes(120 * MIB));
        let thread = crate::support::waiters::blocked(&group, MIB, &group);
        held.shrink(Bytes(2 * MIB));
        // Handed over, by this thread or by the other one at the end of its way into line: as this
        // thread's own charge it would be a long one.
        crate::support::waiters::until("handed over", || {
            (group.live(), group.waiting_count()) == (9 * MIB, 0)
        });
        let (_, took) = timed(|| drop(charge(&other, 16)));
        assert!(took < QUICK, "{took:?}");
        std::thread::sleep(Duration::from_millis(50));
        assert!(!thread.is_finished(), "it is delayed");
        // Below high again there is nothing to wait for.
        drop(held);
        let waited = crate::support::waiters::join(thread).expect("admitted");
        assert_eq!(
            (
                waited.bytes(),
                group.events().local().get(memcg::Event::High)
            ),
            (MIB, 1)
        );
    }
}
