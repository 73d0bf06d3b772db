//! A flush visits cells that a thread writes, and no others. `counts().flush_visits` says how many
//! those were, `counts().barriers` how often every processor was disturbed.

use std::time::Duration;

use memcg::figures::TreeCounts;
use memcg::{Freshness, Group, Runtime, StatKey};

use super::{Other, assert_exact, build, create, eventually, kinds, let_idle};

const STAT: StatKey = StatKey::ANON;

/// Flushes of an exact read: one that reads, and one that finds what was written meanwhile.
const LOOKS: u64 = 2;

/// Visits and barriers of `work`.
fn cost(runtime: &Runtime, work: impl FnOnce()) -> (u64, u64) {
    let before = runtime.counts();
    work();
    let after = runtime.counts();
    (
        after.flush_visits - before.flush_visits,
        after.barriers - before.barriers,
    )
}

#[test]
fn one_updated_group_among_thousands() {
    const GROUPS: usize = if cfg!(debug_assertions) {
        10_000
    } else {
        50_000
    };
    let runtime = build(Runtime::builder());
    let root = runtime.root();
    let groups: Vec<Group> = (0..GROUPS)
        .map(|number| create(&root, &number.to_string()))
        .collect();
    // Idle from the start.
    let visits = cost(&runtime, || {
        groups[17].stat_add(STAT, 1);
        assert_exact(&root, STAT, 1, 0);
    });
    assert_eq!(visits, (LOOKS, 0));
    // Idle again.
    for group in &groups {
        group.stat_add(STAT, 1);
    }
    assert_eq!(
        cost(&runtime, || assert_exact(&root, STAT, GROUPS as i64 + 1, 0)),
        (LOOKS * GROUPS as u64, 0)
    );
    let_idle(&runtime);
    assert_eq!(
        cost(&runtime, || assert_exact(&root, STAT, GROUPS as i64 + 1, 0)),
        (0, 0)
    );
    for (round, number) in (2..).zip([0, GROUPS / 2, GROUPS - 1]) {
        groups[number].stat_add(STAT, 1);
        assert_eq!(
            cost(&runtime, || assert_exact(
                &root,
                STAT,
                GROUPS as i64 + round,
                0
            )),
            (LOOKS, 0)
        );
        assert_eq!(
            cost(&runtime, || assert_exact(&groups[number], STAT, 2, 2)).0,
            LOOKS,
            "still listed"
        );
        assert_eq!(
            cost(&runtime, || assert_exact(&groups[1], STAT, 1, 1)),
            (0, 0)
        );
        let_idle(&runtime);
    }
}

/// A flush of one subtree is not in the way of another, nor made slower by it.
#[test]
fn a_flush_looks_at_its_own_subtree() {
    for builder in kinds() {
        let runtime = build(builder);
        let [a, b] = ["a", "b"].map(|name| create(&runtime.root(), name));
        let of_b: Vec<Group> = (0..100)
            .map(|number| create(&b, &number.to_string()))
            .collect();
        a.stat_add(STAT, 5);
        of_b.iter().for_each(|group| group.stat_add(STAT, 7));
        // Once, so that every list has been taken over.
        a.inspect().flush();
        for round in 1..=10 {
            a.stat_add(STAT, 5);
            of_b[3].stat_add(STAT, 1);
            assert_eq!(
                cost(&runtime, || assert_exact(
                    &a,
                    STAT,
                    5 * round + 5,
                    5 * round + 5
                )),
                (LOOKS, 0)
            );
            assert_eq!(cost(&runtime, || of_b[3].inspect().flush()), (1, 0));
            assert_eq!(of_b[3].read(Freshness::Stale).get(STAT), 7 + round);
            assert_eq!(
                of_b[4].read(Freshness::Stale).get(STAT),
                0,
                "no thread asked"
            );
        }
        assert_eq!(
            cost(&runtime, || assert_exact(&b, STAT, 710, 0)),
            (LOOKS * 100, 0)
        );
    }
}

