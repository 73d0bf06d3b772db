//! Another group's: the bytes stay where they lie, and are accounted there to the other.

use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{Bytes, ChargeError, Freshness, Group, Limit, Runtime, Stat};

use super::{assert_empty, assert_sums, hold, local, on, placed, scattered};
use crate::support::trees::{assert_sound, bare, build, create};

/// R{A{B, C}, D}
fn tree(runtime: &Runtime) -> [Group; 5] {
    let root = runtime.root();
    let (a, d) = (create(&root, "a"), create(&root, "d"));
    let (b, c) = (create(&a, "b"), create(&a, "c"));
    [root, a, b, c, d]
}

#[test]
fn it_takes_its_nodes_along() {
    for builder in super::kinds(2) {
        let runtime = build(builder);
        let groups = tree(&runtime);
        let [root, a, b, c, d] = &groups;
        let mut kmem = hold(b, &scattered(&[(0, 10), (1, 20)], 5));
        for to in [c, a, a, b, d, root, c, root, d, b] {
            kmem.transfer(to).expect("no limits");
            assert_eq!((kmem.group(), kmem.bytes()), (to.clone(), 35));
            assert_eq!(kmem.placement(), scattered(&[(0, 10), (1, 20)], 5));
            for group in &groups {
                let (is_to, is_above) = (group == to, to == group || to.ancestors().any(|above| above == *group));
                assert_eq!(local(group), if is_to { [10, 20] } else { [0, 0] }, "{}", group.path());
                assert_eq!(on(group), if is_above { [10, 20] } else { [0, 0] }, "{}", group.path());
                assert_eq!(group.numa_stat(Stat::KERNEL, Freshness::Exact).unplaced(), if is_above { 5 } else { 0 });
                assert_eq!(group.live(), if is_above { 35 } else { 0 });
            }
            assert_sums(&runtime);
        }
        drop(kmem);
        drop(groups);
        assert_empty(&runtime);
    }
}

#[test]
fn a_refusal_leaves_all_as_it_was() {
    for builder in super::kinds(2) {
        let runtime = build(builder);
        let groups = tree(&runtime);
        let [root, a, b, c, d] = &groups;
        a.set_max(30).expect("a number");
        let beside = hold(c, &placed(&[(1, 7)]));
        let mut kmem = hold(d, &scattered(&[(0, 10), (1, 10)], 5));
        let peaks = groups.each_ref().map(Group::peak);
        let Err(ChargeError::Limit(refusal)) = kmem.transfer(b) else { panic!("7 + 25 > 30") };
        assert_eq!((refusal.requester(), refusal.group(), refusal.requested()), (b, a, 25));
        drop(refusal);
        c.offline().expect("no children");
        assert!(matches!(kmem.transfer(c), Err(ChargeError::Offline { .. })));
        let elsewhere = build(bare().nodes(2));
        assert!(matches!(kmem.transfer(&elsewhere.root()), Err(ChargeError::OtherRuntime { .. })));
        assert_eq!((kmem.group(), kmem.bytes()), (d.clone(), 25));
        assert_eq!(kmem.placement(), scattered(&[(0, 10), (1, 10)], 5));
        assert_eq!((on(root), on(a), on(b), local(c), local(d)), ([10, 17], [0, 7], [0, 0], [0, 7], [10, 10]));
        assert_eq!(groups.each_ref().map(Group::live), [32, 7, 0, 7, 25]);
        assert_eq!((groups.each_ref().map(Group::forced), groups.each_ref().map(Group::peak)), ([0; 5], peaks));
        assert_sums(&runtime);
        assert_sound(&runtime);
        drop((kmem, beside));
        drop(groups);
        assert_empty(&runtime);
        assert_empty(&elsewhere);
    }
}

/// Out of a group that is offline, whose account is its parent's.
#[test]
fn what_is_left_behind_finds_a_home() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let groups = tree(&runtime);
        let [root, a, b, c, d] = &groups;
        let part = hold(b, &placed(&[(0, 1)]));
        let precharge = b.precharge(100).expect("room");
        b.offline().expect("no children");
        let mut kmem = precharge.account(&placed(&[(0, 10), (2, 20)]));
        assert_eq!((local(b), local(a), on(a)), ([11, 0, 0], [0, 0, 20], [11, 0, 20]));
        d.set_max(29).expect("a number");
        assert!(kmem.transfer(d).is_err());
        assert_eq!((local(b), local(a), on(root)), ([11, 0, 0], [0, 0, 20], [11, 0, 20]));
        kmem.transfer(c).expect("no limits");
        assert_eq!((local(b), local(a), local(c)), ([1, 0, 0], [0, 0, 0], [10, 0, 20]));
        d.set_max(Limit::Unlimited).expect("a number");
        kmem.transfer(d).expect("no limits");
        assert_eq!((on(a), on(d)), ([1, 0, 0], [10, 0, 20]));
        drop((part, kmem));
        drop(groups);
        assert_empty(&runtime);
    }
}

/// A reader beside transfers that are all refused sees no byte leave, not for an instant.
#[test]
fn a_refused_one_is_not_to_be_seen() {
    const ROUNDS: usize = if cfg!(debug_assertions) { 3_000 } else { 30_000 };
    let runtime = build(bare().batch(Bytes(0)).nodes(2));
    let [root, _, b, _, d] = tree(&runtime);
    b.set_max(20).expect("a number");
    let mut kmem = hold(&d, &placed(&[(0, 10), (1, 11)]));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut torn = 0;
            while !done.load(Ordering::Relaxed) {
                torn +=
                    usize::from(on(&d) != [10, 11]) + usize::from(root.read(Freshness::Exact).get(Stat::KERNEL) != 21);
            }
            torn
        });
        for _ in 0..ROUNDS {
            assert!(kmem.transfer(&b).is_err());
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().expect("no panic"), 0, "reads without it");
    });
    drop((kmem, b, d));
    assert_empty(&runtime);
}
