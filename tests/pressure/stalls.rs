//! For how long chargers stood still: what counts, at which groups, until when.

use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use memcg::figures::GroupPressure;
use memcg::{Bytes, Group, Limit, Limits, OnFull, OomPolicy, ReclaimPriority, Runtime};

use crate::support::reclaimers::call;
use crate::support::trees::{assert_empty, build, create, kinds, left_empty, limited, runtimes};
use crate::support::waiters::{Polled, admitted, blocked, in_line, join, until};

/// A lower bound of what is slept, and so of a stall.
const NAP: Duration = Duration::from_millis(5);

fn totals(pressure: GroupPressure) -> [Duration; 2] {
    [pressure.some.total, pressure.full.total]
}

/// No charger stands still: time passes, and the totals do not move.
#[track_caller]
fn nothing_stands_still(groups: &[&Group]) {
    let before: Vec<_> = groups
        .iter()
        .map(|group| totals(group.pressure()))
        .collect();
    thread::sleep(NAP);
    let after: Vec<_> = groups
        .iter()
        .map(|group| totals(group.pressure()))
        .collect();
    assert_eq!(before, after);
}

/// A charger of the group stands still: the total grows.
#[track_caller]
fn stands_still(group: &Group) {
    let before = group.pressure().some.total;
    until("a longer total", || group.pressure().some.total > before);
}

/// A root, a group with a max of 100 bytes below it, and one in that.
fn three() -> (Runtime, Group, Group) {
    let runtime = build(kinds().into_iter().next().expect("a kind"));
    let top = limited(&runtime.root(), "top", 100);
    let group = create(&top, "q");
    (runtime, top, group)
}

#[test]
fn a_thread_in_line_counts_at_each_level() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100);
        let group = create(&top, "q");
        let beside = create(&top, "beside");
        let held = group.force_charge(100);
        assert_eq!(group.pressure(), GroupPressure::default());
        let waiter = blocked(&group, 10, &top);
        stands_still(&group);
        stands_still(&runtime.root());
        drop(held);
        drop(join(waiter).expect("there is room"));
        let root = runtime.root();
        nothing_stands_still(&[&group, &top, &root]);
        let [q, t, r] = [&group, &top, &root].map(|group| totals(group.pressure()));
        assert_eq!((q[0], t[0], r[0]), (q[0], q[0], q[0]), "the one charger");
        assert_eq!(
            (q[1], t[1], r[1]),
            (q[0], q[0], Duration::ZERO),
            "the max is top's"
        );
        assert_eq!(
            totals(beside.pressure()),
            [Duration::ZERO; 2],
            "no charger of it has stood still"
        );
    }
}

/// Two at once are not twice the time; what is common to both groups is at the level above.
#[test]
fn chargers_at_once_count_once() {
    let (runtime, top, group) = three();
    let other = create(&top, "other");
    let held = group.force_charge(100);
    let begun = Instant::now();
    let waiters = [
        in_line(&group, 10),
        in_line(&group, 10),
        in_line(&other, 10),
    ];
    stands_still(&group);
    stands_still(&other);
    drop(waiters);
    let most = begun.elapsed();
    nothing_stands_still(&[&group, &other, &top]);
    let [q, o, t] = [&group, &other, &top].map(|group| group.pressure().some.total);
    assert!(
        q <= t && o <= t && t <= q + o && t <= most,
        "{q:?} {o:?} {t:?} of {most:?}"
    );
    drop((held, group, other, top));
    assert_empty(&runtime);
}

#[test]
fn a_future_counts_until_it_goes_on_or_is_dropped() {
    let (runtime, top, group) = three();
    let held = group.force_charge(100);
    let waiter = in_line(&group, 10);
    stands_still(&group);
    drop(waiter);
    nothing_stands_still(&[&group, &top]);
    let mut waiter = in_line(&group, 10);
    stands_still(&group);
    drop(held);
    stands_still(&group);
    drop(admitted(&mut waiter));
    nothing_stands_still(&[&group, &top]);
    drop((waiter, group, top));
    assert_empty(&runtime);
}

/// It has its place in line, too. Time is over, and it is done.
#[test]
fn a_future_that_times_out_goes_on() {
    let (runtime, top, group) = three();
    let held = group.force_charge(100);
    let mut waiter = Polled::new(group.charge_async(10).timeout(NAP));
    assert!(waiter.finish().is_err());
    nothing_stands_still(&[&group, &top]);
    assert!(group.pressure().some.total > Duration::ZERO);
    drop((waiter, held, group, top));
    assert_empty(&runtime);
}

/// Nothing of a future that is never polled nor dropped ends: it stands still for ever.
#[test]
fn a_forgotten_future_stands_still() {
    let (_runtime, _top, group) = three();
    let _held = group.force_charge(100);
    std::mem::forget(in_line(&group, 10));
    stands_still(&group);
    stands_still(&group);
}

#[test]
fn a_group_that_goes_offline_turns_its_chargers_away() {
    let (runtime, top, group) = three();
    let held = top.force_charge(100);
    let waiter = blocked(&group, 10, &top);
    let mut future = in_line(&group, 10);
    stands_still(&group);
    group.offline().expect("no children");
    assert!(join(waiter).is_err());
    stands_still(&top);
    assert!(matches!(future.poll(), Poll::Ready(Err(_))));
    nothing_stands_still(&[&group, &top]);
    drop((held, future, group, top));
    assert_empty(&runtime);
}

