//! Groups that go offline between admission and account, and between account and free. An offline group gets no new part:
//! its parent is accounted, and gets back what it was accounted.

use memcg::kmem::Kmem;
use memcg::{Freshness, Group, Stat};

use super::{Other, assert_empty, assert_sums, hold, local, node, on, placed, scattered};
use crate::support::trees::{assert_sound, build, create};

#[test]
fn between_precharge_and_account() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let parent = create(&root, "p");
        let group = create(&parent, "q");
        let other = Other::spawn();
        // A part on node 0, by another thread.
        let before = other.hold(&group, &placed(&[(0, 10)]));
        let precharge = group.precharge(100).expect("room");
        group.offline().expect("no children");
        let kmem = precharge.account(&scattered(&[(0, 20), (1, 30)], 40));
        assert_eq!((local(&group), on(&group)), ([30, 0, 0], [30, 0, 0]), "it has a part on node 0 alone");
        assert_eq!((local(&parent), on(&parent), on(&root)), ([0, 30, 0], [30, 30, 0], [30, 30, 0]));
        assert_eq!(group.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced(), 40, "what is on no node is its own");
        // Whatever is accounted above: the bytes are held by the group.
        assert_eq!((kmem.placement(), kmem.bytes()), (scattered(&[(0, 20), (1, 30)], 40), 90));
        assert_eq!((group.live(), parent.live(), kmem.group()), (100, 100, group.clone()));
        assert_sums(&runtime);
        other.run(move || drop(kmem));
        assert_eq!((on(&group), on(&parent), on(&root)), ([10, 0, 0], [10, 0, 0], [10, 0, 0]));
        drop((before, group, parent));
        assert_empty(&runtime);
    }
}

#[test]
fn between_account_and_free() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let others = [Other::spawn(), Other::spawn()];
        let mut kmem = others[0].hold(&group, &placed(&[(0, 100), (2, 50)]));
        group.offline().expect("no children");
        assert_eq!((on(&group), local(&group)), ([100, 0, 50], [100, 0, 50]), "nothing moves because of it");
        // Its owner moves it: where there is a part it is the group's, where there is none the root's.
        assert_eq!(kmem.migrate(Some(node(0)), Some(node(2)), 30), 30);
        assert_eq!(kmem.migrate(Some(node(0)), Some(node(1)), 40), 40);
        assert_eq!((local(&group), local(&root), on(&root)), ([30, 0, 80], [0, 40, 0], [30, 40, 80]));
        assert_eq!(kmem.migrate(Some(node(1)), Some(node(0)), 15), 15);
        assert_eq!((local(&group), local(&root), on(&root)), ([45, 0, 80], [0, 25, 0], [45, 25, 80]));
        assert_eq!(kmem.shrink(&placed(&[(1, 5), (2, 80)])), 85);
        assert_eq!((local(&group), local(&root)), ([45, 0, 0], [0, 20, 0]));
        kmem.relocate(&placed(&[(1, 65)]));
        assert_eq!((local(&group), local(&root)), ([0, 0, 0], [0, 65, 0]));
        assert_sums(&runtime);
        drop(group);
        assert_eq!(runtime.dying_count(), 1, "it is held");
        others[1].run(move || drop(kmem));
        assert_empty(&runtime);
    }
}

