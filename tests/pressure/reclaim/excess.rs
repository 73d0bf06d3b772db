//! A group that is in excess of a soft limit, and how many those below a group are: exact at each
//! crossing.

use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{Bytes, Group, Limit, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{
    KIB, MIB, assert_sound, bare, build, charge, create, create_with, kinds, left_empty, runtimes,
    soft,
};

const ROUNDS: u64 = if cfg!(debug_assertions) { 40 } else { 400 };

fn set_soft(group: &Group, limit: Limit) {
    group
        .set_limits(Limits::new().soft(limit))
        .expect("no percentage");
}

#[test]
fn never_by_default() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        assert_eq!(
            (group.inspect().soft(), group.limits().soft),
            (u64::MAX, Some(Limit::Unlimited))
        );
        let _held = group.force_charge(1 << 50);
        assert!(!group.inspect().is_in_excess() && !runtime.root().inspect().is_in_excess());
        assert_eq!(runtime.root().inspect().descendants_in_excess(), 0);
        assert_sound(&runtime);
    }
}

/// 0: always when it holds anything. Any other: above it, not at it.
#[test]
fn above_it_not_at_it() {
    for limit in [0, 1, 4_096, MIB] {
        let runtime = left_empty(build(bare()));
        let root = runtime.root();
        let top = create(&runtime.root(), "top");
        let group = create_with(&top, "q", soft(limit));
        assert_eq!(
            (group.inspect().soft(), group.limits().soft),
            (limit, Some(Limit::Bytes(limit)))
        );
        let counted = || {
            (
                group.inspect().is_in_excess(),
                top.inspect().descendants_in_excess(),
                root.inspect().descendants_in_excess(),
            )
        };
        assert_eq!(
            (counted(), group.inspect().descendants_in_excess()),
            ((false, 0, 0), 0)
        );
        let mut held = charge(&group, limit);
        assert_eq!(counted(), (false, 0, 0));
        held.grow(1).expect("no max");
        assert_eq!(counted(), (true, 1, 1));
        held.grow(Bytes(MIB)).expect("no max");
        assert_eq!(counted(), (true, 1, 1), "once");
        held.shrink(Bytes(MIB));
        assert_eq!(counted(), (true, 1, 1));
        held.shrink(1);
        assert_eq!(counted(), (false, 0, 0));
        held.force_grow(1);
        assert_eq!(counted(), (true, 1, 1), "by force, too");
        // The limit moves over usage and back.
        group
            .set_limits(Limits::new().soft(Limit::Bytes(limit + 1)))
            .expect("a number");
        assert_eq!(
            (counted(), group.inspect().soft()),
            ((false, 0, 0), limit + 1)
        );
        group
            .set_limits(Limits::new().soft(Limit::Bytes(limit)))
            .expect("a number");
        assert_eq!(counted(), (true, 1, 1));
        group
            .set_limits(Limits::new().soft(Limit::Unlimited))
            .expect("none");
        assert_eq!(counted(), (false, 0, 0));
        group.set_limits(Limits::new().soft(0)).expect("a number");
        assert_eq!(counted(), (true, 1, 1));
        assert_sound(&runtime);
        group.offline().expect("no children");
        assert_eq!(
            (
                top.inspect().descendants_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (0, 0),
            "offline leaves at once"
        );
        assert_sound(&runtime);
    }
}

/// Each level counts all below it, not only its children; a charge crosses at several levels at
/// once.
#[test]
fn every_level_counts_all_below() {
    for runtime in runtimes() {
        let root = runtime.root();
        let mut chain = vec![root.clone()];
        for depth in 0..6 {
            let limits = if depth % 2 == 0 {
                soft(MIB)
            } else {
                Limits::new()
            };
            chain.push(create_with(&chain[depth], "x", limits));
        }
        let mut held = charge(&chain[6], MIB + 1);
        let counted: Vec<u64> = chain
            .iter()
            .map(|group| group.inspect().descendants_in_excess())
            .collect();
        assert_eq!(counted, [3, 2, 2, 1, 1, 0, 0]);
        root.set_limits(Limits::new().soft(0)).expect("a number");
        assert!(root.inspect().is_in_excess());
        assert_eq!(root.inspect().descendants_in_excess(), 3, "not itself");
        assert_sound(&runtime);
        held.shrink(Bytes(MIB));
        runtime.root().memory().drain();
        let counted: u64 = chain
            .iter()
            .map(|group| group.inspect().descendants_in_excess())
            .sum();
        assert_eq!(counted, 0);
        assert_sound(&runtime);
    }
}

/// Real threads: charges, uncharges, soft limits that move, groups that come and go. At rest, a
/// recount.
#[test]
fn a_recount_after_any_race() {
    for (seed, builder) in kinds().into_iter().enumerate() {
        let runtime = left_empty(build(builder));
        let root = runtime.root();
        for round in 0..ROUNDS / 4 {
            let parents =
                ["a", "b"].map(|name| create_with(&root, name, soft(round % 3 * 10 * KIB)));
            let leaves: Vec<Group> = (0..6)
                .map(|n| create(&parents[n % 2], &n.to_string()))
                .collect();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let workers = (0..3_u64).map(|thread| {
                    let leaves = &leaves;
                    let parents = &parents;
                    scope.spawn(move || {
                        work(leaves, parents, seed as u64 * 1_000 + round * 3 + thread)
                    })
                });
                let workers: Vec<_> = workers.collect();
                let stop = &stop;
                let parents = &parents;
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let most = parents[0].inspect().descendants_in_excess();
                        assert!(most <= 200, "{most} of few");
                        std::thread::yield_now();
                    }
                });
                let held: Vec<_> = workers
                    .into_iter()
                    .map(|worker| worker.join().expect("no panic"))
                    .collect();
                stop.store(true, Ordering::SeqCst);
                assert_sound(&runtime);
                drop(held);
                assert_sound(&runtime);
            });
            parents.iter().for_each(Group::offline_tree);
            assert_eq!(root.inspect().descendants_in_excess(), 0);
        }
    }
}

/// The work of one thread; the charges that it still holds at the end are looked at before it goes.
fn work(leaves: &[Group], parents: &[Group], seed: u64) -> Vec<memcg::Charge> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut held = Vec::new();
    for step in 0..400 {
        let leaf = &leaves[rng.random_range(0..leaves.len())];
        match rng.random_range(0..12) {
            0 => set_soft(leaf, Limit::Bytes(rng.random_range(0..8) * 4 * KIB)),
            1 => set_soft(leaf, Limit::Unlimited),
            2 => set_soft(
                &parents[step % 2],
                Limit::Bytes(rng.random_range(0..20) * KIB),
            ),
            3 => {
                let limits = soft(rng.random_range(0..2) * KIB);
                if let Ok(passing) = leaf.create(&seed.to_string(), limits) {
                    held.extend(passing.charge(Bytes(rng.random_range(0..4 * KIB))).ok());
                    passing.offline().expect("no children");
                }
            }
            4..8 => held.extend(leaf.charge(Bytes(rng.random_range(0..8 * KIB))).ok()),
            _ if held.is_empty() => {}
            _ => drop(held.swap_remove(rng.random_range(0..held.len()))),
        }
    }
    held
}