#[test]
fn reclaim_counts_for_the_level_that_is_full() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100);
        let group = create(&top, "q");
        let _held = group.force_charge(100);
        let _registration = group.register_reclaimer(
            call(|_, _| {
                thread::sleep(NAP);
                0
            }),
            ReclaimPriority::NORMAL,
        );
        assert!(group.charge(1).is_err());
        for group in [&group, &top] {
            let [some, full] = totals(group.pressure());
            assert!(some >= NAP && full == some, "{some:?} {full:?}");
        }
        assert_eq!(runtime.root().pressure().full.total, Duration::ZERO);
        // A task stands still from its first poll on, and the reclaimer is asked meanwhile.
        thread::sleep(Duration::from_millis(10)); // what the reclaimer said is true for 4
        let before = group.pressure().some.total;
        let task = in_line(&group, 1);
        until("it stood still", || {
            group.pressure().some.total >= before + NAP
        });
        drop(task);
        nothing_stands_still(&[&group, &top]);
    }
}

#[test]
fn a_reclaimer_that_panics_leaves_nothing_behind() {
    let (runtime, top, group) = three();
    let held = group.force_charge(100);
    let registration =
        group.register_reclaimer(call(|_, _| panic!("on purpose")), ReclaimPriority::NORMAL);
    assert!(group.charge(1).is_err());
    nothing_stands_still(&[&group, &top]);
    assert!(group.pressure().some.total > Duration::ZERO);
    drop((registration, held, group, top));
    assert_empty(&runtime);
}

#[test]
fn victims_are_waited_for() {
    let runtime = left_empty(build(
        kinds().into_iter().next().expect("a kind").oom_time(NAP),
    ));
    let top = limited(&runtime.root(), "top", 100);
    top.set_oom_policy(OomPolicy::Choose);
    let group = create(&top, "q");
    let hog = create(&top, "hog");
    let _hook = hog.on_cancel(|_| thread::sleep(NAP));
    let _held = hog.force_charge(100);
    assert!(group.charge(1).is_err());
    let [some, full] = totals(group.pressure());
    assert!(some >= NAP && full == some, "{some:?} {full:?}");
    assert_eq!(
        hog.pressure().some.total,
        Duration::ZERO,
        "no charger of the victim stood still"
    );
    nothing_stands_still(&[&group, &top]);
}

#[test]
fn delays_above_high_count() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(4 * NAP)));
        let top = runtime
            .root()
            .create("top", Limits::new().high(Limit::Bytes(1 << 20)))
            .expect("a free name");
        let group = create(&top, "q");
        let _held = group.force_charge(Bytes(8 << 20));
        assert_eq!(group.pressure(), GroupPressure::default(), "forced");
        drop(
            group
                .charge(Bytes(1 << 20))
                .expect("high refuses no charge"),
        );
        let [some, full] = totals(group.pressure());
        assert!(some >= 4 * NAP && full == some, "{some:?} {full:?}");
        // A future, until it goes on; one that is told to be undelayed is not delayed.
        let mut future = Polled::new(group.charge_async(Bytes(1 << 20)));
        assert!(future.poll().is_pending());
        stands_still(&top);
        drop(future.finish().expect("high refuses no charge"));
        drop(future);
        nothing_stands_still(&[&group, &top]);
        let before = totals(group.pressure());
        drop(
            Polled::new(group.charge_async(Bytes(1 << 20)).undelayed())
                .finish()
                .expect("high refuses no charge"),
        );
        assert_eq!(totals(group.pressure()), before);
        drop(Polled::new(group.run(Group::checkpoint_async)).finish());
        assert!(
            group.pressure().some.total > before[0],
            "a checkpoint is delayed, too"
        );
        nothing_stands_still(&[&group, &top]);
        assert_eq!(runtime.root().pressure().full.total, Duration::ZERO);
    }
}

/// A refusal at once, reclaim that a caller asks for, a limit that is lowered: no charger stands
/// still.
#[test]
fn what_does_not_count() {
    let (runtime, top, group) = three();
    let held = group.force_charge(100);
    assert!(group.charge(1).is_err() && group.charge_with(1, OnFull::Now).is_err());
    let registration = group.register_reclaimer(
        call(|_, _| {
            thread::sleep(Duration::from_millis(1));
            0
        }),
        ReclaimPriority::NORMAL,
    );
    group.reclaim(10).expect("not inside a reclaimer");
    top.set_max(Limit::Bytes(50)).expect("bytes");
    for group in [&group, &top, &runtime.root()] {
        assert_eq!(group.pressure(), GroupPressure::default());
    }
    drop((registration, held, group, top));
    assert_empty(&runtime);
}

#[test]
fn where_stalls_are_not_counted() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.count_stalls(false)));
        let group = limited(&runtime.root(), "q", 100);
        let held = group.force_charge(100);
        let waiter = blocked(&group, 1, &group);
        drop(held);
        drop(join(waiter).expect("there is room"));
        assert_eq!(group.pressure(), GroupPressure::default());
    }
}

/// Also under the name of a group that is gone: its object is the next one's.
#[test]
fn a_new_group_begins_with_nothing() {
    let (runtime, top, group) = three();
    let held = top.force_charge(100);
    drop(in_line(&group, 1));
    let before = top.pressure().some.total;
    assert!(before > Duration::ZERO);
    group.offline().expect("no children");
    drop(group);
    let group = create(&top, "q");
    assert_eq!(
        (group.pressure(), top.pressure().some.total),
        (GroupPressure::default(), before)
    );
    let snapshot = runtime.snapshot();
    let rows: Vec<_> = snapshot
        .rows()
        .iter()
        .map(|row| (row.path.as_str(), row.pressure.some.total))
        .collect();
    assert_eq!(
        rows,
        [("/", before), ("/top", before), ("/top/q", Duration::ZERO)]
    );
    drop((held, group, top));
    assert_empty(&runtime);
}
