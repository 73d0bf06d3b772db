//! A thread that waits holds nothing: not a byte at any level, and no place that others need.

use memcg::{Bytes, Group};

use super::{KIB, Waiter, admitted, charge, create, in_line, limited, runtimes};

#[test]
fn no_bytes_at_any_level() {
    for runtime in runtimes() {
        let root = runtime.root();
        let top = limited(&root, "top", 100 * KIB);
        let inner = create(&top, "inner");
        let other = create(&top, "other");
        let leaf = create(&inner, "leaf");
        let _held = charge(&other, 90 * KIB);
        let peaks = [&root, &top, &inner, &leaf].map(Group::peak);
        let waiters: Vec<Waiter> = (0..50)
            .map(|number| in_line(&leaf, 11 * KIB + number))
            .collect();
        for group in [&inner, &leaf] {
            assert_eq!(
                (group.usage(), group.live(), group.forced()),
                (0, 0, 0),
                "{}",
                group.path()
            );
        }
        for group in [&root, &top] {
            assert_eq!(
                (group.live(), group.forced()),
                (90 * KIB, 0),
                "{}",
                group.path()
            );
        }
        assert_eq!([&root, &top, &inner, &leaf].map(Group::peak), peaks);
        // The rest is for a charge that fits.
        drop(charge(&other, 10 * KIB));
        drop(waiters);
        assert_eq!(
            (leaf.live(), inner.live(), top.live(), root.live()),
            (0, 0, 90 * KIB, 90 * KIB)
        );
    }
}

/// Two that each hold what the other waits for would wait for ever; with waiters that hold nothing,
/// whichever charge gives up what it has lets the other in.
#[test]
fn two_that_stand_in_each_others_way() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let [old, young] = ["old", "young"].map(|name| create(&group, name));
        let (one, other) = (charge(&old, 5 * KIB), charge(&young, 5 * KIB));
        let mut first = in_line(&old, 4 * KIB);
        let second = in_line(&young, 4 * KIB);
        assert_eq!(group.waiting_count(), 2);
        drop(second);
        drop(other);
        let more = admitted(&mut first);
        assert_eq!(group.live(), 9 * KIB);
        drop((one, more));
        drop(admitted(&mut Waiter::new(
            young.charge_async(Bytes(4 * KIB)),
        )));
    }
}