/// Offline up to the root: the nearest that has a part, or is online, takes it.
#[test]
fn whole_branches_go() {
    for builder in super::kinds(4) {
        let runtime = build(builder);
        let root = runtime.root();
        let mut levels = vec![root.clone()];
        for depth in 0..6 {
            levels.push(create(&levels[depth], "below"));
        }
        // Level 3 and all above have a part on node 2, level 5 and all above one on node 1.
        let held = [hold(&levels[3], &placed(&[(2, 1)])), hold(&levels[5], &placed(&[(1, 1)]))];
        let precharge = levels[6].precharge(1_000).expect("room");
        levels[2].offline_tree();
        let kmem = precharge.account(&placed(&[(0, 100), (1, 200), (2, 300), (3, 400)]));
        let locals: Vec<[i64; 4]> = levels.iter().map(local).collect();
        let mut expected = vec![[0; 4]; 7];
        expected[5] = [0, 201, 0, 0];
        expected[3] = [0, 0, 301, 0];
        expected[1] = [100, 0, 0, 400];
        assert_eq!(locals, expected);
        assert_eq!((on(&root), levels[6].live()), ([100, 201, 301, 400], 1_000));
        assert_sums(&runtime);
        // The handles go first, the bytes last.
        levels.truncate(2);
        drop(held);
        let other = Other::spawn();
        other.run(move || drop(kmem));
        assert_eq!((on(&levels[1]), on(&root)), ([0; 4], [0; 4]));
        drop(levels);
        assert_empty(&runtime);
    }
}

/// The same bytes by way of another guard: what was accounted above goes from above.
#[test]
fn merged_after_it_went() {
    for builder in super::kinds(2) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let early = hold(&group, &placed(&[(0, 10)]));
        let precharges = [(); 2].map(|()| group.precharge(50).expect("room"));
        group.offline().expect("no children");
        let [mut one, mut two] = precharges.map(|precharge| precharge.account(&placed(&[(0, 20), (1, 30)])));
        one.merge(early).expect("of one group");
        assert_eq!((local(&group), local(&root)), ([50, 0], [0, 60]));
        assert_eq!(two.shrink(&placed(&[(1, 25)])), 25);
        assert_eq!((local(&group), local(&root)), ([50, 0], [0, 35]));
        two.merge(one).expect("of one group");
        assert_eq!(two.placement(), placed(&[(0, 50), (1, 35)]));
        assert_eq!(two.migrate(Some(node(1)), Some(node(0)), 35), 35);
        assert_eq!((local(&group), local(&root)), ([85, 0], [0, 0]));
        assert_sums(&runtime);
        drop((two, group));
        assert_empty(&runtime);
    }
}

/// In the middle of everything, on another thread.
#[test]
fn while_others_account() {
    const ROUNDS: usize = if cfg!(debug_assertions) { 300 } else { 3_000 };
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let parent = create(&root, "p");
        for round in 0..ROUNDS {
            let group = create(&parent, "q");
            let held: Vec<Kmem> = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..2_usize)
                    .map(|thread| {
                        let group = group.clone();
                        scope.spawn(move || work(&group, thread + round))
                    })
                    .collect();
                (0..round * 10 % 400).for_each(|_| std::hint::spin_loop());
                group.offline().expect("no children");
                workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
            });
            let mut expected = [0_i64; 3];
            for kmem in &held {
                kmem.placement().nodes().for_each(|(of, bytes)| expected[usize::from(of.get())] += bytes.cast_signed());
            }
            assert_eq!(on(&parent), expected);
            assert_eq!(parent.live(), held.iter().map(Kmem::bytes).sum::<u64>());
        }
        assert_eq!((on(&parent), parent.live()), ([0; 3], 0));
        assert_sound(&runtime);
        drop(parent);
        assert_empty(&runtime);
    }
}

fn work(group: &Group, from: usize) -> Vec<Kmem> {
    let mut held: Vec<Kmem> = Vec::new();
    for number in from..from + 12 {
        let Ok(precharge) = group.precharge(40) else { break };
        let (first, second) = (number as u16 % 3, (number / 2) as u16 % 3);
        let mut kmem = precharge.account(&placed(&[(first, 10), (second, 25)]));
        kmem.migrate(Some(node(first)), Some(node((second + 1) % 3)), 7);
        match held.last_mut() {
            Some(last) if number % 3 == 0 => last.merge(kmem).expect("of one group"),
            _ => held.push(kmem),
        }
        if number % 4 == 0 {
            drop(held.swap_remove(0));
        }
    }
    held
}
