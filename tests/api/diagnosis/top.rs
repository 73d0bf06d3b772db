//! The children that hold most, on request.

use super::{KIB, charge, create, runtimes};

#[test]
fn the_largest_first() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let children: Vec<_> = (0..10)
            .map(|number| create(&group, &number.to_string()))
            .collect();
        // 7 is prime: each size once, in no order.
        let sizes: Vec<u64> = (0..10)
            .map(|number| (1 + number * 7 % 10) * 16 * KIB)
            .collect();
        let _held: Vec<_> = children
            .iter()
            .zip(&sizes)
            .map(|(child, &bytes)| charge(child, bytes))
            .collect();
        let mut expected: Vec<_> = children.iter().cloned().zip(sizes).collect();
        expected.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        for n in [0, 1, 3, 10] {
            assert_eq!(group.inspect().top(n), expected[..n]);
        }
        assert_eq!(
            (group.inspect().top(11), group.inspect().top(usize::MAX)),
            (expected.clone(), expected.clone())
        );
        assert_eq!(children[0].inspect().top(5), []);
    }
}

/// Children, with all below them; not their children, and none that has gone.
#[test]
fn children_only() {
    for runtime in runtimes() {
        let root = runtime.root();
        let one = create(&root, "one");
        let other = create(&root, "other");
        let below = create(&one, "below");
        let _held = [
            charge(&below, 64 * KIB),
            charge(&other, 32 * KIB),
            charge(&root, 128 * KIB),
        ];
        assert_eq!(
            root.inspect().top(9),
            [(one.clone(), 64 * KIB), (other.clone(), 32 * KIB)]
        );
        assert_eq!(one.inspect().top(9), [(below.clone(), 64 * KIB)]);
        other.offline().expect("no children");
        assert_eq!(root.inspect().top(9), [(one.clone(), 64 * KIB)]);
    }
}
