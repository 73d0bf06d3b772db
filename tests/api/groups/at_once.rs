//! What two or more threads do to one place of the tree at once: make, find, take offline.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use memcg::expert::Inspect;
use memcg::{Bytes, Charge, CreateError, Group, GroupId, Limits, Runtime};

use super::{assert_empty, bare, build, charge, create, fixed};
use crate::support::crowds::{crowd, pair};

const ROUNDS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };

fn named(parent: &Group, name: &str) -> Vec<Group> {
    parent.children().into_iter().filter(|child| child.name() == name).collect()
}

#[test]
fn of_many_that_create_one_name_one_wins() {
    let runtime = build(fixed());
    let root = runtime.root();
    crowd(
        4,
        ROUNDS,
        |_| (),
        |_, ()| root.create("q", Limits::new()),
        |round, (), made| {
            let (won, lost): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
            assert_eq!((won.len(), lost.len()), (1, 3), "round {round}");
            for refused in lost.into_iter().flat_map(Result::err) {
                let CreateError::Taken { parent, name } = &refused else { panic!("round {round}: {refused}") };
                assert_eq!((parent, name.as_str()), (&root, "q"));
            }
            let group = won.into_iter().flatten().next().expect("one");
            assert_eq!((runtime.group("/q").as_ref(), runtime.group_count()), (Some(&group), 2));
            assert_eq!(root.children(), std::slice::from_ref(&group));
            group.offline().expect("no children");
        },
    );
    assert_eq!(runtime.group_count(), 1);
    assert_empty(&runtime);
}

/// A group that goes first is open; that one of them goes without is not.
#[test]
fn a_parent_goes_offline_or_has_a_child() {
    let runtime = build(fixed());
    let root = runtime.root();
    let mut firsts = [0_u64; 2];
    pair(
        ROUNDS,
        |_| create(&root, "parent"),
        |parent| parent.offline(),
        |parent| {
            let made = parent.create("child", Limits::new());
            let told = matches!(made, Err(CreateError::Offline { .. }));
            assert!(
                !told || parent.is_offline() && parent.try_charge(1).is_err(),
                "a thread to which create says so finds it so"
            );
            made
        },
        |round, parent, gone, made| match (gone, made) {
            (Ok(()), Err(CreateError::Offline { parent: named, name })) => {
                assert_eq!((&named, name.as_str(), parent.is_offline()), (&parent, "child", true));
                assert_eq!((runtime.group("/parent"), runtime.group_count()), (None, 1));
                firsts[0] += 1;
            }
            (Err(refused), Ok(child)) => {
                assert_eq!((refused.group(), refused.children(), parent.is_offline()), (&parent, 1, false));
                assert_eq!((runtime.group("/parent/child").as_ref(), runtime.group_count()), (Some(&child), 3));
                drop(child.try_charge(1).expect("it is online"));
                child.offline().expect("no children");
                parent.offline().expect("its child is offline");
                firsts[1] += 1;
            }
            (gone, made) => panic!("round {round}: {gone:?}, {made:?}"),
        },
    );
    assert!(firsts.iter().all(|&rounds| rounds > 0), "{firsts:?}: they never met");
    assert_empty(&runtime);
}

/// A parent goes offline behind its last child: not in front of it, by a hair.
#[test]
fn a_parent_that_is_offline_has_no_child_that_is_online() {
    let runtime = build(fixed());
    let root = runtime.root();
    let mut gone = [0_u64; 2];
    pair(
        ROUNDS,
        |_| {
            let parent = create(&root, "parent");
            let child = create(&parent, "child");
            (parent, child)
        },
        |(_, child)| child.offline().expect("no children"),
        |(parent, child)| {
            let offline = parent.offline().is_ok();
            assert!(!offline || child.is_offline() && child.try_charge(1).is_err(), "its child is online");
            offline
        },
        |_, (parent, _), (), offline| {
            gone[usize::from(offline)] += 1;
            parent.offline().expect("its child is offline");
        },
    );
    assert!(gone.iter().all(|&rounds| rounds > 0), "{gone:?}: they never met");
    assert_empty(&runtime);
}

/// A thread that sees a group offline may count on all of it: its name is free, and its parent may go.
#[test]
fn a_group_that_is_seen_offline_is_out_of_the_way() {
    let runtime = build(fixed());
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
    assert_empty(&runtime);
}

