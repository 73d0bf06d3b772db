//! The configured most groups, with many threads at the mark.

use std::sync::atomic::{AtomicU32, Ordering};

use memcg::errors::CreateError;
use memcg::{Group, Limits, Runtime, RuntimeBuilder};

use super::{Other, assert_empty, build, create, fixed, kinds};
use crate::support::crowds::crowd;

const ROUNDS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };
const THREADS: usize = 4;

fn most(builder: RuntimeBuilder, most: u32) -> (Runtime, Group) {
    let runtime = build(builder.groups_max(most));
    let root = runtime.root();
    (runtime, root)
}

/// Groups until one is refused for there being the most.
#[track_caller]
fn fill(root: &Group, most: u32) -> Vec<Group> {
    let mut groups = Vec::new();
    loop {
        match root.create(&format!("fill{}", groups.len()), Limits::new()) {
            Ok(group) => groups.push(group),
            Err(CreateError::Full {
                parent,
                name,
                most: said,
            }) => {
                assert_eq!(
                    (&parent, name, said),
                    (root, format!("fill{}", groups.len()), most)
                );
                return groups;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Every group is refused now and then; there are never more, and at rest there is room for exactly
/// as many again.
#[test]
fn there_are_never_more_and_at_rest_as_many_as_configured() {
    const MOST: u32 = 10;
    for builder in kinds() {
        let (runtime, root) = most(builder, MOST);
        let there = AtomicU32::new(1);
        let refused = AtomicU32::new(0);
        crowd(
            THREADS,
            ROUNDS / 20,
            |_| (),
            |who, ()| {
                let mut mine: Vec<Group> = Vec::new();
                for step in 0..30 {
                    match root.create(&format!("{who}.{step}"), Limits::new()) {
                        Ok(group) => {
                            // Each group that is counted here is online: the tree counts it for as
                            // long, and longer.
                            let before = there.fetch_add(1, Ordering::SeqCst);
                            assert!(before < MOST, "{} groups, at most {MOST}", before + 1);
                            drop(group.charge(10).expect("no limit"));
                            mine.push(group);
                        }
                        Err(CreateError::Full { most: MOST, .. }) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            let Some(group) = mine.pop() else { continue };
                            there.fetch_sub(1, Ordering::SeqCst);
                            group.offline().expect("no children");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                for group in mine {
                    there.fetch_sub(1, Ordering::SeqCst);
                    group.offline().expect("no children");
                }
            },
            |round, (), _| {
                assert_eq!(there.load(Ordering::SeqCst), 1);
                let groups = fill(&root, MOST);
                assert_eq!(
                    (groups.len(), runtime.group_count(), runtime.dying_count()),
                    (9, 10, 0),
                    "round {round}"
                );
                groups
                    .iter()
                    .for_each(|group| group.offline().expect("no children"));
            },
        );
        assert!(refused.into_inner() > 0, "they never met the mark");
        assert_empty(&runtime);
    }
}

/// A charge of another thread keeps a group's place; credit that it has left there does not.
#[test]
fn a_charge_of_another_thread_keeps_the_place_and_its_credit_does_not() {
    let (runtime, root) = most(fixed(), 2);
    let other = Other::spawn();
    for _ in 0..ROUNDS / 10 {
        let group = create(&root, "q");
        drop(group.charge(1).expect("no limit"));
        let held = other.with(&group, |group| {
            drop(group.charge(5).expect("no limit"));
            group.charge(6).expect("no limit")
        });
        group.offline().expect("no children");
        drop(group);
        assert!(matches!(
            root.create("q", Limits::new()),
            Err(CreateError::Full { most: 2, .. })
        ));
        other.run(move || drop(held));
        create(&root, "q").offline().expect("no children");
    }
    assert_empty(&runtime);
}
