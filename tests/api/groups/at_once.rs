//! Two or more threads act on one place of the tree at once: make, find, take offline.

use std::sync::Mutex;

use memcg::errors::CreateError;
use memcg::{Charge, Group, Limits};

use super::{build, charge, create, fixed, left_empty};
use crate::support::crowds::{crowd, pair};

const ROUNDS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };

/// A thread that sees a group offline may count on all of it: its name is free, and its parent may
/// go.
#[test]
fn a_group_that_is_seen_offline_is_out_of_the_way() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    pair(
        ROUNDS,
        |round| {
            let parent = create(&root, "parent");
            let child = create(&parent, "child");
            (parent, child, round)
        },
        |(_, child, _)| child.offline().expect("no children"),
        |(parent, child, round)| {
            while !child.is_offline() {
                std::hint::spin_loop();
            }
            assert_eq!(runtime.group("/parent/child"), None);
            if round % 2 == 0 {
                create(parent, "child").offline().expect("no children");
            }
            parent.offline().expect("its child is offline");
        },
        |_, (parent, ..), (), ()| assert!(parent.is_offline()),
    );
}

/// A group that got a child before a subtree went offline as one has one that is offline.
#[test]
fn nothing_is_born_below_a_tree_that_went_offline() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    let mut comes = 0;
    pair(
        ROUNDS,
        |_| {
            let top = create(&root, "top");
            let middle = create(&top, "middle");
            (top, middle)
        },
        |(top, _)| top.offline_tree(),
        |(_, middle)| {
            let first = middle.create("first", Limits::new()).ok()?;
            let second = first.create("second", Limits::new()).ok();
            Some((first, second))
        },
        |_, (top, middle), (), made| {
            let below = made
                .into_iter()
                .flat_map(|(first, second)| [Some(first), second])
                .flatten();
            for group in [top.clone(), middle]
                .into_iter()
                .chain(below.inspect(|_| comes += 1))
            {
                assert!(
                    group.is_offline() && group.charge(1).is_err(),
                    "{}",
                    group.path()
                );
                assert_eq!(runtime.group(&group.path()), None);
            }
            assert_eq!(
                (runtime.group_count(), top.children(), root.children()),
                (1, vec![], vec![])
            );
        },
    );
    assert!(comes > 0, "they never met");
}

/// A subtree, a subtree of it and a leaf go offline at once, each as its caller has it.
#[test]
fn subtrees_that_overlap_go_offline_at_once() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    crowd(
        3,
        ROUNDS,
        |_| {
            let top = create(&root, "top");
            let [middle, beside] = ["middle", "beside"].map(|name| create(&top, name));
            let leaf = create(&middle, "leaf");
            let held = [&top, &middle, &leaf, &beside].map(|group| charge(group, 1));
            ([top, middle, leaf, beside], held)
        },
        |who, ([top, middle, leaf, _], _)| {
            let below = [top, middle, leaf];
            let mine = &below[who..];
            mine[0].offline_tree();
            assert!(
                mine.iter()
                    .all(|group| group.is_offline() && group.children().is_empty())
            );
        },
        |round, (groups, held), _| {
            assert!(groups.iter().all(Group::is_offline), "round {round}");
            assert_eq!(
                (runtime.group_count(), runtime.dying_count(), root.live()),
                (1, 4, 4),
                "round {round}"
            );
            drop(groups);
            drop(held);
        },
    );
}

/// The runtime goes while a thread creates a group: the thread has one that is offline, or the
/// error says why not.
#[test]
fn a_runtime_goes_while_a_group_is_made() {
    let mut made = [0_u64; 2];
    pair(
        ROUNDS / 10,
        |_| {
            let runtime = build(fixed());
            let parent = create(&runtime.root(), "parent");
            (parent, Mutex::new(Some(runtime)))
        },
        |(_, runtime)| drop(runtime.lock().expect("no thread panics with it").take()),
        |(parent, _)| match parent.create("late", Limits::new()) {
            Ok(group) => {
                // If the runtime is gone by now, so is this.
                let held: Option<Charge> = group.charge(10).ok();
                Some((group, held))
            }
            Err(CreateError::Offline { .. }) => None,
            Err(other) => panic!("{other}"),
        },
        |round, (parent, _), (), late| {
            made[usize::from(late.is_some())] += 1;
            let root = parent.parent().expect("the root");
            assert!(
                parent.is_offline() && root.is_offline() && parent.children().is_empty(),
                "round {round}"
            );
            let Some((group, held)) = late else { return };
            assert!(group.is_offline(), "round {round}");
            let bytes = held.as_ref().map_or(0, Charge::bytes);
            assert_eq!((group.live(), root.live()), (bytes, bytes), "round {round}");
            drop((group, held));
            assert_eq!(
                (root.usage(), root.memory().stocked_bound()),
                (0, 0),
                "round {round}"
            );
        },
    );
    assert!(
        made.iter().all(|&rounds| rounds > 0),
        "{made:?}: they never met"
    );
}
