//! Items of another builder: they count nothing, and that is counted.

use memcg::{Freshness, Group, Runtime, RuntimeBuilder, StatKey, Unit};

use super::{assert_exact, build, charge};

fn with(names: &[&str]) -> (RuntimeBuilder, Vec<StatKey>) {
    let mut builder = Runtime::builder();
    let stats = names
        .iter()
        .map(|name| builder.stat(name, Unit::Events))
        .collect();
    (builder, stats)
}

/// The item is none of the runtime's: neither read nor counted, and each addition is told.
#[track_caller]
fn assert_foreign(runtime: &Runtime, group: &Group, stat: StatKey) {
    let before = runtime.counts();
    let all = || {
        runtime
            .items()
            .map(|item| group.read(Freshness::Exact).get(item.stat))
            .collect::<Vec<_>>()
    };
    let exact = all();
    group.stat_add(stat, 5);
    charge(group, 0).stat_add(stat, -7);
    group.stat_add(stat, 0);
    let now = group.read(Freshness::Exact);
    assert_eq!((now.get(stat), now.local(stat)), (0, 0), "{stat:?}");
    assert_eq!(now.max_error_of(stat), 0);
    assert_eq!(all(), exact, "{stat:?} was counted as something else");
    assert_eq!(runtime.counts().foreign_stats - before.foreign_stats, 3);
    assert!(runtime.items().all(|item| item.stat != stat));
}

#[test]
fn an_item_of_another_builder_counts_nothing() {
    let (ours, our) = with(&["rows", "hits"]);
    let (theirs, their) = with(&["rows", "hits", "more"]);
    let ours = build(ours);
    let theirs = build(theirs);
    for stat in &their {
        // On cells that are not there yet, and on cells that are.
        assert_foreign(&ours, &ours.root(), *stat);
        ours.root().stat_add(our[0], 1);
    }
    for stat in &our {
        assert_foreign(&theirs, &theirs.root(), *stat);
    }
    assert_exact(&ours.root(), our[0], 3, 3);
    assert_exact(&ours.root(), our[1], 0, 0);
    // Those built in are every thread's.
    for runtime in [&ours, &theirs] {
        runtime.root().stat_add(StatKey::ANON, 9);
        assert_exact(&runtime.root(), StatKey::ANON, 9, 9);
    }
}

/// Two runtimes of one configuration share its items and count apart.
#[test]
fn a_clone_keeps_the_items_declared_before() {
    let (builder, stats) = with(&["rows", "hits"]);
    let runtimes = [build(builder.clone()), build(builder)];
    for (runtime, delta) in runtimes.iter().zip([3, 40]) {
        for &stat in &stats {
            runtime.root().stat_add(stat, delta);
        }
    }
    for (runtime, delta) in runtimes.iter().zip([3, 40]) {
        for &stat in &stats {
            assert_exact(&runtime.root(), stat, delta, delta);
        }
        assert_eq!(runtime.counts().foreign_stats, 0);
    }
}

/// Declared on one of the two, it is the other's as little as any thread's.
#[test]
fn an_item_declared_on_a_clone_is_the_clones_alone() {
    let (mut one, before) = with(&["rows"]);
    let two = one.clone();
    let late = one.stat("late", Unit::Events);
    let one = build(one);
    let two = build(two);
    one.root().stat_add(late, 11);
    assert_exact(&one.root(), late, 11, 11);
    assert_foreign(&two, &two.root(), late);
    two.root().stat_add(before[0], 4);
    assert_exact(&two.root(), before[0], 4, 4);
    assert_foreign(&two, &two.root(), late);
}

/// Two items that two clones declared are two items, even where they have the same number and the
/// same name.
#[test]
fn clones_declare_items_of_their_own() {
    let (mut one, _) = with(&["rows"]);
    let mut two = one.clone();
    let bytes = one.stat("late", Unit::Bytes);
    let events = two.stat("late", Unit::Events);
    assert_ne!(bytes, events);
    let one = build(one);
    let two = build(two);
    assert_foreign(&two, &two.root(), bytes);
    assert_foreign(&one, &one.root(), events);
    one.root().stat_add(bytes, 11);
    two.root().stat_add(events, 12);
    assert_exact(&one.root(), bytes, 11, 11);
    assert_exact(&two.root(), events, 12, 12);
}
