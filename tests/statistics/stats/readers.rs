//! The write path, and what the readers make of it.

use memcg::{Freshness, Runtime, Stat, Unit};

use super::{Other, assert_exact, assert_honest, build, create, kinds, let_idle};

#[test]
fn what_is_added_is_read_exactly() {
    for mut builder in kinds() {
        let rows = builder.stat("rows", Unit::Events);
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let acme = create(&root, "acme");
        let [one, two] = ["one", "two"].map(|name| create(&acme, name));
        let [mut of_acme, mut of_one, mut of_two] = [0_i64; 3];
        for round in 1..200_i64 {
            one.stat_add(rows, round);
            other.add(&two, rows, 3 * round);
            acme.stat_add(rows, 1);
            other.add(&one, rows, 1);
            (of_acme, of_one, of_two) = (of_acme + 1, of_one + round + 1, of_two + 3 * round);
            if round % 20 == 0 {
                // From the leaves up, and from the root down: which flush is first makes no difference.
                let leaves_first = round % 40 == 0;
                let mut levels = [
                    (&root, of_acme + of_one + of_two, 0),
                    (&acme, of_acme + of_one + of_two, of_acme),
                    (&one, of_one, of_one),
                    (&two, of_two, of_two),
                ];
                if leaves_first {
                    levels.reverse();
                }
                for (group, subtree, local) in levels {
                    assert_exact(group, rows, subtree, local);
                    assert_exact(group, Stat::ANON, 0, 0);
                }
            }
        }
        assert_eq!(runtime.counts().foreign_stats, 0);
    }
}

/// Each reader is as exact as it says, and an exact one leaves the others what it has found.
#[test]
fn every_reader_says_how_far_it_is_off() {
    for mut builder in kinds() {
        let rows = builder.stat("rows", Unit::Events);
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        for round in 1..300 {
            group.stat_add(rows, 1);
            for group in [&group, &runtime.root()] {
                assert_honest(&group.read(Freshness::Stale), rows, round);
            }
            if round % 7 == 0 {
                assert_honest(&group.read(Freshness::Threshold), rows, round);
            }
            if round % 11 == 0 {
                let within = runtime.root().read(Freshness::Within(10));
                assert!(within.max_error() <= 10);
                assert_honest(&within, rows, round);
            }
            if round % 50 == 0 {
                assert_exact(&group, rows, round, round);
                for group in [&group, &runtime.root()] {
                    assert_eq!(group.read(Freshness::Stale).get(rows), round, "published");
                }
            }
        }
        assert_eq!(group.read(Freshness::Within(0)).get(rows), 299);
        assert_eq!(group.read(Freshness::Within(0)).max_error(), 0);
    }
}

#[test]
fn a_gauge_goes_up_and_down() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        a.stat_add(Stat::ANON, 10_000);
        other.add(&a, Stat::ANON, -4_000);
        assert_exact(&a, Stat::ANON, 6_000, 6_000);
        // One thread counts up, another down, each group by itself below zero.
        other.add(&b, Stat::ANON, -9_000);
        assert_exact(&b, Stat::ANON, -9_000, -9_000);
        assert_exact(&root, Stat::ANON, -3_000, 0);
        for _ in 0..1_000 {
            a.stat_add(Stat::ANON, 1);
            a.stat_add(Stat::ANON, -1);
            other.add(&b, Stat::ANON, 9);
        }
        assert_exact(&root, Stat::ANON, 6_000, 0);
        assert_exact(&b, Stat::ANON, 0, 0);
        a.stat_add(Stat::ANON, -6_000);
        assert_exact(&root, Stat::ANON, 0, 0);
    }
}

/// The figure of a subtree is the group's own and those of its children, at every level of a deep tree.
#[test]
fn a_subtree_is_the_sum_of_its_groups() {
    const DEPTH: i64 = 60;
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let mut levels = vec![root.clone()];
        for depth in 1..DEPTH {
            let level = create(&levels[levels.len() - 1], &depth.to_string());
            create(&level, "beside").stat_add(Stat::SLAB, 1);
            level.stat_add(Stat::SLAB, 1_000 * depth);
            other.add(&level, Stat::SLAB, -depth);
            levels.push(level);
        }
        for (depth, level) in (0..).zip(&levels) {
            let below: i64 = (depth.max(1)..DEPTH).map(|depth| 999 * depth + 1).sum();
            assert_exact(level, Stat::SLAB, below, 999 * depth);
        }
    }
}

