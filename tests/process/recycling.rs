//! Objects go back to the pool and come out of it clean.
//!
//! Pools are the process's: what is live in them is back where it was once all is given up. A
//! group's number, which its id shows, is that of its object. Each test counts what is live, so it
//! starts this program again for itself alone.

use memcg::barrier::BarrierMode;
use memcg::{Bytes, Charge, CounterKey, Group, GroupId, Limit, Limits, Runtime, RuntimeBuilder};

use crate::support::alone::alone;

/// Every kind of stock, on the hit path and beside it.
fn kinds() -> [RuntimeBuilder; 5] {
    let hits = Runtime::builder().batch(Bytes(64));
    let audited = hits.clone().audit(true);
    [
        hits.clone(),
        hits.adaptive(false),
        audited.clone(),
        audited.clone().adaptive(false),
        audited.barrier(BarrierMode::Fence),
    ]
}

fn build(builder: &RuntimeBuilder) -> Runtime {
    builder.clone().build().expect("a configuration that holds")
}

fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

fn charge(group: &Group, bytes: u64) -> Charge {
    group.charge(Bytes(bytes)).expect("room")
}

/// An id prints as `group NUMBER.GENERATION`.
fn number_and_generation(id: GroupId) -> (u32, u32) {
    let text = id.to_string();
    let numbers = text
        .strip_prefix("group ")
        .and_then(|numbers| numbers.split_once('.'))
        .expect("two numbers");
    (
        numbers.0.parse().expect("a number"),
        numbers.1.parse().expect("a generation"),
    )
}

/// Objects in use, of groups with one counter and with two, of their events and their statistics.
fn live() -> [Vec<u64>; 2] {
    let plain = Runtime::builder();
    let mut counted = plain.clone();
    let _spill = counted.counter("spill", memcg::Unit::Bytes);
    [plain, counted].map(|builder| {
        build(&builder)
            .pools()
            .rows()
            .iter()
            .map(|row| row.live)
            .collect()
    })
}

/// Whatever `work` makes is back in its pool when it is done.
#[track_caller]
fn assert_all_come_back(what: &str, work: impl FnOnce()) {
    let before = live();
    assert_eq!(live(), before, "a plain tree comes back");
    work();
    assert_eq!(live(), before, "{what}");
}

#[test]
fn an_idle_tree_goes_with_its_runtime() {
    alone("recycling::an_idle_tree_goes_with_its_runtime", &[], || {
        for builder in kinds() {
            assert_all_come_back("no thread had a handle", || {
                let mut builder = builder;
                let _spill = builder.counter("spill", memcg::Unit::Bytes);
                let runtime = build(&builder);
                let acme = create(&runtime.root(), "acme");
                (0..10)
                    .for_each(|number| drop(create(&create(&acme, &number.to_string()), "below")));
                drop(charge(&acme, 3));
            });
        }
    });
}

#[test]
fn a_refused_group_leaves_nothing() {
    alone("recycling::a_refused_group_leaves_nothing", &[], || {
        assert_all_come_back("groups that were not made", || {
            let mut builder = Runtime::builder().groups_max(3);
            let _spill = builder.counter("spill", memcg::Unit::Bytes);
            let runtime = build(&builder);
            let root = runtime.root();
            let acme = create(&root, "acme");
            for _ in 0..200 {
                assert!(root.create("acme", Limits::new()).is_err());
                assert!(
                    root.create("q", Limits::new().low(Limit::percent(5)))
                        .is_err()
                );
                assert!(root.create("a/b", Limits::new()).is_err());
            }
            let last = create(&acme, "last");
            (0..200).for_each(|_| assert!(last.create("more", Limits::new()).is_err()));
            last.offline().expect("no children");
            (0..200).for_each(|_| assert!(last.create("late", Limits::new()).is_err()));
        });
    });
}

