//! A group that is found where, while others come and go.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use memcg::expert::Inspect;
use memcg::{Group, Limits};

use super::{assert_empty, assert_sound, bare, build, charge, create, fixed};

fn paths(groups: impl IntoIterator<Item = Group>) -> BTreeSet<String> {
    groups.into_iter().map(|group| group.path()).collect()
}

#[test]
fn a_group_is_found_by_its_path_and_by_its_id() {
    let runtime = build(bare());
    let root = runtime.root();
    let acme = create(&root, "acme");
    let query = create(&acme, "q17");
    let odd = create(&query, " ünï.c\u{f6}de …");
    for (group, path, name) in
        [(&root, "/", ""), (&acme, "/acme", "acme"), (&odd, "/acme/q17/ ünï.c\u{f6}de …", " ünï.c\u{f6}de …")]
    {
        assert_eq!((group.path().as_str(), &*group.name()), (path, name));
        assert_eq!(runtime.group(path).as_ref(), Some(group));
        assert_eq!(runtime.find(group.id()).as_ref(), Some(group));
    }
    for nowhere in ["", "acme", "/acme/", "//", "//acme", "/acme//q17", "/acme/q17/", "/q17", "/ACME", "/acme/q17\0"] {
        assert_eq!(runtime.group(nowhere), None, "{nowhere:?}");
    }
    assert_eq!(query.parent(), Some(acme.clone()));
    assert_eq!(odd.ancestors().collect::<Vec<_>>(), [query.clone(), acme.clone(), root.clone()]);
    assert_eq!(root.ancestors().count(), 0);
    assert_eq!(root.descendants().collect::<Vec<_>>(), [acme, query, odd]);
    assert_eq!(runtime.group_count(), 4);
}

#[test]
fn a_name_is_unique_among_siblings_only() {
    let runtime = build(bare());
    let root = runtime.root();
    let [a, b] = ["a", "b"].map(|name| create(&root, name));
    let (in_a, in_b) = (create(&a, "a"), create(&b, "a"));
    assert_ne!(in_a, in_b);
    assert_eq!(runtime.group("/a/a"), Some(in_a));
    assert_eq!(runtime.group("/b/a"), Some(in_b));
    assert!(a.create("a", Limits::new()).is_err());
}

/// Short names and long ones, and those that differ in their last byte only.
#[test]
fn names_of_every_length_are_told_apart() {
    let runtime = build(bare());
    let root = runtime.root();
    let names = || (1..=Group::NAME_MAX).flat_map(|length| ["a", "b"].map(|last| "x".repeat(length - 1) + last));
    let groups: Vec<Group> = names().map(|name| create(&root, &name)).collect();
    for (name, group) in names().zip(&groups) {
        assert_eq!((&*group.name(), group.path()), (name.as_str(), format!("/{name}")));
        assert_eq!(runtime.group(&group.path()).as_ref(), Some(group));
        assert!(root.create(&name, Limits::new()).is_err());
        assert_eq!(runtime.group(&format!("/{name}/{name}")), None);
    }
    // Every other one goes, and only that.
    for group in groups.iter().step_by(2) {
        group.offline().expect("no children");
    }
    for (number, (name, group)) in names().zip(&groups).enumerate() {
        assert_eq!(runtime.group(&format!("/{name}")), (number % 2 == 1).then(|| group.clone()), "{name}");
        assert_eq!(group.name(), name);
    }
    assert_eq!(root.children().len(), groups.len() / 2);
}

