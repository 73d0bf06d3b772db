//! The most that a charge could ask for: the least max and the least room above a group.

use memcg::{Bytes, Limit, Limits};

use super::{build, create, kinds, runtimes};

const KIB: u64 = 1 << 10;

#[test]
fn the_least_above_decides() {
    for runtime in runtimes() {
        let root = runtime.root();
        let limited = |parent: &memcg::Group, name: &str, kib: u64| {
            parent
                .create(name, Limits::new().max(Limit::Bytes(kib * KIB)))
                .expect("a free name")
        };
        let top = create(&root, "top");
        assert_eq!(
            (top.effective_max(), root.effective_max()),
            (u64::MAX, u64::MAX)
        );
        assert_eq!(top.headroom(), i64::MAX as u64);
        let a = limited(&top, "a", 60);
        let b = limited(&top, "b", 200);
        let inner = limited(&a, "inner", 80);
        assert_eq!(
            [&a, &inner, &b].map(memcg::Group::effective_max),
            [60 * KIB, 60 * KIB, 200 * KIB]
        );
        top.set_max(Limit::Bytes(100 * KIB)).expect("a number");
        assert_eq!(b.effective_max(), 100 * KIB);
        let _held = inner.force_charge(Bytes(50 * KIB));
        root.memory().drain();
        assert_eq!(
            [&inner, &a, &b, &top].map(memcg::Group::headroom),
            [10, 10, 50, 50].map(|kib| kib * KIB)
        );
        assert_eq!(root.headroom(), i64::MAX as u64 - 50 * KIB);
        let _more = inner.force_charge(Bytes(30 * KIB));
        root.memory().drain();
        assert_eq!(
            (inner.headroom(), b.headroom()),
            (0, 20 * KIB),
            "above max there is none"
        );
        a.set_observe_only(true);
        assert_eq!(
            inner.effective_max(),
            100 * KIB,
            "an observed max refuses no charge"
        );
        assert_eq!(inner.headroom(), 20 * KIB);
    }
}

/// A charge of that figure fits, and not one byte more.
#[test]
fn it_is_exact_where_no_thread_charges() {
    for builder in kinds() {
        let runtime = build(builder.max(Limit::Bytes(100 * KIB)));
        let group = create(&runtime.root(), "q");
        let held = group.charge(Bytes(33 * KIB)).expect("it fits");
        runtime.root().memory().drain();
        let room = group.headroom();
        assert_eq!(room, 67 * KIB);
        let rest = group.charge(Bytes(room)).expect("it said so");
        assert_eq!(group.headroom(), 0);
        group.charge(1).expect_err("it said so");
        drop((held, rest));
    }
}
