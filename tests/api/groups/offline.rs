//! Offline: admission stops, the name is free, what is charged stays charged, and one barrier
//! serves many.

use memcg::errors::CreateError;
use memcg::{Bytes, Group, Limit, Limits, Runtime};

use super::{
    Other, assert_empty, assert_sound, build, charge, create, fixed, left_empty, runtimes,
};

#[track_caller]
fn assert_refused(group: &Group, bytes: u64) {
    let error = group.charge(Bytes(bytes)).expect_err("it is offline");
    assert!(error.is_offline(), "{error}");
    assert_eq!((error.group(), error.requested()), (group, bytes));
}

/// The statement: a charge that begins after `offline` has returned is refused, also on a thread
/// that has credit.
#[test]
fn no_group_is_admitted_afterwards() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let others = [Other::spawn(), Other::spawn()];
        // Twice: an adaptive stock opens with the first charge and is filled by the next.
        let mut held = vec![charge(&group, 1), charge(&group, 1)];
        for other in &others {
            held.extend((0..2).map(|_| other.with(&group, |group| charge(group, 1))));
        }
        group.offline().expect("no children");
        assert_refused(&group, 1);
        for other in &others {
            let mut mine = held.pop().expect("six charges");
            other.with(&group, move |group| {
                for bytes in [1, 0, 63, 64, u64::MAX] {
                    assert_refused(group, bytes);
                }
                assert!(matches!(mine.grow(1), Err(error) if error.is_offline() && error.requested() == 1));
                assert_eq!(mine.bytes(), 1);
                // Memory that exists already is charged all the same.
                mine.force_grow(5);
                assert_eq!(
                    (mine.bytes(), group.force_charge(7).bytes(), mine.shrink(6)),
                    (6, 7, 6)
                );
                assert_refused(group, 1);
            });
        }
        assert_eq!((group.live(), runtime.root().live()), (4, 4));
        assert_sound(&runtime);
    }
}

#[test]
fn by_its_only_charger_it_needs_no_barrier() {
    for runtime in runtimes() {
        let root = runtime.root();
        // The first child makes the root give its stock up.
        create(&root, "first").offline().expect("no children");
        let before = runtime.counts();
        for round in 0..300 {
            let group = create(&root, "q");
            let held = [charge(&group, 1), charge(&group, 2), charge(&group, 100)];
            if round % 2 == 0 {
                drop(held);
                group.offline().expect("no children");
            } else {
                group.offline().expect("no children");
                assert_eq!(root.live(), 103);
                drop(held);
            }
            assert_eq!(
                (root.usage(), root.memory().stocked_bound()),
                (0, 0),
                "its credit is back at once"
            );
            assert_eq!(runtime.dying_count(), 1, "for want of the handle");
            drop(group);
            assert_eq!(runtime.dying_count(), 0);
        }
        assert_eq!(runtime.counts().barriers, before.barriers);
    }
}

#[test]
fn one_barrier_serves_many() {
    for further in [0, 2] {
        let mut builder = Runtime::builder().batch(memcg::Bytes(64)).adaptive(false);
        let counters: Vec<_> = (0..further)
            .map(|number| builder.counter(&format!("c{number}"), memcg::Unit::Bytes))
            .collect();
        let runtime = left_empty(build(builder));
        let root = runtime.root();
        let other = Other::spawn();
        let charged = |root: &Group| {
            let group = create(root, "q");
            let counters: Vec<_> = counters
                .iter()
                .copied()
                .chain([memcg::CounterKey::MEMORY])
                .collect();
            let charge_all = move |group: &Group| {
                counters
                    .iter()
                    .for_each(|&counter| drop(group.charge_set(&[(counter, 3)]).expect("room")));
            };
            charge_all(&group);
            other.with(&group, charge_all);
            group
        };
        charged(&root).offline().expect("no children");
        runtime.settle();
        let before = runtime.counts().barriers;
        for _ in 0..640 {
            charged(&root).offline().expect("no children");
        }
        let barriers = runtime.counts().barriers - before;
        println!(
            "{further} further counters: {barriers} barriers for 640 groups that two threads charged"
        );
        assert!(
            (1..=10).contains(&barriers),
            "{barriers} barriers for 640 groups, {further} further counters"
        );

        // By hand: one for all that wait, none for nothing.
        runtime.settle();
        let groups: Vec<Group> = (0..50)
            .map(|_| {
                let group = charged(&root);
                group.offline().expect("no children");
                group
            })
            .collect();
        let before = runtime.counts().barriers;
        assert!(root.usage() > 0, "credit waits for its barrier");
        runtime.settle();
        assert_eq!((runtime.counts().barriers - before, root.usage()), (1, 0));
        runtime.settle();
        assert_eq!(runtime.counts().barriers - before, 1);
        assert_eq!(runtime.dying_count(), 50, "memory's object, for the handle");
        drop(groups);
        assert_empty(&runtime);

        // As one step.
        let top = create(&root, "top");
        for name in ["a", "b", "c"] {
            let group = create(&top, name);
            drop(charge(&group, 3));
            other.with(&group, |group| drop(charge(group, 3)));
        }
        let before = runtime.counts().barriers;
        top.offline_tree();
        assert_eq!((runtime.counts().barriers - before, root.usage()), (1, 0));
    }
}

