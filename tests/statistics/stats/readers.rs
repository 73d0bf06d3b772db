//! The write path, and what the readers make of it.

use memcg::{Freshness, Runtime, StatKey};

use super::{Other, assert_exact, build, create, kinds, let_idle};

/// The figure of a subtree is the group's own and those of its children, at every level of a deep
/// tree.
#[test]
fn a_subtree_is_the_sum_of_its_groups() {
    const DEPTH: i64 = 60;
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let mut levels = vec![root.clone()];
        for depth in 1..DEPTH {
            let level = create(&levels[levels.len() - 1], &depth.to_string());
            create(&level, "beside").stat_add(StatKey::SLAB, 1);
            level.stat_add(StatKey::SLAB, 1_000 * depth);
            other.add(&level, StatKey::SLAB, -depth);
            levels.push(level);
        }
        for (depth, level) in (0..).zip(&levels) {
            let below: i64 = (depth.max(1)..DEPTH).map(|depth| 999 * depth + 1).sum();
            assert_exact(level, StatKey::SLAB, below, 999 * depth);
        }
    }
}

/// Zero is nothing: a thread that adds it is no writer, and no reader looks for what it wrote.
#[test]
fn an_addition_of_zero_makes_no_writer() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let group = create(&root, "q");
        let add_zero = || {
            other.add(&group, StatKey::ANON, 0);
            group.stat_add(StatKey::ANON, 0);
            group.charge(0).expect("nothing").stat_add(StatKey::ANON, 0);
        };
        let assert_unchanged = |when: &str| {
            let before = (runtime.counts(), root.read(Freshness::Stale));
            add_zero();
            let after = (runtime.counts(), root.read(Freshness::Stale));
            assert_eq!(
                (after.0.stat_lists, &after.1),
                (before.0.stat_lists, &before.1),
                "{when}"
            );
        };
        assert_unchanged("before the first addition");
        assert_exact(&group, StatKey::ANON, 0, 0);
        assert_eq!(runtime.counts().flush_visits, 0, "no thread has written");
        group.stat_add(StatKey::ANON, 5);
        other.add(&group, StatKey::ANON, -1);
        assert_unchanged("while both are listed");
        assert_exact(&root, StatKey::ANON, 4, 0);
        let_idle(&runtime);
        assert_eq!(root.read(Freshness::Stale).max_error(), 0);
        assert_unchanged("after both went idle");
        group.stat_add(StatKey::ANON, 1);
        other.add(&group, StatKey::ANON, 1);
        assert_exact(&root, StatKey::ANON, 6, 0);
    }
}

/// A stale read takes nothing over; a flush does, and only of its subtree.
#[test]
fn only_a_flush_publishes() {
    let runtime = build(Runtime::builder().stat_batch(64));
    let [a, b] = ["a", "b"].map(|name| create(&runtime.root(), name));
    a.stat_add(StatKey::WORKINGSET_REFAULT, 1);
    b.stat_add(StatKey::WORKINGSET_REFAULT, 2);
    let stale = || {
        [&runtime.root(), &a, &b].map(|group| {
            group
                .read(Freshness::Stale)
                .get(StatKey::WORKINGSET_REFAULT)
        })
    };
    let before = runtime.counts();
    assert_eq!(stale(), [0, 0, 0]);
    assert_eq!(
        a.read(Freshness::Within(32))
            .get(StatKey::WORKINGSET_REFAULT),
        0,
        "as exact as was asked for"
    );
    assert_eq!(runtime.counts().flushes, before.flushes);
    b.inspect().flush();
    assert_eq!(stale(), [2, 0, 2]);
    assert_eq!(
        a.read(Freshness::Within(31))
            .get(StatKey::WORKINGSET_REFAULT),
        1,
        "one writer may hold 32 back"
    );
    assert_eq!(stale(), [3, 1, 2]);
    assert_eq!(runtime.counts().flushes - before.flushes, 2);
}

/// A flush is one whether or not there was anything to do, and says so nowhere else.
#[test]
fn a_flush_of_everything_reaches_every_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let groups: Vec<_> = (0..50)
            .map(|number| create(&root, &number.to_string()))
            .collect();
        for (number, group) in (1..).zip(&groups) {
            match number % 2 {
                0 => other.add(group, StatKey::KERNEL, number),
                _ => group.stat_add(StatKey::KERNEL, number),
            }
        }
        let before = runtime.counts().flushes;
        root.inspect().flush();
        assert_eq!(runtime.counts().flushes - before, 1);
        for (number, group) in (1..).zip(&groups) {
            let stale = group.read(Freshness::Stale);
            assert_eq!(
                (stale.get(StatKey::KERNEL), stale.local(StatKey::KERNEL)),
                (number, number)
            );
        }
        assert_eq!(
            root.read(Freshness::Stale).get(StatKey::KERNEL),
            50 * 51 / 2
        );
    }
}
