//! The allocator gives so many blocks more, then none: whatever `create` asks for may be what is
//! refused.

use std::fmt::Write;

use memcg::errors::CreateError;
use memcg::{Bytes, Group, Limit, Limits, Runtime, RuntimeBuilder};

use crate::support::workers::Other;
use crate::{State, alone, assert_says, live, with_allocations};

/// Tables grow now and then, so some hundreds of groups, and more than one chunk holds.
const GROUPS: usize = 2_000;

/// The most that one `create` may ask for.
const ALLOCATIONS_MAX: u64 = 100;

/// Makes a group of that name with none, one, two … allocations until it is made. How often it was
/// refused.
fn create(runtime: &Runtime, parent: &Group, name: &str, limits: Limits) -> (Group, u64) {
    for given in 0..ALLOCATIONS_MAX {
        let before = State::of(runtime, parent);
        let (made, refused) = with_allocations(given, || parent.create(name, limits));
        match made {
            Ok(group) => {
                assert_eq!(
                    (&*group.name(), group.parent().as_ref()),
                    (name, Some(parent))
                );
                return (group, given);
            }
            Err(error) => {
                assert!(refused > 0, "nothing was refused: {error}");
                assert_says(&error, parent);
                assert_eq!(State::of(runtime, parent), before, "{error}");
                assert!(
                    parent.children().iter().all(|child| child.name() != name),
                    "{error}"
                );
            }
        }
    }
    panic!("{name} wants more than {ALLOCATIONS_MAX} allocations");
}

/// Groups one by one, each refused as often as it can be; then all go, and there is room for as
/// many.
fn make_and_throw_away(builder: RuntimeBuilder, long: bool) -> u64 {
    let runtime = builder
        .max(1 << 40)
        .build()
        .expect("a configuration that holds");
    let root = runtime.root();
    let mut groups = Vec::with_capacity(GROUPS);
    let mut refused = 0;
    let mut parent = root.clone();
    let mut name = String::with_capacity(256);
    for number in 0..GROUPS {
        name.clear();
        write!(
            name,
            "{}-{number}",
            if long {
                "a-name-that-is-longer-than-most".repeat(6)
            } else {
                String::from("q")
            }
        )
        .expect("a string takes text");
        let limits = match number % 3 {
            0 => Limits::new(),
            1 => Limits::new().max(1 << 20).low(100),
            _ => Limits::new().max(Limit::percent(10)).soft(5),
        };
        let (group, times) = create(&runtime, &parent, &name, limits);
        refused += times;
        if number % 50 == 0 {
            // Its first child comes next, for which it gives its own credit back.
            (0..2).for_each(|_| drop(group.charge(10).expect("room")));
            parent = if number % 100 == 0 {
                group.clone()
            } else {
                root.clone()
            };
        }
        groups.push(group);
        if number % 500 == 0 {
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "{verdict}");
        }
    }
    assert_eq!(runtime.group_count(), GROUPS + 1);
    for group in &groups {
        assert_eq!(runtime.group(&group.path()).as_ref(), Some(group));
        assert_eq!(runtime.find(group.id()).as_ref(), Some(group));
        drop(group.charge(10).expect("room"));
    }
    let in_use = live(&runtime);
    root.children().iter().for_each(Group::offline_tree);
    drop((groups, parent));
    runtime.settle();
    assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    // As many once more, in their place.
    let again: Vec<Group> = (0..GROUPS)
        .map(|number| {
            root.create(&number.to_string(), Limits::new())
                .expect("room")
        })
        .collect();
    // Of groups: no thread has charged these, so they have no statistics.
    assert_eq!(live(&runtime)[0], in_use[0]);
    drop(again);
    refused
}

