//! Limits that move, and limits that only count.

use memcg::{Bytes, Group};

use super::{KIB, create, limited, refused_by, runtimes};

#[test]
fn a_max_that_moves() {
    for runtime in runtimes() {
        let query = create(&runtime.root(), "query");
        let mut held = query.force_charge(Bytes(10 * KIB));
        assert!(query.run(Group::checkpoint).is_ok());
        query.set_max(Bytes(5 * KIB)).unwrap();
        assert_eq!(refused_by(&query), "/query");
        query.set_max(Bytes(10 * KIB)).unwrap();
        assert!(query.run(Group::checkpoint).is_ok());
        query.set_max(Bytes(9 * KIB)).unwrap();
        assert_eq!(refused_by(&query), "/query");
        held.shrink(Bytes(KIB));
        assert!(query.run(Group::checkpoint).is_ok());
        // A percentage follows the max above.
        let part = query
            .create(
                "part",
                memcg::Limits::new().max("50%".parse::<memcg::Limit>().unwrap()),
            )
            .unwrap();
        let _taken = part.force_charge(Bytes(4 * KIB));
        held.shrink(Bytes(4 * KIB));
        assert!(part.run(Group::checkpoint).is_ok());
        query.set_max(Bytes(7 * KIB)).unwrap();
        query.set_max(Bytes(9 * KIB)).unwrap();
        held.shrink(Bytes(2 * KIB));
        assert!(part.run(Group::checkpoint).is_ok());
        query.set_max(Bytes(7 * KIB)).unwrap();
        assert_eq!(refused_by(&part), "/query/part");
    }
}

/// A group that is only observed refuses no checkpoint. When its limits act again, it does.
#[test]
fn limits_that_only_count() {
    for runtime in runtimes() {
        let query = limited(&runtime.root(), "query", KIB);
        query.set_observe_only(true);
        let _held = query.force_charge(Bytes(2 * KIB));
        assert!(query.run(Group::checkpoint).is_ok());
        query.set_observe_only(false);
        assert_eq!(refused_by(&query), "/query");
        query.set_observe_only(true);
        assert!(query.run(Group::checkpoint).is_ok());
    }
}
