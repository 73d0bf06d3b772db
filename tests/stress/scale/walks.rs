//! Walks on four threads, over a tree whose groups come and go on two of them.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use memcg::{Bytes, Group, GroupId, Limits, Runtime};

use super::{GROUPS, Look, Looks, TENANTS, World, alone, create, groups};

/// A walk costs as much as there are groups.
const SCALE: usize = 20;
const WALKS: usize = if cfg!(debug_assertions) { 5 } else { 20 };

fn builder() -> memcg::RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(64))
}

/// A group that stays is seen once, below its parent and after it; one that passes at most once.
fn see(world: &World, seen: &[Group]) {
    let mut at: HashMap<GroupId, usize> = HashMap::with_capacity(seen.len());
    for (number, group) in seen.iter().enumerate() {
        assert_eq!(
            at.insert(group.id(), number),
            None,
            "{} for the second time",
            group.path()
        );
        let parent = group.parent().expect("below the root");
        assert!(
            parent == world.root || at.contains_key(&parent.id()),
            "{} before its parent",
            group.path()
        );
    }
    for group in world.tenants.iter().chain(world.stays.iter().flatten()) {
        assert!(
            at.contains_key(&group.id()),
            "{} was not seen",
            group.path()
        );
    }
}

fn walk(world: &World, what: usize, _one: Look<'_>) {
    for round in 0..WALKS {
        match what {
            0 => see(
                world,
                &world.root.inspect().descendants().collect::<Vec<_>>(),
            ),
            1 => {
                for tenant in &world.tenants {
                    let seen = tenant.children();
                    let names: HashSet<_> = seen.iter().map(Group::name).collect();
                    assert_eq!(
                        names.len(),
                        seen.len(),
                        "a name twice below {}",
                        tenant.path()
                    );
                    assert!(
                        seen.iter()
                            .all(|child| child.parent().as_ref() == Some(tenant))
                    );
                    let stay = &world.stays[0];
                    assert!(
                        stay.iter().all(|group| names.contains(&*group.name())),
                        "{}",
                        tenant.path()
                    );
                }
            }
            2 => {
                let table = world.runtime.snapshot();
                let rows: HashMap<&str, u64> = table
                    .rows()
                    .iter()
                    .map(|row| (row.path.as_str(), row.live))
                    .collect();
                assert_eq!(rows.len(), table.rows().len(), "a path twice in the table");
                for (tenant, stays) in world.tenants.iter().zip(&world.stays) {
                    assert!(rows.contains_key(tenant.path().as_str()));
                    for group in stays {
                        let live = rows.get(group.path().as_str());
                        assert_eq!(live, Some(&group.live()), "{}", group.path());
                    }
                }
            }
            _ => {
                // Charges in flight may show, of groups that come and go and of all above them;
                // what stays adds up.
                let verdict = world.runtime.verify();
                assert!(verdict.counter_count() >= world.len(), "{verdict}");
                for fault in verdict.faults() {
                    let path = fault.path.as_deref().expect("a group's");
                    assert!(!path.contains("/q"), "round {round}: {fault}");
                }
            }
        }
    }
}

#[test]
fn walks_see_what_stays_once_while_two_threads_create_and_destroy() {
    let _alone = alone();
    let world = World::of(builder(), groups() / SCALE);
    let looks = Looks::of(4);
    let passed = Mutex::default();
    std::thread::scope(|scope| {
        let world = &world;
        let looks = &looks;
        let passed = &passed;
        let come: Vec<_> = (0..2)
            .map(|thread| scope.spawn(move || world.come_and_go(thread, looks, passed)))
            .collect();
        let walks: Vec<_> = (0..4)
            .map(|what| scope.spawn(move || walk(world, what, looks.one())))
            .collect();
        walks
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        for come in come {
            assert!(
                come.join().expect("no panic") > 100,
                "nothing came and went meanwhile"
            );
        }
    });
    world.end();
}

/// Groups that no thread charges come and go with protection and soft limits: every look at the
/// whole count adds up.
#[test]
fn the_count_adds_up_at_every_look_while_idle_groups_come_and_go() {
    let _alone = alone();
    let world = World::of(builder(), groups() / SCALE);
    let looks = Looks::of(1);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let world = &world;
            let looks = &looks;
            scope.spawn(move || {
                let limits = Limits::new().min(10).low(20);
                let mut come = 0;
                while !looks.are_done() {
                    let tenant = &world.tenants[(come + thread) % TENANTS];
                    let group = tenant
                        .create(&format!("passing{thread}"), limits)
                        .expect("a name of one's own");
                    drop(create(&group, "below"));
                    group.offline_tree();
                    come += 1;
                }
            });
        }
        let _one = looks.one();
        for round in 0..2 * WALKS {
            let verdict = world.runtime.verify();
            assert!(
                verdict.is_ok() && verdict.audited(),
                "round {round}: {verdict}"
            );
            assert!(
                verdict.counter_count() >= world.len(),
                "round {round}: {verdict}"
            );
            let online = world.runtime.group_count();
            let dying = world.runtime.dying_count();
            assert!(
                (world.len()..=world.len() + 6).contains(&online) && dying <= 6,
                "{online} online, {dying} dying"
            );
        }
    });
    world.end();
}

/// The children are those of one moment: of two that take turns, so that one of them is always
/// there, one is seen.
#[test]
fn children_are_those_of_one_moment() {
    let _alone = alone();
    let runtime = builder().build().expect("a configuration that holds");
    let root = runtime.root();
    let parent = create(&root, "parent");
    // Others beside them, so that a look takes its time.
    let stays: Vec<Group> = (0..200)
        .map(|number| create(&parent, &number.to_string()))
        .collect();
    let looks = Looks::of(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = [create(&parent, "tick"), create(&parent, "tock")];
            while !looks.are_done() {
                for (name, group) in ["tick", "tock"].into_iter().zip(&mut turn) {
                    group.offline().expect("no children");
                    *group = create(&parent, name);
                }
            }
        });
        for _ in 0..2 {
            let one = looks.one();
            scope.spawn(|| {
                let _one = one;
                // Until the first of them is there.
                while parent.children().len() <= stays.len() {
                    std::thread::yield_now();
                }
                for round in 0..GROUPS / 10 {
                    let seen = parent.children();
                    assert!(
                        seen.len() > stays.len() && seen.len() <= stays.len() + 2,
                        "round {round}: {}",
                        seen.len()
                    );
                }
            });
        }
    });
    drop(stays);
    parent.offline_tree();
    drop(parent);
    runtime.settle();
    assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
}

/// A group is created, found and released in the same number of steps at any depth. With a look at
/// each level above, these would be billions.
#[test]
fn a_chain_of_groups_grows_and_goes() {
    const LEVELS: usize = if cfg!(debug_assertions) {
        20_000
    } else {
        200_000
    };
    let _alone = alone();
    let runtime = builder().build().expect("a configuration that holds");
    let mut leaf = runtime.root();
    for _ in 0..LEVELS {
        leaf = leaf.create("x", Limits::new()).expect("a free name");
    }
    assert_eq!(
        (runtime.group_count(), leaf.ancestors().count()),
        (LEVELS + 1, LEVELS)
    );
    runtime.group("/x").expect("the first").offline_tree();
    drop(leaf);
    runtime.settle();
    assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
}