#[test]
fn each_allocation_of_create_may_be_refused() {
    alone(
        "allocations::each_allocation_of_create_may_be_refused",
        || {
            for long in [false, true] {
                for adaptive in [false, true] {
                    let mut builder = Runtime::builder()
                        .batch(Bytes(64))
                        .adaptive(adaptive)
                        .audit(adaptive);
                    if long {
                        builder = builder.nodes(2);
                    }
                    if adaptive {
                        let _further = [
                            builder.counter("spill", memcg::Unit::Bytes),
                            builder.counter("sockets", memcg::Unit::Bytes),
                        ];
                    }
                    let refused = make_and_throw_away(builder, long);
                    println!("{refused} times refused, for {GROUPS} groups");
                    assert!(refused > 0, "nothing was ever asked for");
                }
            }
        },
    );
}

/// If memory is refused, the dying groups whose credit waits for a barrier are settled, without
/// more memory.
#[test]
fn create_is_refused_while_the_dying_wait_for_their_barrier() {
    alone(
        "allocations::create_is_refused_while_the_dying_wait_for_their_barrier",
        || {
            let runtime = Runtime::builder()
                .batch(Bytes(64))
                .build()
                .expect("a configuration that holds");
            let root = runtime.root();
            let other = Other::spawn();
            let mut refused = 0;
            let mut groups = Vec::with_capacity(GROUPS);
            for number in 0..GROUPS / 10 {
                for dying in 0..number % 60 {
                    let group = root
                        .create(&format!("dying{dying}"), Limits::new())
                        .expect("a name that is free");
                    drop(group.charge(10).expect("no limit"));
                    drop(group.charge(10).expect("no limit"));
                    other.with(&group, |group| {
                        (0..2).for_each(|_| drop(group.charge(10).expect("no limit")))
                    });
                    group.offline().expect("no children");
                }
                for given in 0..ALLOCATIONS_MAX {
                    let name = format!("q{number}");
                    match with_allocations(given, || root.create(&name, Limits::new())).0 {
                        Ok(group) => {
                            groups.push(group);
                            break;
                        }
                        Err(error) => {
                            assert_says(&error, &root);
                            refused += 1;
                        }
                    }
                }
                assert_eq!(groups.len(), number + 1);
            }
            println!("{refused} times refused, beside the dying");
            assert!(refused > 0, "nothing was ever asked for");
            runtime.settle();
            assert_eq!(
                (runtime.group_count(), runtime.dying_count()),
                (GROUPS / 10 + 1, 0)
            );
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "{verdict}");
        },
    );
}

/// An error that names the child has a copy of the name. Where there is no memory for that, the
/// error says so.
#[test]
fn the_name_in_an_error_may_be_refused_memory() {
    alone(
        "allocations::the_name_in_an_error_may_be_refused_memory",
        || {
            let runtime = Runtime::builder().groups_max(2).build().expect("no limit");
            let root = runtime.root();
            let parent = root.create("parent", Limits::new()).expect("room");
            let full = |given| with_allocations(given, || root.create("child", Limits::new()));
            let fault = |given| with_allocations(given, || root.create("a/b", Limits::new()));
            let percent = Limits::new().low(Limit::percent(10));
            let limit = |given| with_allocations(given, || root.create("child", percent));
            for (tried, answers) in [
                ("full", [full(0), full(ALLOCATIONS_MAX)]),
                ("a fault of the name", [fault(0), fault(ALLOCATIONS_MAX)]),
                ("a limit of nothing", [limit(0), limit(ALLOCATIONS_MAX)]),
            ] {
                let [none, enough] = answers.map(|(made, refused)| (made.is_err(), refused));
                assert!(none.0 && none.1 > 0, "{tried}: {none:?}");
                assert_eq!(enough, (true, 0), "{tried}");
            }
            parent.offline().expect("no children");
            let mut refused = 0;
            for given in 0..ALLOCATIONS_MAX {
                match with_allocations(given, || parent.create("child", Limits::new())) {
                    (Err(CreateError::Offline { name, .. }), 0) => {
                        assert_eq!(name, "child");
                        break;
                    }
                    (Err(CreateError::Memory { .. }), 1..) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert!(refused > 0, "nothing was ever asked for");
        },
    );
}