/// As many cells as there are pairs of a thread and a group that it writes.
#[test]
fn a_visit_is_one_of_a_thread_and_a_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let groups: Vec<Group> = (0..5)
            .map(|number| create(&runtime.root(), &number.to_string()))
            .collect();
        let others: Vec<Other> = (0..4).map(|_| Other::spawn()).collect();
        for (writers, other) in (1..).zip(&others) {
            for round in 0..3 {
                groups.iter().for_each(|group| other.add(group, STAT, 1));
                let visits = cost(&runtime, || runtime.root().inspect().flush()).0;
                assert!(
                    visits <= 5 * writers,
                    "round {round}: {visits} visits, {writers} writers"
                );
                assert!(visits >= 5, "round {round}: {visits} visits");
            }
        }
        let counts = runtime.counts();
        assert!(counts.stat_lists - counts.stat_unlists <= 20);
        assert_exact(&runtime.root(), STAT, 60, 0);
    }
}

/// An exact read disturbs no thread as long as every thread writes on, however often it reads.
#[test]
fn exact_reads_take_no_barrier() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let other = Other::spawn();
        let before = runtime.counts();
        for round in 1..=1_000 {
            group.stat_add(STAT, 1);
            other.add(&group, STAT, 1);
            assert_exact(&runtime.root(), STAT, 2 * round, 0);
            group.inspect().flush();
            assert_exact(&group, STAT, 2 * round, 2 * round);
        }
        let after = runtime.counts();
        assert_eq!((after.barriers, after.stat_unlists), (before.barriers, 0));
        assert_eq!(after.stat_lists - before.stat_lists, 2);
    }
}

/// No thread writes: with the flusher running, visits and barriers come to an end.
#[test]
fn at_rest_nothing_happens() {
    for builder in kinds() {
        let runtime = build(builder);
        let groups: Vec<Group> = (0..100)
            .map(|number| create(&runtime.root(), &number.to_string()))
            .collect();
        let other = Other::spawn();
        for group in &groups {
            group.stat_add(STAT, 1);
            other.add(group, STAT, 1);
        }
        runtime
            .start_flusher(Duration::from_millis(1))
            .expect("a period");
        let idle = |counts: TreeCounts| {
            counts.stat_lists == counts.stat_unlists && counts.stat_lists >= 200
        };
        eventually("rest", || idle(runtime.counts()));
        let resting = runtime.counts();
        eventually("flushes that find nothing", || {
            runtime.counts().flushes >= resting.flushes + 20
        });
        let rested = runtime.counts();
        assert_eq!(rested.barriers, resting.barriers);
        assert!(rested.barriers > 0, "a thread was unlisted without one");
        assert_eq!(rested.flush_visits, resting.flush_visits);
        // One barrier served many.
        assert!(
            rested.barriers < 20,
            "{} barriers for 200 that went idle",
            rested.barriers
        );
        // It begins again where it ended.
        groups[5].stat_add(STAT, 1);
        eventually("a flush", || {
            runtime.root().read(Freshness::Stale).get(STAT) == 201
        });
        assert_eq!(runtime.counts().stat_lists, rested.stat_lists + 1);
    }
}

/// Idle cells count for no thread's bound.
#[test]
fn the_bound_forgets_idle_writers() {
    let runtime = build(Runtime::builder().stat_batch(64));
    let root = runtime.root();
    let groups: Vec<Group> = (0..10)
        .map(|number| create(&root, &number.to_string()))
        .collect();
    groups.iter().for_each(|group| group.stat_add(STAT, 1));
    assert_eq!(root.read(Freshness::Stale).max_error(), 10 * 32);
    assert_eq!(groups[0].read(Freshness::Stale).max_error(), 32);
    root.inspect().flush();
    assert_eq!(
        root.read(Freshness::Stale).max_error(),
        10 * 32,
        "they may have written since"
    );
    let_idle(&runtime);
    assert_eq!(root.read(Freshness::Stale).max_error(), 0);
    groups[3].stat_add(STAT, 1);
    assert_eq!(root.read(Freshness::Stale).max_error(), 32);
    assert_eq!(groups[4].read(Freshness::Stale).max_error(), 0);
}

/// A group that goes takes its cells off every list.
#[test]
fn dead_groups_are_not_visited() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        for number in 0..500 {
            let group = create(&root, &number.to_string());
            group.stat_add(STAT, 1);
            other.add(&group, STAT, 1);
            group.offline().expect("no children");
        }
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_exact(&root, STAT, 1_000, 0);
        let_idle(&runtime);
        assert_eq!(
            cost(&runtime, || assert_exact(&root, STAT, 1_000, 0)),
            (0, 0)
        );
        assert_eq!(root.read(Freshness::Stale).max_error(), 0);
    }
}
