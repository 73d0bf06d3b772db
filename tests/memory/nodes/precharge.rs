//! Admission before the memory is there.

use memcg::kmem::PrechargeBound;
use memcg::{Bytes, Freshness, Limit, StatKey};

use super::{Other, hold, left_empty, node, on, placed, runtimes};
use crate::support::trees::{build, create, limited};

#[test]
fn every_level_is_asked() {
    for builder in super::kinds(2) {
        let runtime = left_empty(build(builder.max(1_000)));
        let root = runtime.root();
        let a = limited(&root, "a", 500);
        let b = limited(&a, "b", 100);
        let refuses = |bytes| match b.precharge(Bytes(bytes)) {
            Err(error) if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                assert_eq!((refusal.requester(), refusal.requested()), (&b, bytes));
                refusal.group().clone()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(refuses(101), b);
        b.set_max(Limit::Unlimited).expect("a limit");
        assert_eq!(refuses(501), a);
        a.set_max(Limit::Unlimited).expect("a limit");
        assert_eq!(refuses(1_001), root);
        assert_eq!((root.live(), a.live(), b.live()), (0, 0, 0));
        let precharge = b.precharge(1_000).expect("it fits");
        assert_eq!((precharge.bytes(), precharge.group()), (1_000, b.clone()));
        assert_eq!((root.live(), a.live(), b.live()), (1_000, 1_000, 1_000));
        // It is accounted nowhere yet.
        assert_eq!(
            (on(&b), root.read(Freshness::Exact).get(StatKey::KERNEL)),
            ([0, 0], 0)
        );
        drop(precharge);
        assert_eq!((root.live(), root.forced()), (0, 0));
    }
}

/// A precharge is no credit: a drain takes the credit beside it and leaves it alone.
#[test]
fn a_drain_does_not_take_it() {
    for builder in super::kinds(2) {
        let runtime = left_empty(build(builder.max(10_000)));
        let root = runtime.root();
        let group = create(&root, "q");
        let other = Other::spawn();
        let precharge = group.precharge(6_000).expect("room");
        let theirs = group.clone();
        let ours = root.clone();
        other.run(move || {
            for _ in 0..10 {
                theirs.memory().drain();
                ours.memory().drain();
            }
            // A charge that needs it is refused, whatever its thread drains.
            assert!(theirs.charge(4_001).is_err());
            drop(theirs.charge(4_000).expect("what is left"));
        });
        assert_eq!((precharge.bytes(), group.live()), (6_000, 6_000));
        let kmem = precharge.account(&placed(&[(0, 5_000), (1, 1_000)]));
        assert_eq!((kmem.bytes(), group.forced(), root.forced()), (6_000, 0, 0));
    }
}

/// At the limit, with others after every byte: what was admitted is accounted.
#[test]
fn at_the_limit_account_never_fails() {
    for builder in super::kinds(2) {
        let runtime = left_empty(build(builder.max(3_000)));
        let root = runtime.root();
        let groups = ["a", "b"].map(|name| create(&root, name));
        let others = [Other::spawn(), Other::spawn()];
        for round in 0..300_u64 {
            let bytes = 1 + round * 37 % 1_500;
            let held: Vec<_> = others
                .iter()
                .zip(&groups)
                .map(|(other, group)| {
                    let group = group.clone();
                    other.run(move || group.precharge(Bytes(bytes)).expect("room for both"))
                })
                .collect();
            let rest = root
                .precharge(Bytes(3_000 - 2 * bytes))
                .expect("room for the rest");
            assert!(groups[0].precharge(1).is_err());
            let part = bytes / 3;
            for precharge in held {
                let kmem = precharge.account(&placed(&[(0, bytes - part), (1, part)]));
                assert_eq!(kmem.bytes(), bytes);
                assert!(
                    groups[1]
                        .precharge(Bytes(rest.bytes() + 1 + bytes))
                        .is_err()
                );
                drop(kmem);
            }
            assert_eq!(
                (root.forced(), groups[0].forced(), groups[1].forced()),
                (0, 0, 0)
            );
        }
    }
}

#[test]
fn of_nothing() {
    for builder in super::kinds(2) {
        let runtime = left_empty(build(builder.max(0)));
        let group = create(&runtime.root(), "q");
        let precharge = group.precharge(0).expect("nothing always fits");
        let kmem = precharge.account(&placed(&[]));
        assert_eq!(
            (kmem.bytes(), kmem.placement(), kmem.group()),
            (0, placed(&[]), group.clone())
        );
        let other = Other::spawn();
        other.run(move || drop(kmem));
        // It keeps its group as any other.
        let _precharge = group.precharge(0).expect("nothing always fits");
        group.offline().expect("no children");
        drop(group);
        assert_eq!(runtime.dying_count(), 1);
    }
}

#[test]
fn more_than_there_can_be() {
    let runtime = left_empty(build(crate::support::trees::bare().nodes(2)));
    let root = runtime.root();
    assert!(root.precharge(Bytes(u64::MAX)).is_err());
    assert!(
        root.precharge(PrechargeBound::from(Bytes(u64::MAX)).within(&[node(0)]))
            .is_err()
    );
    assert_eq!((root.live(), root.usage()), (0, 0));
}

/// A charge to an offline group is refused, and so is this.
#[test]
fn an_offline_group_admits_nothing() {
    for runtime in runtimes(2) {
        let group = create(&runtime.root(), "q");
        let _held = hold(&group, &placed(&[(1, 10)]));
        group.offline().expect("no children");
        assert!(matches!(group.precharge(10), Err(error) if error.is_offline()));
        assert_eq!(group.live(), 10);
    }
}