/// Everything that keeps something, dropped in every order.
#[test]
fn the_order_of_drops_does_not_matter() {
    enum Keeps {
        Runtime(#[expect(dead_code)] Runtime),
        Group(#[expect(dead_code)] Group),
        Charge(#[expect(dead_code)] Charge),
    }
    alone("recycling::the_order_of_drops_does_not_matter", &[], || {
        let kinds = kinds();
        assert_all_come_back("after all orders", || {
            for order in 0..3 * 720_usize {
                let mut builder = kinds[order % kinds.len()].clone();
                let spill = builder.counter("spill", memcg::Unit::Bytes);
                let runtime = build(&builder);
                let acme = create(&runtime.root(), "acme");
                let query = create(&acme, "q17");
                let bytes = charge(&query, 10);
                let none = charge(&acme, 0);
                let theirs = query.clone();
                let other = std::thread::spawn(move || {
                    theirs.charge_set(&[(spill, 3), (CounterKey::MEMORY, 5)])
                });
                let spilt = other.join().expect("no panic").expect("room");
                let root = runtime.root();
                if order % 7 == 0 {
                    query.offline().expect("no children");
                }
                let mut keeps = vec![
                    Keeps::Runtime(runtime),
                    Keeps::Group(acme),
                    Keeps::Group(query),
                    Keeps::Charge(bytes),
                    Keeps::Charge(none),
                    Keeps::Group(root),
                ];
                keeps.extend(spilt.map(Keeps::Charge));
                let mut number = order;
                while !keeps.is_empty() {
                    let at = number % keeps.len();
                    number /= keeps.len();
                    drop(keeps.swap_remove(at));
                }
            }
        });
    });
}

/// Uses everything that a group has, so that there is something to clean.
fn wear(runtime: &Runtime, group: &Group, further: CounterKey) -> (Charge, Charge) {
    let below = create(group, "below");
    group
        .set_max("50%".parse::<Limit>().expect("a percentage"))
        .expect("the root has a max");
    group
        .set_limits(Limits::new().min("10%".parse::<Limit>().expect("a percentage")))
        .expect("the root has a max");
    group.set_limits(Limits::new().low(77)).expect("a number");
    below.set_limits(Limits::new().min(5)).expect("a number");
    group
        .counter(further)
        .expect("declared")
        .set_max(10)
        .expect("a number");
    group.memory().set_batch(16);
    let held = (group.force_charge(100_000), group.force_charge(3));
    assert!(group.charge(1).is_err() && below.charge(1).is_err());
    let theirs = group.clone();
    std::thread::spawn(move || drop(theirs.force_charge(40)))
        .join()
        .expect("no panic");
    assert!(group.charge_set(&[(further, 11)]).is_err());
    drop(group.charge_set(&[(further, 9)]).expect("room"));
    drop(group.memory().peak_window());
    below.offline().expect("no children");
    assert!(
        group.forced() > 0
            && group.peak() > 0
            && group.refused_count() == 2
            && runtime.root().memory().children_min_usage() > 0
    );
    held
}

#[test]
fn an_object_comes_back_clean() {
    alone("recycling::an_object_comes_back_clean", &[], || {
        for mut builder in kinds() {
            builder = builder.max(10_000);
            let further = builder.counter("spill", memcg::Unit::Bytes);
            let runtime = build(&builder);
            let root = runtime.root();
            let mut generations = 0;
            for round in 0..20 {
                let group = create(&root, "worn");
                let worn = number_and_generation(group.id());
                let id = group.id();
                let held = wear(&runtime, &group, further);
                group.offline().expect("no children");
                drop(group);
                runtime.settle();
                assert_eq!(runtime.find(id).map(|group| group.live()), Some(100_003));
                drop(held);
                assert_eq!(
                    (runtime.find(id), runtime.dying_count()),
                    (None, 0),
                    "round {round}"
                );
                assert_eq!(
                    (
                        root.usage(),
                        root.memory().children_min_usage(),
                        root.memory().children_low_usage()
                    ),
                    (0, 0, 0)
                );

                let group = create(&root, "next");
                let now = number_and_generation(group.id());
                assert_eq!(now.0, worn.0, "the same object");
                assert!(now.1 > worn.1, "another generation: {now:?} after {worn:?}");
                generations += now.1 - worn.1;
                assert_eq!(
                    runtime.find(id),
                    None,
                    "an old id does not find its object's next group"
                );
                assert_eq!(
                    (&*group.name(), group.parent(), group.is_offline()),
                    ("next", Some(root.clone()), false)
                );
                assert_eq!(
                    (group.max(), group.inspect().min(), group.inspect().low()),
                    (u64::MAX, 0, 0)
                );
                assert_eq!(
                    group.limits(),
                    Limits::new()
                        .max(Limit::Unlimited)
                        .min(0)
                        .low(0)
                        .soft(Limit::Unlimited)
                        .high(Limit::Unlimited),
                    "no percentage is left"
                );
                assert_eq!(
                    (
                        group.usage(),
                        group.live(),
                        group.memory().stocked(),
                        group.forced()
                    ),
                    (0, 0, 0, 0)
                );
                assert_eq!(
                    (
                        group.peak(),
                        group.memory().peak_window().peak(),
                        group.refused_count()
                    ),
                    (0, 0, 0)
                );
                assert_eq!(
                    (
                        group.memory().children_min_usage(),
                        group.memory().children_low_usage(),
                        group.children()
                    ),
                    (0, 0, Vec::new())
                );
                let spill = group.counter(further).expect("declared");
                assert_eq!(
                    (
                        spill.usage(),
                        spill.max(),
                        spill.peak(),
                        spill.refused_count(),
                        spill.forced()
                    ),
                    (0, u64::MAX, 0, 0, 0)
                );
                let verdict = runtime.verify();
                assert!(verdict.is_ok(), "{verdict}");
                // Its stock is the runtime's, and full of nothing.
                let one = charge(&group, 1);
                let theirs = group.clone();
                let two = std::thread::spawn(move || charge(&theirs, 2))
                    .join()
                    .expect("no panic");
                assert!(group.usage() <= 128 && group.live() == 3, "{group:?}");
                let verdict = runtime.verify();
                assert!(verdict.is_ok(), "{verdict}");
                drop((one, two));
                group.offline().expect("no children");
                drop(group);
                runtime.settle();
            }
            assert!(generations >= 20);
            runtime.settle();
            assert_eq!((runtime.dying_count(), root.usage()), (0, 0));
        }
    });
}

/// An object shows nothing of one kind of tree in another kind.
#[test]
fn kinds_share_the_pool() {
    alone("recycling::kinds_share_the_pool", &[], || {
        let kinds = kinds();
        assert_all_come_back("after all kinds", || {
            for round in 0..200_usize {
                let runtime = build(&kinds[round * 3 % kinds.len()]);
                let group = create(&runtime.root(), "q");
                let held: Vec<Charge> = (0..round as u64 % 9)
                    .map(|bytes| charge(&group, 20 * bytes))
                    .collect();
                let theirs = group.clone();
                std::thread::spawn(move || drop(charge(&theirs, 3)))
                    .join()
                    .expect("no panic");
                assert_eq!(group.live(), held.iter().map(Charge::bytes).sum::<u64>());
                let verdict = runtime.verify();
                assert!(verdict.is_ok(), "round {round}: {verdict}");
                if round % 2 == 0 {
                    drop(runtime);
                    drop(held);
                }
            }
        });
    });
}