/// A group that got a child before a subtree went offline as one has one that is offline.
#[test]
fn nothing_is_born_below_a_tree_that_went_offline() {
    let runtime = build(fixed());
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
            let below = made.into_iter().flat_map(|(first, second)| [Some(first), second]).flatten();
            for group in [top.clone(), middle].into_iter().chain(below.inspect(|_| comes += 1)) {
                assert!(group.is_offline() && group.try_charge(1).is_err(), "{}", group.path());
                assert_eq!(runtime.group(&group.path()), None);
            }
            assert_eq!((runtime.group_count(), top.children(), root.children()), (1, vec![], vec![]));
        },
    );
    assert!(comes > 0, "they never met");
    assert_empty(&runtime);
}

/// Whichever call returns first: the group is offline, its name free, and it stands in its parent's way no more.
#[test]
fn offline_by_two_is_done_when_either_returns() {
    let runtime = build(fixed());
    let root = runtime.root();
    pair(
        ROUNDS,
        |_| {
            let parent = create(&root, "parent");
            let child = create(&parent, "child");
            let held = charge(&child, 3);
            (parent, child, held)
        },
        |(parent, child, _)| {
            child.offline().expect("no children");
            assert!(child.is_offline() && child.try_charge(1).is_err());
            assert!(named(parent, "child").iter().all(|other| other != child));
            parent.create("child", Limits::new()).map(drop)
        },
        |(parent, child, _)| {
            child.offline_tree();
            assert!(child.is_offline() && child.try_charge(1).is_err());
            assert_ne!(runtime.group("/parent/child").as_ref(), Some(child));
            parent.create("child", Limits::new()).map(drop)
        },
        |round, (parent, child, held), one, other| {
            assert_eq!(u8::from(one.is_ok()) + u8::from(other.is_ok()), 1, "round {round}: {one:?}, {other:?}");
            assert_eq!((runtime.group_count(), runtime.dying_count()), (3, 1), "round {round}");
            assert_eq!((child.live(), parent.live()), (3, 3));
            drop((child, held));
            parent.offline_tree();
        },
    );
    assert_empty(&runtime);
}

/// A subtree, a subtree of it and a leaf go offline at once, each as its caller has it.
#[test]
fn subtrees_that_overlap_go_offline_at_once() {
    let runtime = build(fixed());
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
            assert!(mine.iter().all(|group| group.is_offline() && group.children().is_empty()));
        },
        |round, (groups, held), _| {
            assert!(groups.iter().all(Group::is_offline), "round {round}");
            assert_eq!((runtime.group_count(), runtime.dying_count(), root.live()), (1, 4, 4), "round {round}");
            drop(groups);
            drop(held);
        },
    );
    assert_empty(&runtime);
}

/// Each thread has names of its own: none of them is ever in another's way, in one parent or in many.
#[test]
fn names_of_ones_own_are_never_taken() {
    let runtime = build(bare());
    let root = runtime.root();
    let parents: Vec<Group> = (0..3).map(|number| create(&root, &number.to_string())).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let parents = &parents;
            scope.spawn(move || {
                for round in 0..ROUNDS as usize {
                    let parent = &parents[if thread % 2 == 0 { 0 } else { round % 3 }];
                    let name = format!("{thread}");
                    let group = create(parent, &name);
                    assert_eq!(named(parent, &name), std::slice::from_ref(&group), "it is found, and once");
                    group.offline().expect("no children");
                    assert_eq!(named(parent, &name), [], "it is not found any more");
                }
            });
        }
    });
    assert_eq!(runtime.group_count(), 4);
    assert_empty(&runtime);
}

/// What one thread has made or taken offline is so for another that is told of it, however it looks.
#[test]
fn another_thread_finds_what_it_is_told_of() {
    let runtime = build(bare());
    let root = runtime.root();
    let (tell, told) = sync_channel::<(Group, bool)>(0);
    let (agree, agreed) = sync_channel::<()>(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let runtime = &runtime;
        scope.spawn(move || {
            for (group, online) in told {
                let (path, parent) = (group.path(), group.parent().expect("a child"));
                assert_eq!(runtime.group(&path), online.then(|| group.clone()), "{path} by path");
                assert_eq!(
                    named(&parent, &group.name()).contains(&group),
                    online,
                    "{path} among its parent's children"
                );
                assert_eq!(parent.descendants().any(|below| below == group), online, "{path} in a walk");
                assert_eq!(runtime.snapshot().rows().iter().any(|row| row.path == path), online, "{path} in the table");
                assert_eq!(group.is_offline(), !online);
                assert_eq!(runtime.find(group.id()).as_ref(), Some(&group), "{path} by id: it has a handle");
                agree.send(()).expect("a thread waits");
            }
        });
        // Another thread keeps the tree moving.
        let passing = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let group = create(&root, "passing");
                create(&group, "below").offline().expect("no children");
                group.offline().expect("its child is offline");
            }
        });
        for round in 0..ROUNDS / 4 {
            let parent = create(&root, &format!("parent{}", round % 7));
            let group = create(&parent, "q");
            let say = |group: &Group, online| {
                tell.send((group.clone(), online)).expect("the other thread takes it");
                agreed.recv().expect("the other thread agrees");
            };
            say(&group, true);
            group.offline().expect("no children");
            say(&group, false);
            parent.offline().expect("its child is offline");
            say(&parent, false);
        }
        drop(tell);
        done.store(true, Ordering::Relaxed);
        passing.join().expect("no panic");
    });
    assert_empty(&runtime);
}