/// What clippy takes for a mutable key is compared and hashed by identity.
#[test]
#[allow(clippy::mutable_key_type)]
fn handles_of_one_group_are_one_group() {
    let runtime = build(bare());
    let root = runtime.root();
    let groups: Vec<Group> = (0..20).map(|number| create(&root, &number.to_string())).collect();
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
fn the_children_are_those_that_are_online() {
    let runtime = build(fixed());
    let acme = create(&runtime.root(), "acme");
    let mut twin: BTreeMap<String, Group> = BTreeMap::new();
    for step in 0..500_u32 {
        let name = (step * 7 % 40).to_string();
        match twin.remove(&name) {
            Some(group) => group.offline().expect("no children"),
            None => drop(twin.insert(name.clone(), create(&acme, &name))),
        }
        let expected: BTreeSet<String> = twin.keys().map(|name| format!("/acme/{name}")).collect();
        assert_eq!(paths(acme.children()), expected);
        assert_eq!(paths(acme.descendants()), expected);
        assert_eq!(runtime.group_count(), twin.len() + 2);
        for (name, group) in &twin {
            assert_eq!(runtime.group(&format!("/acme/{name}")).as_ref(), Some(group));
        }
    }
    acme.offline_tree();
    assert!(twin.values().all(Group::is_offline));
    drop((twin, acme));
    assert_empty(&runtime);
}

/// What stays from the first step to the last is seen once, whatever comes and goes beside it.
#[test]
fn a_walk_tolerates_change() {
    let runtime = build(bare());
    let root = runtime.root();
    let stays: Vec<Group> = (0..5).map(|number| create(&root, &format!("stay{number}"))).collect();
    let below: Vec<Group> = stays.iter().map(|group| create(group, "below")).collect();
    let mut passing: Vec<Group> = (0..5).map(|number| create(&root, &format!("go{number}"))).collect();
    let mut walk = root.descendants();
    let mut seen = Vec::new();
    for step in 0.. {
        let Some(group) = walk.next() else { break };
        seen.push(group);
        if let Some(group) = passing.pop() {
            group.offline().expect("no children");
        }
        if step < 20 {
            create(&root, &format!("new{step}"));
        }
    }
    for group in stays.iter().chain(&below) {
        assert_eq!(seen.iter().filter(|&other| other == group).count(), 1, "{}", group.path());
    }
    // A walk that began outlives what it walks over.
    let mut walk = stays[0].descendants();
    stays[0].offline_tree();
    assert_eq!(walk.by_ref().map(|group| group.is_offline()).collect::<Vec<_>>(), [true]);
    drop(runtime);
    assert_eq!(walk.next(), None);
}

#[test]
fn walks_and_look_ups_beside_threads_that_create_and_offline() {
    const ROUNDS: usize = 2_000;
    let runtime = build(fixed());
    let root = runtime.root();
    let stays: Vec<Group> = (0..3).map(|number| create(&root, &format!("stay{number}"))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let stays = &stays;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let group = create(&stays[round % 3], &format!("{thread}"));
                        let below = create(&group, "below");
                        let held = charge(&below, 3);
                        assert_eq!(below.path(), format!("/stay{}/{thread}/below", round % 3));
                        if round % 2 == 0 {
                            group.offline_tree();
                        } else {
                            below.offline().expect("no children");
                            group.offline().expect("its child is offline");
                        }
                        drop(held);
                    }
                })
            })
            .collect();
        let walker = scope.spawn(|| {
            let mut is_over = false;
            // A last time when it is over.
            while !is_over {
                is_over = done.load(Ordering::Relaxed);
                let seen: Vec<Group> = root.descendants().collect();
                for stay in &stays {
                    assert_eq!(seen.iter().filter(|&other| other == stay).count(), 1);
                }
                if let Some(group) = runtime.group("/stay1/0/below") {
                    assert_eq!(group.path(), "/stay1/0/below");
                    assert!(group.ancestors().count() == 3 && runtime.find(group.id()) == Some(group));
                }
                let _ = runtime.snapshot();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        walker.join().expect("the walker does not panic");
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(runtime.group_count(), 4);
    assert_empty(&runtime);
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
        // What is printed is of one length, however deep the group is.
        let refused = leaf.try_charge(memcg::Bytes(u64::MAX)).expect_err("too much").to_string();
        let taken = leaf.parent().expect("not the root").create("x", Limits::new()).expect_err("taken").to_string();
        let shown = format!("{}…{}", "/x".repeat(48), &"/x".repeat(80)[1..]);
        assert!(refused.contains(&format!(" for {shown}: ")) && refused.len() < 1_000, "{refused}");
        assert!(taken.starts_with("no group \"x\" in /x/x") && taken.len() < 500, "{taken}");
        assert_eq!((runtime.root().live(), leaf.ancestors().count()), (7, LEVELS));
        runtime.group("/x").expect("the first").offline_tree();
        assert_eq!((runtime.dying_count(), runtime.group_count()), (LEVELS, 1));
        assert_sound(&runtime);
        drop(leaf);
        drop(held);
        assert_empty(&runtime);
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(deep);
    thread.expect("a thread starts").join().expect("the chain goes without recursion");
}

#[test]
fn the_table_lists_the_groups_online() {
    let runtime = build(bare().max(memcg::Limit::mib(1)));
    let acme = runtime.root().create("acme", Limits::new().max(100)).expect("a name");
    let query = create(&acme, "q17");
    let gone = create(&acme, "gone");
    let (_held, _left) = (charge(&query, 60), charge(&gone, 30));
    assert!(query.try_charge(11).is_err());
    gone.offline().expect("no children");
    let table = runtime.snapshot();
    let rows: Vec<_> =
        table.rows().iter().map(|row| (row.path.as_str(), row.live, row.peak, row.max, row.refused)).collect();
    assert_eq!(rows, [("/", 90, 90, 1 << 20, 0), ("/acme", 90, 90, 100, 1), ("/acme/q17", 60, 60, u64::MAX, 0)]);
    assert!(table.rows().iter().all(|row| row.usage == row.live));
    let expected = "\
path       live  %max    max  events
/          90 B    0%  1 MiB  max 1, oom 1
/acme      90 B   90%  100 B  max 1, oom 1
/acme/q17  60 B     -      -
";
    assert_eq!(table.to_string(), expected);
}
