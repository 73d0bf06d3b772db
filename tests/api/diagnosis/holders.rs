//! A refusal names the groups that hold the memory: children of the group that refused, the largest
//! first.

use memcg::{Bytes, Group, OnFull, OverLimitError};

use super::{KIB, MIB, build, charge, create, kinds, left_empty, limited, refused, runtimes};

#[track_caller]
fn assert_holders(refusal: &OverLimitError, expected: &[(&Group, u64)]) {
    let holders: Vec<_> = refusal.holders().collect();
    assert_eq!(holders, expected);
}

#[test]
fn the_largest_three() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "a", 100 * MIB);
        let sizes = [
            ("small", 1),
            ("hog", 60),
            ("middle", 20),
            ("large", 15),
            ("idle", 0),
        ];
        let children = sizes.map(|(name, _)| create(&group, name));
        let _held: Vec<_> = children
            .iter()
            .zip(sizes)
            .map(|(child, (_, mib))| charge(child, mib * MIB))
            .collect();
        let (refusal, text) = refused(&children[4], 8 * MIB);
        let [_, hog, middle, large, _] = &children;
        assert_holders(
            &refusal,
            &[(hog, 60 * MIB), (middle, 20 * MIB), (large, 15 * MIB)],
        );
        let start = "/a refused 8 MiB for /a/idle: short by 4 MiB, usage 96 MiB of max 100 MiB";
        let most = "; most in /a/hog 60 MiB, /a/middle 20 MiB, /a/large 15 MiB; ";
        assert!(text.starts_with(start) && text.contains(most), "{text}");
        assert!(!text.contains('\n'));
    }
}

/// A child's figure includes its own children; the group's own charges are no group's.
#[test]
fn with_all_that_is_below_them() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "a", 100 * MIB);
        let child = create(&group, "child");
        let _other = create(&group, "other");
        let grandchild = create(&child, "grandchild");
        let _held = [
            charge(&grandchild, 30 * MIB),
            charge(&child, 10 * MIB),
            charge(&group, 60 * MIB),
        ];
        let (refusal, text) = refused(&grandchild, MIB);
        assert_holders(&refusal, &[(&child, 40 * MIB)]);
        assert!(text.contains("; most in /a/child 40 MiB; "), "{text}");
    }
}

/// No group below holds anything: no group is named.
#[test]
fn no_group() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "a", 100 * MIB);
        let _held = charge(&group, 100 * MIB);
        let without_children = refused(&group, MIB);
        let idle = create(&group, "idle");
        let with_idle = refused(&idle, MIB);
        for (refusal, text) in [&without_children, &with_idle] {
            assert_eq!(refusal.holders().count(), 0);
            assert!(!text.contains("most in"), "{text}");
        }
    }
}

/// As it was when it was refused: it stays true of that moment.
#[test]
fn as_of_that_moment() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "a", 100 * MIB);
        let hog = create(&group, "hog");
        let held = charge(&hog, 90 * MIB);
        let (refusal, _) = refused(&hog, 20 * MIB);
        drop(held);
        hog.offline().expect("no children");
        drop(hog);
        let (holder, usage) = refusal.holders().next().expect("one child");
        assert_eq!(
            (holder.path().as_str(), usage, holder.is_offline()),
            ("/a/hog", 90 * MIB, true)
        );
    }
}

/// Too many to look at while a thread waits for an answer: no group is named, and it can be asked
/// for.
#[test]
fn not_of_very_many() {
    for builder in kinds() {
        for (count, named) in [(256, 3), (257, 0)] {
            let runtime = left_empty(build(builder.clone()));
            let group = limited(&runtime.root(), "a", 100 * MIB);
            let children: Vec<_> = (0..count)
                .map(|number| create(&group, &number.to_string()))
                .collect();
            let _held: Vec<_> = children.iter().map(|child| charge(child, KIB)).collect();
            let _more = charge(&children[7], MIB);
            let (refusal, _) = refused(&group, 100 * MIB);
            assert_eq!(refusal.holders().count(), named, "of {count}");
            assert_eq!(group.inspect().top(1), [(children[7].clone(), MIB + KIB)]);
        }
    }
}

/// In every error that carries a refusal.
#[test]
fn in_every_refusal() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "a", 100 * MIB);
        let hog = create(&group, "hog");
        let _held = charge(&hog, 100 * MIB);
        let error = group
            .charge_with(
                Bytes(MIB),
                OnFull::Wait(std::time::Duration::from_millis(1)),
            )
            .expect_err("full");
        assert!(error.is_timeout(), "{error}");
        let refusal = error.over_limit().expect("a refusal");
        assert_holders(refusal, &[(&hog, 100 * MIB)]);
        assert!(
            error.to_string().contains("most in /a/hog 100 MiB"),
            "{error}"
        );
    }
}

/// Refused at a level above: its children, not the requester's.
#[test]
fn of_the_level_that_refused() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(memcg::Limit::Bytes(100 * MIB))));
        let top = create(&runtime.root(), "top");
        let other = create(&runtime.root(), "other");
        let inner = create(&top, "inner");
        let _held = [charge(&inner, 30 * MIB), charge(&other, 70 * MIB)];
        let (refusal, _) = refused(&inner, MIB);
        assert_holders(&refusal, &[(&other, 70 * MIB), (&top, 30 * MIB)]);
    }
}

/// Of a further counter, memory's holders would be no answer.
#[test]
fn a_further_counter() {
    let mut builder = memcg::Runtime::builder().audit(true);
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = left_empty(build(builder));
    let group = create(&runtime.root(), "a");
    group
        .counter(swap)
        .expect("declared")
        .set_max(10)
        .expect("a number");
    let child = create(&group, "child");
    let _held = charge(&child, MIB);
    let Some(refusal) = child
        .charge_set(&[(swap, 11)])
        .err()
        .and_then(|error| error.over_limit().cloned())
    else {
        panic!("refused")
    };
    assert!(refusal.holders().all(|(_, usage)| usage <= 10), "{refusal}");
}