/// No thread wrote anything: nothing to look for, nothing to be off by.
#[test]
fn a_group_that_no_thread_wrote_reads_zero() {
    for builder in kinds() {
        let runtime = build(builder);
        let [idle, busy] = ["idle", "busy"].map(|name| create(&runtime.root(), name));
        busy.stat_add(Stat::ANON, 1 << 30);
        for stats in [
            idle.read(Freshness::Stale),
            idle.read(Freshness::Threshold),
            idle.read(Freshness::Within(0)),
            idle.read(Freshness::Exact),
        ] {
            assert!(runtime.items().all(|item| stats.get(item.stat) == 0));
            assert_eq!((stats.local(Stat::ANON), stats.max_error()), (0, 0));
        }
        assert_eq!(runtime.counts().flush_visits, 0, "the other is no thread's business");
        assert_exact(&runtime.root(), Stat::ANON, 1 << 30, 0);
    }
}

/// Zero is nothing: a thread that adds it is no writer, and no reader looks for what it wrote.
#[test]
fn an_addition_of_zero_makes_no_writer() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let group = create(&root, "q");
        let add_zero = || {
            other.add(&group, Stat::ANON, 0);
            group.stat_add(Stat::ANON, 0);
            group.try_charge(0).expect("nothing").stat_add(Stat::ANON, 0);
        };
        let assert_unchanged = |when: &str| {
            let before = (runtime.counts(), root.read(Freshness::Stale));
            add_zero();
            let after = (runtime.counts(), root.read(Freshness::Stale));
            assert_eq!((after.0.stat_lists, &after.1), (before.0.stat_lists, &before.1), "{when}");
        };
        assert_unchanged("before the first addition");
        assert_exact(&group, Stat::ANON, 0, 0);
        assert_eq!(runtime.counts().flush_visits, 0, "no thread has written");
        group.stat_add(Stat::ANON, 5);
        other.add(&group, Stat::ANON, -1);
        assert_unchanged("while both are listed");
        assert_exact(&root, Stat::ANON, 4, 0);
        let_idle(&runtime);
        assert_eq!(root.read(Freshness::Stale).max_error(), 0);
        assert_unchanged("after both went idle");
        group.stat_add(Stat::ANON, 1);
        other.add(&group, Stat::ANON, 1);
        assert_exact(&root, Stat::ANON, 6, 0);
    }
}

/// What has been read does not change any more.
#[test]
fn a_read_is_a_copy() {
    let runtime = build(Runtime::builder());
    let root = runtime.root();
    root.stat_add(Stat::FILE, 5);
    let before = root.read(Freshness::Exact);
    root.stat_add(Stat::FILE, 1 << 40);
    root.flush();
    drop(runtime);
    assert_eq!((before.get(Stat::FILE), before.local(Stat::FILE), before.max_error()), (5, 5, 0));
    let copy = before.clone();
    assert_eq!(copy, before);
    assert_ne!(copy, root.read(Freshness::Exact));
}

/// A stale read takes nothing over; a flush does, and only of its subtree.
#[test]
fn only_a_flush_publishes() {
    let runtime = build(Runtime::builder().stat_batch(64));
    let [a, b] = ["a", "b"].map(|name| create(&runtime.root(), name));
    a.stat_add(Stat::WORKINGSET_REFAULT, 1);
    b.stat_add(Stat::WORKINGSET_REFAULT, 2);
    let stale = || [&runtime.root(), &a, &b].map(|group| group.read(Freshness::Stale).get(Stat::WORKINGSET_REFAULT));
    let before = runtime.counts();
    assert_eq!(stale(), [0, 0, 0]);
    assert_eq!(a.read(Freshness::Within(32)).get(Stat::WORKINGSET_REFAULT), 0, "as exact as was asked for");
    assert_eq!(runtime.counts().flushes, before.flushes);
    b.flush();
    assert_eq!(stale(), [2, 0, 2]);
    assert_eq!(a.read(Freshness::Within(31)).get(Stat::WORKINGSET_REFAULT), 1, "one writer may hold 32 back");
    assert_eq!(stale(), [3, 1, 2]);
    assert_eq!(runtime.counts().flushes - before.flushes, 2);
}

/// A flush is one whether or not there was anything to do, and says so nowhere else.
#[test]
fn a_flush_of_everything_reaches_every_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let groups: Vec<_> = (0..50).map(|number| create(&root, &number.to_string())).collect();
        for (number, group) in (1..).zip(&groups) {
            match number % 2 {
                0 => other.add(group, Stat::KERNEL, number),
                _ => group.stat_add(Stat::KERNEL, number),
            }
        }
        let before = runtime.counts().flushes;
        root.flush();
        assert_eq!(runtime.counts().flushes - before, 1);
        for (number, group) in (1..).zip(&groups) {
            let stale = group.read(Freshness::Stale);
            assert_eq!((stale.get(Stat::KERNEL), stale.local(Stat::KERNEL)), (number, number));
        }
        assert_eq!(root.read(Freshness::Stale).get(Stat::KERNEL), 50 * 51 / 2);
    }
}
