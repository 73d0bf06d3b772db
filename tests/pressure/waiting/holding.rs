//! A thread that waits holds nothing: not a byte at any level, and no place that others need.

use memcg::{Bytes, Charge, Group, Limits};

use super::{KIB, Waiter, admitted, assert_empty, build, charge, create, in_line, kinds, limited};

#[test]
fn no_bytes_at_any_level() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let top = limited(&root, "top", 100 * KIB);
        let (inner, other) = (create(&top, "inner"), create(&top, "other"));
        let leaf = create(&inner, "leaf");
        let held = charge(&other, 90 * KIB);
        let peaks = [&root, &top, &inner, &leaf].map(Group::peak);
        let waiters: Vec<Waiter> = (0..50).map(|number| in_line(&leaf, 11 * KIB + number)).collect();
        for group in [&inner, &leaf] {
            assert_eq!((group.usage(), group.live(), group.forced()), (0, 0, 0), "{}", group.path());
        }
        for group in [&root, &top] {
            assert_eq!((group.live(), group.forced()), (90 * KIB, 0), "{}", group.path());
        }
        assert_eq!([&root, &top, &inner, &leaf].map(Group::peak), peaks);
        // What is left is for a charge that fits.
        drop(charge(&other, 10 * KIB));
        drop(waiters);
        assert_eq!((leaf.live(), inner.live(), top.live(), root.live()), (0, 0, 90 * KIB, 90 * KIB));
        drop((held, leaf, inner, other, top));
        assert_empty(&runtime);
    }
}

/// Two that each hold what the other waits for would wait for ever; with waiters that hold nothing, whichever charge gives up
/// what it has lets the other in.
#[test]
fn two_that_stand_in_each_others_way() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let (one, other) = (charge(&group, 5 * KIB), charge(&group, 5 * KIB));
        let (mut first, mut second) = (in_line(&group, 4 * KIB), in_line(&group, 4 * KIB));
        drop(second);
        drop(other);
        let more = admitted(&mut first);
        assert_eq!(group.live(), 9 * KIB);
        drop((one, more));
        second = Waiter::new(group.charge_async(Bytes(4 * KIB)));
        drop(admitted(&mut second));
        drop((first, second, group));
        assert_empty(&runtime);
    }
}

/// A group of which a thread waits can be read, limited and listed as any other.
#[test]
fn the_group_goes_on() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let held = charge(&group, 10 * KIB);
        let waiter = in_line(&group, KIB);
        let below = group.create("below", Limits::new()).expect("a free name");
        assert_eq!((group.children().len(), group.drain(), group.stocked()), (1, 0, 0));
        assert!(runtime.snapshot().to_string().contains("/q/below"));
        below.offline().expect("no children");
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
        drop((waiter, held, below, group));
        assert_empty(&runtime);
    }
}

/// The charge that was waited for is one like any other.
#[test]
fn admitted_it_is_a_charge() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let (group, other) = (limited(&root, "q", 10 * KIB), create(&root, "other"));
        let held = charge(&group, 10 * KIB);
        let mut waiter = in_line(&group, 4 * KIB);
        drop(held);
        let mut charge: Charge = admitted(&mut waiter);
        charge.try_grow(Bytes(6 * KIB)).expect("room");
        let part = charge.split(Bytes(3 * KIB)).expect("of 10");
        charge.transfer(&other).expect("no limit there");
        assert_eq!((group.live(), other.live(), root.live()), (3 * KIB, 7 * KIB, 10 * KIB));
        drop((part, charge, waiter, group, other));
        assert_empty(&runtime);
    }
}
