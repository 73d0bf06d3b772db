//! Statements 68 to 74: tree rules and lifecycle. 69 and 70 are about processes, which do not live
//! in groups here.

use std::thread::scope;

use memcg::{Charge, Group, Limits, Runtime, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound};

fn runtime() -> Runtime {
    Runtime::builder()
        .audit(true)
        .adaptive(false)
        .build()
        .expect("a configuration")
}

fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

/// The kernel keeps processes to the leaves; here any group may be charged, also one with children,
/// and a child may come where charges are.
#[test]
fn s068_a_group_with_children_is_charged() {
    let runtime = runtime();
    let parent = create(&runtime.root(), "a");
    let before = parent.charge(10).expect("no limit");
    let child = create(&parent, "b");
    let own = parent.charge(20).expect("no limit");
    let below = child.charge(30).expect("no limit");
    assert_eq!(
        (parent.live(), parent.inspect().live_local(), child.live()),
        (60, 30, 30)
    );
    assert!(runtime.verify().is_ok());
    drop((before, own, below));
    assert_eq!(runtime.root().live(), 0);
}

/// The kernel waits up to five seconds for its dying groups; here they are gone with their last
/// charge.
#[test]
fn s072_dying_groups_go_with_their_charges() {
    let runtime = runtime();
    let charges: Vec<_> = (0..30)
        .map(|number| {
            let group = create(&runtime.root(), &format!("g{number}"));
            let charge = group.charge(4_096).expect("no limit");
            group.offline().expect("no children");
            charge
        })
        .collect();
    assert_eq!((runtime.dying_count(), runtime.group_count()), (30, 1));
    assert!(runtime.verify().is_ok());
    for (gone, charge) in charges.into_iter().enumerate() {
        assert_eq!(
            (runtime.dying_count(), runtime.root().live()),
            (30 - gone, (30 - gone as u64) * 4_096)
        );
        drop(charge);
    }
    assert_eq!((runtime.dying_count(), runtime.root().usage()), (0, 0));
}

fn delete_30_that_two_threads_charged(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let groups: Vec<Group> = (0..30)
        .map(|number| create(&root, &format!("g{number}")))
        .collect();
    let charge = || -> Vec<Charge> {
        let each = |group: &Group| {
            (0..3)
                .map(|_| group.charge(4_096).expect("no limit"))
                .collect::<Vec<_>>()
        };
        groups.iter().flat_map(each).collect()
    };
    let held = scope(|scope| [charge(), scope.spawn(charge).join().expect("no panic")]);
    groups
        .iter()
        .for_each(|group| group.offline().expect("no children"));
    drop(groups);
    assert_eq!(
        (runtime.dying_count(), runtime.group_count(), root.live()),
        (30, 1, 30 * 6 * 4_096)
    );
    let [own, others] = held;
    scope(|scope| drop(scope.spawn(move || drop(own))));
    assert_eq!(
        (runtime.dying_count(), root.live()),
        (30, 30 * 3 * 4_096),
        "the other half keeps them"
    );
    assert_groups_sound(&runtime);
    drop(others);
    // Credit of two threads is what is left: one barrier is all that it takes.
    let before = runtime.counts().barriers;
    runtime.settle();
    assert_eq!(
        (
            runtime.dying_count(),
            root.usage(),
            root.memory().stocked_bound()
        ),
        (0, 0, 0)
    );
    assert!(runtime.counts().barriers <= before + 1);
    assert_groups_sound(&runtime);
}

twins! {
    delete_30_that_two_threads_charged:
    /// Threads that are gone have left charges and credit behind; one `settle` after the last
    /// charge no group is dying.
    s072_dying_groups_of_several_threads_go_with_their_charges(adaptive_groups().adaptive(false)),
    s072_dying_groups_of_several_threads_go_with_their_charges_adaptive(adaptive_groups()),
}

/// The kernel switches the controller off below a group; here a group goes offline: what is charged
/// stays with the nearest ancestor that is online, as its own, and its path is no group's.
#[test]
fn s074_what_is_charged_stays_with_the_nearest_ancestor() {
    let runtime = runtime();
    let a = create(&runtime.root(), "a");
    let b = create(&a, "b");
    let c = create(&b, "c");
    let charge = c.charge(100).expect("no limit");
    assert_eq!(
        (
            runtime.root().inspect().live_local(),
            a.inspect().live_local(),
            b.inspect().live_local(),
            c.inspect().live_local()
        ),
        (0, 0, 0, 100)
    );
    assert_eq!(runtime.group("/a/b/c").as_ref(), Some(&c));
    c.offline().expect("no children");
    assert_eq!((runtime.group("/a/b/c"), b.children()), (None, Vec::new()));
    assert_eq!(
        (a.inspect().live_local(), b.inspect().live_local()),
        (0, 100)
    );
    b.offline().expect("no children online");
    assert_eq!((runtime.group("/a/b"), c.path().as_str()), (None, "/a/b/c"));
    assert_eq!(
        (
            runtime.root().inspect().live_local(),
            a.inspect().live_local()
        ),
        (0, 100)
    );
    assert_eq!((runtime.root().live(), a.live()), (100, 100));
    assert!(runtime.verify().is_ok());
    drop(charge);
    assert_eq!(runtime.root().live(), 0);
}