/// Credit that waits for its barrier stands in no group's way.
#[test]
fn a_limit_settles_what_it_needs() {
    let runtime = left_empty(build(fixed().max(200).budget(memcg::Bytes(200))));
    let root = runtime.root();
    let other = Other::spawn();
    for _ in 0..3 {
        let group = create(&root, "q");
        drop(charge(&group, 10));
        other.with(&group, |group| drop(charge(group, 10)));
        group.offline().expect("no children");
    }
    let group = create(&root, "all");
    let _held = charge(&group, 200);
    assert!(group.charge(1).is_err());
}

#[test]
fn it_protects_no_group_and_takes_no_children() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    let acme = root
        .create("acme", Limits::new().min(50).low(90))
        .expect("a name");
    let _held = charge(&acme, 70);
    assert_eq!(
        (
            root.memory().children_min_usage(),
            root.memory().children_low_usage()
        ),
        (50, acme.usage().min(90))
    );
    acme.offline().expect("no children");
    assert_eq!(
        (
            root.memory().children_min_usage(),
            root.memory().children_low_usage()
        ),
        (0, 0)
    );
    acme.set_limits(Limits::new().min(60))
        .expect("does nothing");
    acme.set_limits(Limits::new().low("max".parse::<Limit>().expect("a limit")))
        .expect("does nothing");
    assert_eq!(
        (
            acme.inspect().min(),
            acme.inspect().low(),
            root.memory().children_min_usage(),
            root.memory().children_low_usage()
        ),
        (0, 0, 0, 0)
    );
    match acme.create("late", Limits::new()) {
        Err(CreateError::Offline { parent, name }) => {
            assert_eq!((parent, name.as_str()), (acme.clone(), "late"))
        }
        other => panic!("{other:?}"),
    }
    assert_sound(&runtime);
}

#[test]
fn a_tree_goes_as_one() {
    for runtime in runtimes() {
        let root = runtime.root();
        let other = Other::spawn();
        let acme = create(&root, "acme");
        let mut groups = vec![acme.clone()];
        let mut held = Vec::new();
        for number in 0..30_usize {
            let group = create(&groups[number / 2], &number.to_string());
            held.push(charge(&group, 5));
            held.push(other.with(&group, |group| charge(group, 6)));
            groups.push(group);
        }
        acme.offline_tree();
        acme.offline_tree();
        for group in &groups {
            assert!(group.is_offline() && group.children().is_empty());
            assert_refused(group, 1);
        }
        assert_eq!(
            (runtime.group_count(), root.live(), acme.live()),
            (1, 330, 330)
        );
        assert_sound(&runtime);
        drop(groups);
        drop(acme);
        other.run(move || drop(held));
    }
}

/// To read the tree settles nothing: a monitor that looks after each release costs no barrier.
#[test]
fn a_reader_runs_no_barrier() {
    let runtime = Runtime::builder()
        .adaptive(false)
        .audit(true)
        .build()
        .expect("a configuration");
    let root = runtime.root();
    // The first child takes the root's own stock.
    let _stays = create(&root, "stays");
    let before = runtime.counts().barriers;
    for number in 0..40 {
        let group = create(&root, &number.to_string());
        drop(charge(&group, 10));
        std::thread::scope(|scope| {
            scope
                .spawn(|| drop(charge(&group, 10)))
                .join()
                .expect("charged")
        });
        group.offline().expect("no children");
        assert_eq!((root.live(), root.usage()), (0, root.memory().stocked()));
        assert_eq!(root.inspect().live_local(), 0);
        assert_eq!(runtime.snapshot().rows()[0].live, 0);
    }
    assert!(runtime.verify().is_ok());
    assert_eq!(runtime.counts().barriers, before);
    assert!(root.usage() > 0 && root.usage() <= root.memory().stocked_bound());
    runtime.settle();
    assert_eq!(
        (
            runtime.counts().barriers,
            root.usage(),
            runtime.dying_count()
        ),
        (before + 1, 0, 0)
    );
}

/// A group that one barrier serves is one of 64, however many counters it has.
#[test]
fn at_most_64_groups_are_unsettled() {
    for further in 0..4 {
        let mut builder = Runtime::builder().adaptive(false);
        for number in 0..further {
            builder.counter(&format!("c{number}"), memcg::Unit::Bytes);
        }
        let runtime = builder.build().expect("a configuration");
        let _stays = create(&runtime.root(), "stays");
        let before = runtime.counts().barriers;
        for number in 1..=256 {
            let group = create(&runtime.root(), &number.to_string());
            drop(charge(&group, 10));
            std::thread::scope(|scope| {
                scope
                    .spawn(|| drop(charge(&group, 10)))
                    .join()
                    .expect("charged")
            });
            group.offline().expect("no children");
            drop(group);
            let barriers = runtime.counts().barriers - before;
            assert_eq!(
                (runtime.dying_count(), barriers),
                (number % 64, number as u64 / 64),
                "{further} further"
            );
        }
    }
}

/// A drain counts what it takes back of groups that have gone offline, wherever they are.
#[test]
fn a_drain_says_what_offline_groups_still_had() {
    for runtime in runtimes() {
        let root = runtime.root();
        let (left, right) = (create(&root, "left"), create(&root, "right"));
        let group = create(&left, "q");
        let mut held = vec![charge(&group, 1), charge(&group, 1)];
        let other = Other::spawn();
        held.extend((0..2).map(|_| other.with(&group, |group| charge(group, 1))));
        group.offline().expect("no children");
        let before = root.usage();
        let taken = right.memory().drain();
        assert_eq!((taken, root.usage()), (before - 4, 4));
        assert_sound(&runtime);
    }
}
