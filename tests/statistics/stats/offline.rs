//! Groups that went offline: what they counted stays in the figures of those above, exactly, and is no other thread's.

use memcg::{Freshness, Stat};

use super::{Other, assert_exact, assert_honest, build, charge, create, kinds};

const STAT: Stat = Stat::SLAB;

/// Every thread that has a handle writes a last time and drops it. No thread flushes meanwhile.
#[test]
fn what_the_last_holder_wrote_is_with_the_parent() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, others) = (runtime.root(), [Other::spawn(), Other::spawn()]);
        let acme = create(&root, "acme");
        acme.stat_add(STAT, 1_000_000);
        let mut sum = 0;
        for round in 1..200_i64 {
            let group = create(&acme, "q");
            let held = charge(&group, 10);
            group.stat_add(STAT, round);
            others[0].add(&group, STAT, 2 * round);
            group.offline().expect("no children");
            group.stat_add(STAT, -round);
            others[1].add(&group, STAT, 5 * round);
            if round % 3 == 0 {
                assert_exact(&group, STAT, 7 * round, 7 * round);
            }
            let writer = &others[round as usize % 2];
            if round % 2 == 0 {
                // The last to hold it is a handle, on a thread of its own.
                drop(held);
                writer.run(move || {
                    group.stat_add(STAT, 100);
                    drop(group);
                });
            } else {
                // The last is a charge.
                drop(group);
                writer.run(move || {
                    held.stat_add(STAT, 100);
                    drop(held);
                });
            }
            runtime.settle();
            assert_eq!(runtime.dying_count(), 0, "round {round}");
            sum += 7 * round + 100;
            assert_honest(&acme.read(Freshness::Stale), STAT, sum + 1_000_000);
            assert_honest(&root.read(Freshness::Stale), STAT, sum + 1_000_000);
            if round % 5 == 0 {
                assert_exact(&root, STAT, sum + 1_000_000, 0);
                assert_exact(&acme, STAT, sum + 1_000_000, 1_000_000);
            }
        }
        assert_exact(&acme, STAT, sum + 1_000_000, 1_000_000);
    }
}

/// A whole subtree goes at once, some of it held by a thread.
#[test]
fn a_subtree_that_goes_leaves_its_sum() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let mut sum = 0;
        for round in 0..20_i64 {
            let top = create(&root, "top");
            let mut levels = vec![top.clone()];
            for depth in 0..10 {
                let level = create(&levels[depth], &depth.to_string());
                level.stat_add(STAT, 7 * depth as i64);
                other.add(&level, STAT, round);
                levels.push(level);
            }
            sum += 7 * 45 + 10 * round;
            top.offline_tree();
            // The one in the middle stays, and what is above it with it.
            let middle = levels.swap_remove(5);
            drop((levels, top));
            let below: i64 = (5..10).map(|depth| 7 * depth).sum();
            assert_exact(&middle, STAT, 5 * round + below + 7 * 4 + round, 7 * 4 + round);
            middle.stat_add(STAT, 3);
            sum += 3;
            assert_honest(&root.read(Freshness::Threshold), STAT, sum);
            drop(middle);
            runtime.settle();
            assert_eq!((runtime.dying_count(), runtime.group_count()), (0, 1));
            assert_exact(&root, STAT, sum, 0);
        }
    }
}

/// What a group counted before its parent went offline is not the parent's own.
#[test]
fn own_figures_stay_own() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let parent = create(&root, "parent");
        let child = create(&parent, "child");
        root.stat_add(STAT, 1);
        parent.stat_add(STAT, 10);
        child.stat_add(STAT, 100);
        child.offline().expect("no children");
        parent.offline().expect("no children online");
        for (group, subtree, local) in [(&root, 111, 1), (&parent, 110, 10), (&child, 100, 100)] {
            assert_exact(group, STAT, subtree, local);
        }
        drop(child);
        runtime.settle();
        assert_exact(&parent, STAT, 110, 10);
        parent.stat_add(STAT, 5);
        assert_exact(&root, STAT, 116, 1);
        assert_exact(&parent, STAT, 115, 15);
        drop(parent);
        runtime.settle();
        assert_exact(&root, STAT, 116, 1);
        assert_eq!(runtime.dying_count(), 0);
    }
}

/// Written by threads that are over when the group goes, and by one that comes to nothing in the end.
#[test]
fn the_dead_writers_of_a_dead_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        for number in 0..20 {
            let group = group.clone();
            let thread = std::thread::spawn(move || {
                group.stat_add(STAT, number);
                group.stat_add(Stat::FILE, 5);
                group.stat_add(Stat::FILE, -5);
            });
            thread.join().expect("no panic");
        }
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_honest(&root.read(Freshness::Stale), STAT, 190);
        assert_exact(&root, STAT, 190, 0);
        assert_exact(&root, Stat::FILE, 0, 0);
    }
}