/// An id finds its group as long as that is there, and never what came into its object later.
#[test]
fn an_id_finds_its_own_group_or_none_while_the_last_step_is_taken() {
    type Last = Box<dyn Send + Sync>;
    let runtime = build(bare());
    let root = runtime.root();
    let mut seen: BTreeSet<GroupId> = BTreeSet::new();
    let mut found_it = [0_u64; 2];
    pair(
        ROUNDS,
        |round| {
            let group = create(&root, "q");
            let id = group.id();
            let held = charge(&group, 1);
            group.offline().expect("no children");
            // The last that keeps it: a handle in one round, a charge in the next.
            let last: Last = if round % 2 == 0 {
                drop(held);
                Box::new(group)
            } else {
                drop(group);
                Box::new(held)
            };
            (id, Mutex::new(Some(last)))
        },
        |(_, last)| {
            drop(last.lock().expect("no thread panics with it").take());
            // Its object may be this one's.
            let next = create(&root, "next");
            next.offline().expect("no children");
            next.id()
        },
        |(id, _)| {
            let found = runtime.find(*id);
            if let Some(group) = &found {
                assert_eq!((group.id(), group.path().as_str(), group.is_offline()), (*id, "/q", true));
            }
            found.is_some()
        },
        |_, (id, _), next, found| {
            found_it[usize::from(found)] += 1;
            assert!(seen.insert(id) && seen.insert(next), "an id for the second time");
            assert_eq!((runtime.find(id), runtime.find(next), runtime.dying_count()), (None, None, 0));
        },
    );
    assert!(found_it.iter().all(|&rounds| rounds > 0), "{found_it:?}: they never met");
    assert_empty(&runtime);
}

/// The runtime goes while a thread creates a group: the thread has one that is offline, or the error says why not.
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
                // Where the runtime is gone by now, so is this.
                let held: Option<Charge> = group.try_charge(10).ok();
                Some((group, held))
            }
            Err(CreateError::Offline { .. }) => None,
            Err(other) => panic!("{other}"),
        },
        |round, (parent, _), (), late| {
            made[usize::from(late.is_some())] += 1;
            let root = parent.parent().expect("the root");
            assert!(parent.is_offline() && root.is_offline() && parent.children().is_empty(), "round {round}");
            let Some((group, held)) = late else { return };
            assert!(group.is_offline(), "round {round}");
            let bytes = held.as_ref().map_or(0, Charge::bytes);
            assert_eq!((group.live(), root.live()), (bytes, bytes), "round {round}");
            drop((group, held));
            assert_eq!((root.usage(), root.stocked_bound()), (0, 0), "round {round}");
        },
    );
    assert!(made.iter().all(|&rounds| rounds > 0), "{made:?}: they never met");
}

/// Two runtimes do not know each other's names and ids, whichever group takes whose objects.
#[test]
fn runtimes_side_by_side_find_their_own() {
    let runtimes: [Runtime; 2] = [build(bare()), build(fixed().batch(Bytes(0)))];
    crowd(
        2,
        ROUNDS,
        |_| (),
        |who, ()| {
            let group = create(&runtimes[who].root(), "q");
            assert_eq!(runtimes[who].group("/q").as_ref(), Some(&group));
            assert_eq!(runtimes[who].find(group.id()).as_ref(), Some(&group));
            assert_eq!(runtimes[1 - who].find(group.id()), None);
            group.offline().expect("no children");
            group.id()
        },
        |_, (), ids| assert_ne!(ids[0], ids[1]),
    );
    runtimes.iter().for_each(assert_empty);
}
