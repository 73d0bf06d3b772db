//! Another group's: the bytes stay where they lie, and are accounted there to the other.

use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{Bytes, Freshness, Group, Runtime, StatKey};

use super::{assert_empty, assert_sums, hold, left_empty, local, on, placed, runtimes, scattered};
use crate::support::trees::{assert_sound, bare, build, create};

/// R{A{B, C}, D}
fn tree(runtime: &Runtime) -> [Group; 5] {
    let root = runtime.root();
    let a = create(&root, "a");
    let d = create(&root, "d");
    let b = create(&a, "b");
    let c = create(&a, "c");
    [root, a, b, c, d]
}

#[test]
fn a_refusal_leaves_all_as_it_was() {
    for runtime in runtimes(2) {
        let groups = tree(&runtime);
        let [root, a, b, c, d] = &groups;
        a.set_max(30).expect("a number");
        let beside = hold(c, &placed(&[(1, 7)]));
        let mut kmem = hold(d, &scattered(&[(0, 10), (1, 10)], 5));
        let peaks = groups.each_ref().map(Group::peak);
        let Some(refusal) = kmem
            .transfer(b)
            .err()
            .and_then(|error| error.over_limit().cloned())
        else {
            panic!("7 + 25 > 30")
        };
        assert_eq!(
            (refusal.requester(), refusal.group(), refusal.requested()),
            (b, a, 25)
        );
        drop(refusal);
        c.offline().expect("no children");
        assert!(matches!(kmem.transfer(c), Err(error) if error.is_offline()));
        let elsewhere = build(bare().nodes(2));
        assert!(matches!(kmem.transfer(&elsewhere.root()), Err(error) if error.is_other_runtime()));
        assert_eq!((kmem.group(), kmem.bytes()), (d.clone(), 25));
        assert_eq!(kmem.placement(), scattered(&[(0, 10), (1, 10)], 5));
        assert_eq!(
            (on(root), on(a), on(b), local(c), local(d)),
            ([10, 17], [0, 7], [0, 0], [0, 7], [10, 10])
        );
        assert_eq!(groups.each_ref().map(Group::live), [32, 7, 0, 7, 25]);
        assert_eq!(
            (
                groups.each_ref().map(Group::forced),
                groups.each_ref().map(Group::peak)
            ),
            ([0; 5], peaks)
        );
        assert_sums(&runtime);
        assert_sound(&runtime);
        drop((kmem, beside));
        drop(groups);
        assert_empty(&runtime);
        assert_empty(&elsewhere);
    }
}

/// A reader beside transfers that are all refused sees no byte leave, not for an instant.
#[test]
fn a_refused_one_is_not_to_be_seen() {
    const ROUNDS: usize = if cfg!(debug_assertions) {
        3_000
    } else {
        30_000
    };
    let runtime = left_empty(build(bare().batch(Bytes(0)).nodes(2)));
    let [root, _, b, _, d] = tree(&runtime);
    b.set_max(20).expect("a number");
    let mut kmem = hold(&d, &placed(&[(0, 10), (1, 11)]));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut torn = 0;
            while !done.load(Ordering::Relaxed) {
                torn += usize::from(on(&d) != [10, 11])
                    + usize::from(root.read(Freshness::Exact).get(StatKey::KERNEL) != 21);
            }
            torn
        });
        for _ in 0..ROUNDS {
            assert!(kmem.transfer(&b).is_err());
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().expect("no panic"), 0, "reads without it");
    });
}
