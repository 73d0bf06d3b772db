//! A setting that holds for a subtree, and a group that is made in it meanwhile: it holds for that
//! group, too.

use memcg::{Bytes, Event, Limit, Limits};

use super::{build, charge, create, fixed, left_empty};
use crate::support::crowds::pair;

const ROUNDS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };

fn percent(of: &str) -> Limit {
    of.parse().expect("a percentage")
}

/// The max that it is a percentage of moves, one level above or two.
#[test]
fn a_percentage_follows_a_max_that_moves_while_the_group_is_made() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    for levels in 1..3 {
        pair(
            ROUNDS,
            |round| {
                let limited = create(&root, "limited");
                limited
                    .set_max(Limit::Bytes(1_000 + round))
                    .expect("a number");
                let parent = if levels == 1 {
                    limited.clone()
                } else {
                    create(&limited, "parent")
                };
                (limited, parent, round)
            },
            |(limited, _, round)| {
                limited
                    .set_max(Limit::Bytes(100_000 + 2 * round))
                    .expect("a number")
            },
            |(_, parent, _)| {
                let limits = Limits::new()
                    .max(percent("50%"))
                    .min(percent("10%"))
                    .high(percent("25%"));
                parent.create("child", limits).expect("a name")
            },
            |round, (limited, ..), _, child| {
                let max = 100_000 + 2 * round;
                assert_eq!(
                    (child.max(), child.inspect().min(), child.inspect().high()),
                    (max / 2, max / 10, max / 4),
                    "round {round}"
                );
                limited.offline_tree();
            },
        );
    }
}

/// The first percentage of a tree is seen by the first max that moves.
#[test]
fn the_first_percentage_of_a_tree_follows_a_max_that_moves_meanwhile() {
    pair(
        ROUNDS / 10,
        |_| build(fixed().max(1_000)),
        |runtime| runtime.root().set_max(3_000).expect("a number"),
        |runtime| {
            runtime
                .root()
                .create("q", Limits::new().max(percent("10%")))
                .expect("a name")
        },
        |round, _runtime, _, group| assert_eq!(group.max(), 300, "round {round}"),
    );
}

#[test]
fn a_batch_holds_for_a_group_that_is_made_meanwhile() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    for levels in 1..3 {
        pair(
            ROUNDS,
            |_| {
                let top = create(&root, "top");
                let parent = if levels == 1 {
                    top.clone()
                } else {
                    create(&top, "parent")
                };
                (top, parent)
            },
            |(top, _)| top.memory().set_batch(0),
            |(_, parent)| create(parent, "child"),
            |round, (top, _), (), child| {
                let held = charge(&child, 10);
                assert_eq!(
                    (child.usage(), child.memory().stocked_bound()),
                    (10, 0),
                    "round {round}: it has no stock"
                );
                drop(held);
                top.offline_tree();
            },
        );
    }
}

/// Switched on while a group is made, and off while the next one is.
#[test]
fn observe_only_holds_for_a_group_that_is_made_meanwhile() {
    let runtime = left_empty(build(fixed().batch(Bytes(0))));
    let root = runtime.root();
    let top = create(&root, "top");
    let max = || Limits::new().max(10);
    pair(
        ROUNDS,
        |round| round % 2 == 1,
        |&on| top.set_observe_only(on),
        |_| top.create("child", max()).expect("a name"),
        |round, on, (), child| {
            assert_eq!(
                (top.is_observe_only(), child.is_observe_only(), child.max()),
                (on, on, 10),
                "round {round}"
            );
            assert_eq!(child.charge(11).is_ok(), on, "round {round}");
            assert_eq!(
                child.events().get(Event::Observed),
                u64::from(on),
                "round {round}"
            );
            child.offline().expect("no children");
        },
    );
    top.set_observe_only(false);
}
