//! Handles, charges and reads that outlive their group and their runtime.

use memcg::{Freshness, Stat};

use super::{Other, assert_exact, assert_honest, build, charge, create, kinds};

const STAT: Stat = Stat::KERNEL;

#[test]
fn handles_count_on_without_their_runtime() {
    for builder in kinds() {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let acme = create(&root, "acme");
        let query = create(&acme, "q17");
        let gone = create(&acme, "gone");
        gone.stat_add(STAT, 100);
        query.stat_add(STAT, 1);
        other.add(&query, STAT, 2);
        drop(gone);
        drop(runtime);
        // Offline with its runtime, and no thread held it.
        assert_honest(&root.read(Freshness::Stale), STAT, 103);
        assert_exact(&acme, STAT, 103, 0);
        for round in 1..100 {
            query.stat_add(STAT, 1);
            other.add(&acme, STAT, 1);
            assert_honest(&root.read(Freshness::Stale), STAT, 103 + 2 * round);
            assert_honest(&root.read(Freshness::Threshold), STAT, 103 + 2 * round);
            assert!(root.read(Freshness::Within(3)).max_error() <= 3);
        }
        for (group, subtree, local) in [(&query, 102, 102), (&acme, 301, 99), (&root, 301, 0)] {
            assert_exact(group, STAT, subtree, local);
        }
        acme.flush();
        other.run(move || drop(query));
        assert_exact(&acme, STAT, 301, 99);
        drop(acme);
        assert_exact(&root, STAT, 301, 0);
        root.stat_add(STAT, -301);
        assert_exact(&root, STAT, 0, -301);
    }
}

/// A charge names its group: it counts there as long as it lives, whichever other thread is gone.
#[test]
fn a_charge_counts_for_its_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        let mut held = charge(&a, 100);
        held.stat_add(STAT, 5);
        let part = held.split(40).expect("of 100");
        part.stat_add(STAT, 6);
        let none = held.split(0).expect("nothing of it");
        none.stat_add(STAT, 7);
        for (group, own) in [(&a, 18), (&b, 0)] {
            assert_exact(group, STAT, own, own);
        }
        held.transfer(&b).expect("room");
        held.stat_add(STAT, 50);
        part.stat_add(STAT, 1);
        for (group, own) in [(&a, 19), (&b, 50)] {
            assert_exact(group, STAT, own, own);
        }
        // A further counter's guard is one of the same group.
        let [held_of_set] = b.try_charge_set(&[(memcg::Counter::MEMORY, 3)]).expect("room");
        held_of_set.stat_add(STAT, 2);
        drop(held_of_set);
        a.offline_tree();
        b.offline_tree();
        drop((a, b));
        let other = Other::spawn();
        other.run(move || {
            part.stat_add(STAT, 100);
            none.stat_add(STAT, 200);
            drop((part, none));
        });
        assert_exact(&root, STAT, 371, 0);
        drop(runtime);
        held.stat_add(STAT, 1_000);
        let group = held.group();
        assert_exact(&group, STAT, 1_052, 1_052);
        drop(group);
        held.stat_add(STAT, 10_000);
        drop(held);
        assert_exact(&root, STAT, 11_371, 0);
    }
}

/// The guard of a further counter finds the group's cells, not its counter's.
#[test]
fn a_guard_of_a_further_counter_counts_for_the_group() {
    for mut builder in kinds() {
        let spill = builder.counter("spill").independent();
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let charges = group.try_charge_set(&[(spill, 3), (memcg::Counter::MEMORY, 4)]).expect("room");
        for (number, charge) in (1..).zip(&charges) {
            charge.stat_add(STAT, number);
        }
        assert_exact(&group, STAT, 3, 3);
        group.offline().expect("no children");
        drop(group);
        for (number, charge) in (1..).zip(charges) {
            charge.stat_add(STAT, 10 * number);
        }
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_exact(&runtime.root(), STAT, 33, 0);
    }
}

/// A whole world goes with counts that no thread has read, in every order; the next one starts from nothing.
#[test]
fn worlds_end_in_any_order() {
    for round in 0..6 * 7 {
        let runtime = build(kinds()[round % 7].clone());
        let root = runtime.root();
        let group = create(&root, "q");
        for group in [&root, &group] {
            assert_exact(group, STAT, 0, 0);
        }
        let other = Other::spawn();
        group.stat_add(STAT, 4);
        other.add(&root, STAT, 3);
        let held = charge(&group, 10);
        let copy = root.clone();
        let mut keeps: Vec<Box<dyn std::any::Any + Send>> =
            vec![Box::new(runtime), Box::new(group), Box::new(held), Box::new(root)];
        for left in (1..=4).rev() {
            let at = round % left;
            let one = keeps.swap_remove(at);
            if (round + left) % 2 == 0 {
                drop(one)
            } else {
                other.run(move || drop(one))
            }
            assert_exact(&copy, STAT, 7, 3);
        }
        drop((copy, other));
    }
}
