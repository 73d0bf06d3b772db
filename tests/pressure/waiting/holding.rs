//! A thread that waits holds nothing: not a byte at any level, and no place that others need.

use std::task::Poll;

use memcg::{Bytes, ChargeError, Group, Limits};

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
/// whichever charge gives up what it has lets the other in. Where the groups say that they have one
/// task each, the younger wait ends by itself.
#[test]
fn two_that_stand_in_each_others_way() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for tasks in [0, 1] {
            let [old, young] = ["old", "young"].map(|name| {
                group
                    .create(name, Limits::new().tasks(tasks))
                    .expect("a name")
            });
            let one = charge(&old, 5 * KIB);
            let other = charge(&young, 5 * KIB);
            let mut first = in_line(&old, 4 * KIB);
            let mut second = Waiter::new(young.charge_async(Bytes(4 * KIB)));
            let told = matches!(second.poll(), Poll::Ready(Err(ChargeError::Deadlock(_))));
            assert_eq!(
                (told, group.waiting_count()),
                (tasks == 1, 2 - usize::from(tasks))
            );
            drop(second);
            drop(other);
            let more = admitted(&mut first);
            assert_eq!(group.live(), 9 * KIB);
            drop((one, more));
            drop(admitted(&mut Waiter::new(
                young.charge_async(Bytes(4 * KIB)),
            )));
            [old, young]
                .iter()
                .for_each(|group| group.offline().expect("no children"));
        }
    }
}
