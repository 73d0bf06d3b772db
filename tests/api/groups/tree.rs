//! A group that is found where, while others come and go.

use std::collections::{BTreeSet, HashSet};

use memcg::{Group, Limits};

use super::{assert_empty, assert_sound, bare, build, charge, create};

/// Short names and long ones, and those that differ in their last byte only.
#[test]
fn names_of_every_length_are_told_apart() {
    let runtime = build(bare());
    let root = runtime.root();
    let names = || {
        (1..=Group::NAME_MAX)
            .flat_map(|length| ["a", "b"].map(|last| "x".repeat(length - 1) + last))
    };
    let groups: Vec<Group> = names().map(|name| create(&root, &name)).collect();
    for (name, group) in names().zip(&groups) {
        assert_eq!(
            (&*group.name(), group.path()),
            (name.as_str(), format!("/{name}"))
        );
        assert_eq!(runtime.group(&group.path()).as_ref(), Some(group));
        assert!(root.create(&name, Limits::new()).is_err());
        assert_eq!(runtime.group(&format!("/{name}/{name}")), None);
    }
    // Every other one goes, and only that.
    for group in groups.iter().step_by(2) {
        group.offline().expect("no children");
    }
    for (number, (name, group)) in names().zip(&groups).enumerate() {
        assert_eq!(
            runtime.group(&format!("/{name}")),
            (number % 2 == 1).then(|| group.clone()),
            "{name}"
        );
        assert_eq!(group.name(), name);
    }
    assert_eq!(root.children().len(), groups.len() / 2);
}

/// Clippy takes a group for a mutable key; it is compared and hashed by identity.
#[test]
#[allow(clippy::mutable_key_type)]
fn handles_of_one_group_are_one_group() {
    let runtime = build(bare());
    let root = runtime.root();
    let groups: Vec<Group> = (0..20)
        .map(|number| create(&root, &number.to_string()))
        .collect();
    let mut seen: HashSet<Group> = groups.iter().cloned().collect();
    seen.extend(root.children());
    seen.extend(groups.iter().map(|group| charge(group, 1).group()));
    assert_eq!(seen.len(), 20);
    let ids: BTreeSet<_> = groups.iter().map(Group::id).collect();
    assert_eq!(ids.len(), 20);
    let names: BTreeSet<_> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), 20, "ids print apart");
}

#[test]
fn a_deep_tree_goes_on_a_small_stack() {
    const LEVELS: usize = 5_000;
    let deep = || {
        let runtime = build(bare());
        let mut leaf = runtime.root();
        for _ in 0..LEVELS {
            leaf = create(&leaf, "x");
        }
        let held = charge(&leaf, 7);
        assert_eq!(leaf.path().len(), 2 * LEVELS);
        // The printed line is of one length, however deep the group is.
        let refused = leaf
            .charge(memcg::Bytes(u64::MAX))
            .expect_err("too much")
            .to_string();
        let taken = leaf
            .parent()
            .expect("not the root")
            .create("x", Limits::new())
            .expect_err("taken")
            .to_string();
        let shown = format!("{}…{}", "/x".repeat(48), &"/x".repeat(80)[1..]);
        assert!(
            refused.contains(&format!(" for {shown}: ")) && refused.len() < 1_000,
            "{refused}"
        );
        assert!(
            taken.starts_with("cannot create \"x\" in /x/x") && taken.len() < 500,
            "{taken}"
        );
        assert_eq!(
            (runtime.root().live(), leaf.ancestors().count()),
            (7, LEVELS)
        );
        runtime.group("/x").expect("the first").offline_tree();
        assert_eq!((runtime.dying_count(), runtime.group_count()), (LEVELS, 1));
        assert_sound(&runtime);
        drop(leaf);
        drop(held);
        assert_empty(&runtime);
    };
    let thread = std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(deep);
    thread
        .expect("a thread starts")
        .join()
        .expect("the chain goes without recursion");
}

#[test]
fn the_table_lists_the_groups_online() {
    let runtime = build(bare().max(memcg::Limit::mib(1)));
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(100))
        .expect("a name");
    let query = create(&acme, "q17");
    let gone = create(&acme, "gone");
    let _held = charge(&query, 60);
    let _left = charge(&gone, 30);
    assert!(query.charge(11).is_err());
    gone.offline().expect("no children");
    let table = runtime.snapshot();
    let rows: Vec<_> = table
        .rows()
        .iter()
        .map(|row| (row.path.as_str(), row.live, row.peak, row.max, row.refused))
        .collect();
    assert_eq!(
        rows,
        [
            ("/", 90, 90, 1 << 20, 0),
            ("/acme", 90, 90, 100, 1),
            ("/acme/q17", 60, 60, u64::MAX, 0)
        ]
    );
    assert!(table.rows().iter().all(|row| row.usage == row.live));
    let expected = "\
path       live  %max    max  events
/          90 B    0%  1 MiB  max 1, oom 1
/acme      90 B   90%  100 B  max 1, oom 1
/acme/q17  60 B     -      -
";
    assert_eq!(table.to_string(), expected);
}
