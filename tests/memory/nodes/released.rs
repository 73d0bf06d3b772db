//! The next group in an object finds no part, row or cell of the last one.

use memcg::{Freshness, Group, Runtime, StatKey};

use super::{Other, assert_sums, hold, left_empty, local, machine, on, placed, runtimes};
use crate::support::trees::{bare, build, create, stocked};

#[test]
fn ancestors_keep_what_the_dead_left() {
    for runtime in runtimes(3) {
        let root = runtime.root();
        let parent = create(&root, "p");
        let other = Other::spawn();
        let mut kept = Vec::new();
        for round in 0..200_i64 {
            let group = create(&parent, "q");
            let kmem = other.hold(&group, &placed(&[((round % 3) as u16, 100)]));
            // A plain statistic on the same items beside it, and what is left for ever.
            group.stat_add(StatKey::KERNEL, 1);
            if round % 10 == 0 {
                let precharge = group.precharge(5).expect("room");
                group.offline().expect("no children");
                kept.push(precharge.account(&placed(&[(((round + 1) % 3) as u16, 5)])));
            } else {
                group.offline().expect("no children");
            }
            drop(group);
            drop(kmem);
        }
        runtime.settle();
        let expected = kept.iter().fold([0_i64; 3], |mut sum, kmem| {
            kmem.placement()
                .nodes()
                .for_each(|(of, bytes)| sum[usize::from(of.get())] += bytes.cast_signed());
            sum
        });
        assert_eq!((on(&parent), on(&root)), (expected, expected));
        assert_eq!(
            parent
                .numa_stat(StatKey::KERNEL, Freshness::Exact)
                .unplaced(),
            200
        );
        assert_sums(&runtime);
        drop(kept);
        runtime.settle();
        assert_eq!((on(&parent), runtime.dying_count()), ([0; 3], 0));
        root.stat_add(StatKey::KERNEL, -200);
    }
}

/// One node, many, few, all by the same threads and in the same objects.
#[test]
fn runtimes_with_other_nodes_come_into_their_objects() {
    let others = [Other::spawn(), Other::spawn()];
    for round in 0..30_usize {
        let nodes = [1_u16, 8, 2, 16, 3, 1, 64, 5, 9][round % 9];
        let numbers: Vec<u16> = (0..nodes).map(|number| number * 3).collect();
        let batch = [0, 64, 1_024][round % 3];
        let runtime = left_empty(build(
            stocked().topology(machine(&numbers)).stat_batch(batch),
        ));
        let root = runtime.root();
        let groups: Vec<Group> = (0..20)
            .map(|number| create(&root, &number.to_string()))
            .collect();
        for group in &groups {
            assert!(
                group
                    .numa_stat(StatKey::KERNEL, Freshness::Exact)
                    .iter()
                    .all(|(_, bytes)| bytes == 0),
                "another thread's"
            );
            assert_eq!(group.read(Freshness::Exact).get(StatKey::KERNEL), 0);
        }
        let mut held = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let of = numbers[number % numbers.len()];
            held.push(others[number % 2].hold(group, &placed(&[(of, 7), (numbers[0], 1)])));
            held.push(hold(group, &placed(&[(numbers[numbers.len() - 1], 9)])));
        }
        assert_sums(&runtime);
        let all = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
        assert_eq!(
            (all.sum(), all.iter().count()),
            (20 * 17, usize::from(nodes))
        );
        // The runtime first, what they hold first, or the handles.
        if round % 3 == 2 {
            runtime.drop_as_it_is();
            others[0].run(move || drop(held));
            assert!(
                root.numa_stat(StatKey::KERNEL, Freshness::Exact)
                    .iter()
                    .all(|(_, bytes)| bytes == 0)
            );
            continue;
        }
        if round % 3 == 1 {
            drop(groups);
            others[1].run(move || drop(held));
        } else {
            drop((held, groups));
        }
    }
}

/// A group with parts on all nodes is released, and one that is on one node comes into its place:
/// it has that part alone.
#[test]
fn the_next_one_begins_without_parts() {
    for runtime in runtimes(8) {
        let root = runtime.root();
        let parent = create(&root, "p");
        let everywhere: Vec<(u16, u64)> = (0..8).map(|number| (number, 10)).collect();
        for round in 0..100_u16 {
            drop((create(&parent, "full"), hold(&parent, &placed(&everywhere))));
            let full = create(&parent, &format!("full{round}"));
            drop(hold(&full, &placed(&everywhere)));
            full.offline().expect("no children");
            drop(full);
            runtime.settle();
            let next = create(&parent, "next");
            let first = hold(&next, &placed(&[(round % 8, 3)]));
            let precharge = next.precharge(80).expect("room");
            next.offline().expect("no children");
            // No part on the others, whatever its predecessor had: the parent takes it.
            let kmem = precharge.account(&placed(&everywhere));
            let mut expected = [0_i64; 8];
            expected[usize::from(round % 8)] = 13;
            assert_eq!(local(&next), expected, "round {round}");
            drop((first, kmem, next));
            for group in parent.children() {
                group.offline().expect("no children");
            }
        }
    }
}

/// A thread that is past its destructors has no cells: what it accounts is counted all the same.
#[test]
fn past_the_end_of_a_thread() {
    use std::cell::RefCell;
    thread_local! {
        static AT_EXIT: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    struct Late(Group, Option<memcg::kmem::Kmem>);
    impl Drop for Late {
        fn drop(&mut self) {
            drop(self.1.take());
            std::mem::forget(hold(&self.0, &placed(&[(0, 1), (1, 2)])));
        }
    }
    let runtime = build(bare().nodes(2));
    let group = runtime.root();
    for round in 1..=20 {
        let theirs = group.clone();
        let thread = std::thread::spawn(move || {
            // Before the library's own thread-local, and after it.
            if round % 2 == 0 {
                drop(hold(&theirs, &placed(&[(1, 1)])));
            }
            AT_EXIT.set(Some(Late(theirs.clone(), None)));
            AT_EXIT.with_borrow_mut(|late| {
                late.as_mut().expect("set").1 = Some(hold(&theirs, &placed(&[(0, 50), (1, 60)])));
            });
        });
        thread.join().expect("destructors do not panic");
        assert_eq!(
            (on(&group), group.live()),
            ([round, 2 * round], 3 * round as u64)
        );
    }
    assert_eq!(runtime.counts().nested_stats, 0);
    drop(Runtime::builder().build());
}
