//! Counters beside memory: a set is charged as one, a refusal says which counter was full.

use std::time::Duration;

use memcg::{
    Bytes, Charge, CounterConfig, CounterKey, Event, Freshness, Group, Limit, Limits, PageCounter,
    Runtime, RuntimeBuilder, StatKey, Unit,
};

use super::{Other, assert_empty, assert_sound, build, charge, create, kinds, left_empty};

fn with_spill_and_swap(mut builder: RuntimeBuilder) -> (Runtime, [CounterKey; 3]) {
    let counters = [
        CounterKey::MEMORY,
        builder.counter("spill", memcg::Unit::Bytes),
        builder.counter("swap", memcg::Unit::Bytes),
    ];
    (build(builder), counters)
}

fn live(group: &Group, counters: [CounterKey; 3]) -> [u64; 3] {
    counters.map(|counter| group.counter(counter).expect("declared").live())
}

#[test]
fn a_set_is_charged_as_one() {
    for builder in kinds() {
        let (runtime, counters) = with_spill_and_swap(builder);
        let group = create(&runtime.root(), "q");
        let other = Other::spawn();
        for counter in counters {
            let limited = group.counter(counter).expect("declared");
            assert_eq!(limited.set_max(100).expect("a number"), 0);
        }
        let amounts = move |bytes: [u64; 3]| {
            [
                (counters[0], Bytes(bytes[0])),
                (counters[1], Bytes(bytes[1])),
                (counters[2], Bytes(bytes[2])),
            ]
        };
        let set = group.charge_set(&amounts([60, 70, 0])).expect("room");
        assert_eq!(set.each_ref().map(Charge::bytes), [60, 70, 0]);
        assert_eq!(live(&group, counters), [60, 70, 0]);
        for (full, name, bytes) in [
            (0, None, [41, 30, 100]),
            (1, Some("spill"), [40, 31, 100]),
            (2, Some("swap"), [40, 30, 101]),
        ] {
            let refused = other.with(&group, move |group| {
                group.charge_set(&amounts(bytes)).expect_err("too much")
            });
            let Some(refusal) = refused.over_limit() else {
                panic!("{refused}")
            };
            assert_eq!(
                (refusal.counter(), refusal.requested()),
                (name, bytes[full])
            );
            assert_eq!(
                (refusal.group(), refusal.requester(), refusal.max()),
                (&group, &group, 100)
            );
            assert_eq!(
                refused.to_string().contains(" of spill "),
                full == 1,
                "{refused}"
            );
            assert_eq!(live(&group, counters), [60, 70, 0], "none of it is left");
            assert_eq!(
                group
                    .counter(counters[full])
                    .expect("declared")
                    .refused_count(),
                1
            );
            assert_sound(&runtime);
        }
        let rest = other.with(&group, move |group| {
            group
                .charge_set(&amounts([40, 30, 100]))
                .expect("to the byte")
        });
        assert_eq!(live(&runtime.root(), counters), [100, 100, 100]);
        drop(set);
        assert_eq!(live(&group, counters), [40, 30, 100]);
        drop((rest, group));
        assert_empty(&runtime);
    }
}

#[test]
fn one_counter_may_stand_in_a_set_twice_or_not_at_all() {
    let (runtime, counters @ [memory, spill, _]) = with_spill_and_swap(super::fixed());
    let root = runtime.root();
    let set = root
        .charge_set(&[(spill, 3), (memory, 5), (spill, 4)])
        .expect("room");
    assert_eq!(
        (set.each_ref().map(Charge::bytes), live(&root, counters)),
        ([3, 5, 4], [5, 7, 0])
    );
    let [] = root
        .charge_set(&[] as &[(CounterKey, Bytes); 0])
        .expect("nothing");
    drop(set);
    assert_empty(&runtime);
}

/// As many counters as the program finds when it runs: charged as one, in their order, also where
/// they are more than lie in the value.
#[test]
fn a_slice_is_charged_as_one() {
    for count in [0, 1, 4, 5, 7] {
        let mut builder = Runtime::builder();
        let mut counters = vec![CounterKey::MEMORY];
        counters.extend((1..7).map(|number| builder.counter(&format!("c{number}"), Unit::Events)));
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let amounts: Vec<_> = counters[..count]
            .iter()
            .enumerate()
            .map(|(at, &counter)| (counter, Bytes(at as u64 + 1)))
            .collect();
        let live = || {
            counters
                .iter()
                .map(|&counter| group.counter(counter).expect("declared").live())
        };
        let held = |count: usize| (0..7).map(move |at| if at < count { at as u64 + 1 } else { 0 });
        let charges = group.charge_set(amounts.as_slice()).expect("no limit");
        assert!(charges.iter().map(Charge::bytes).eq(1..=count as u64));
        assert!(live().eq(held(count)));
        drop(charges);
        for &full in &counters[..count] {
            let full = group.counter(full).expect("declared");
            full.set_max(0).expect("a number");
            // The first of these finds no mark, the second the one that the first has left.
            for _ in 0..2 {
                let refused = group
                    .try_charge_set(amounts.as_slice())
                    .expect_err("one is full");
                let refusal = refused.over_limit().expect("a refusal");
                assert_eq!(refusal.counter().unwrap_or("memory"), full.name());
                assert!(live().all(|units| units == 0), "none of it is left");
            }
            full.set_max(Limit::Unlimited).expect("a number");
        }
        let mut left = group
            .try_charge_set(amounts.as_slice())
            .expect("no limit")
            .into_iter();
        assert_eq!(left.len(), count);
        drop(left.next());
        drop(left);
        assert!(live().all(|units| units == 0));
        drop(group);
        assert_empty(&runtime);
    }
}

/// The counter that lacks room is charged first where it has refused before. What is charged of a
/// set and what is not does not depend on that. Where one counter alone lacks room, that one is
/// named; of several one of these.
#[test]
fn a_set_names_a_counter_that_lacks_room_with_a_mark_and_without() {
    let (runtime, counters @ [memory, spill, swap]) = with_spill_and_swap(super::fixed());
    let group = create(&runtime.root(), "q");
    for (counter, max) in [(memory, 10), (spill, 20), (swap, 30)] {
        group
            .counter(counter)
            .expect("declared")
            .set_max(max)
            .expect("a number");
    }
    let set = |bytes: [u64; 3]| {
        let charged = group.try_charge_set(&[
            (memory, Bytes(bytes[0])),
            (spill, Bytes(bytes[1])),
            (swap, Bytes(bytes[2])),
        ]);
        charged.map_err(|refused| {
            let refusal = refused.over_limit().expect("a refusal");
            refusal.counter().unwrap_or("memory").to_owned()
        })
    };
    for turn in 1..4 {
        for (bytes, full) in [
            ([11, 1, 1], &["memory"][..]),
            ([1, 21, 1], &["spill"]),
            ([1, 1, 31], &["swap"]),
            ([11, 21, 1], &["memory", "spill"]),
            ([11, 21, 31], &["memory", "spill", "swap"]),
        ] {
            let named = set(bytes).map(drop).expect_err("no room");
            assert!(full.contains(&named.as_str()), "{named}: {bytes:?}");
            assert_eq!(live(&group, counters), [0; 3]);
        }
        let refused =
            counters.map(|counter| group.counter(counter).expect("declared").refused_count());
        assert_eq!(refused.iter().sum::<u64>(), 5 * turn, "each by one counter");
        assert!(
            refused.iter().all(|&refused| refused >= turn),
            "{refused:?}"
        );
        let held = set([10, 20, 30]).expect("to the byte, whatever has refused");
        assert_eq!(live(&group, counters), [10, 20, 30]);
        drop((held, set([0; 3]).expect("nothing fits everywhere")));
        assert_eq!(live(&group, counters), [0; 3]);
    }
    assert_sound(&runtime);
}

/// A counter that refuses says so, by whatever call.
#[test]
fn every_refusal_of_a_further_counter_is_an_event() {
    let (runtime, [memory, spill, _]) = with_spill_and_swap(super::fixed());
    let root = runtime.root();
    let group = create(&root, "q");
    let spilt = group.counter(spill).expect("declared");
    spilt.set_max(10).expect("a number");
    let events = spilt.events();
    let calls: [&dyn Fn() -> bool; 4] = [
        &|| group.charge_set(&[(memory, 1), (spill, 11)]).is_ok(),
        &|| group.try_charge_set(&[(memory, 1), (spill, 11)]).is_ok(),
        &|| spilt.raw().charge(11).is_ok(),
        &|| spilt.raw().try_charge(11).is_ok(),
    ];
    for (before, call) in calls.iter().enumerate() {
        assert_eq!(spilt.events().get(Event::Max), before as u64);
        assert!(!call());
    }
    assert!(events.wait(Event::Max, Duration::ZERO));
    assert_eq!(
        root.counter(spill)
            .expect("declared")
            .events()
            .get(Event::Max),
        4
    );
    assert_eq!(
        root.events().get(Event::Max),
        0,
        "memory has refused nothing"
    );
    assert_eq!((spilt.refused_count(), spilt.headroom()), (4, 10));
}

/// Amounts without a guard, of one counter.
#[test]
fn a_further_counter_is_charged_without_a_guard() {
    for builder in kinds() {
        let (runtime, counters @ [_, spill, _]) = with_spill_and_swap(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        assert_eq!(group.counter_key("spill"), Some(spill));
        let spilt = group.counter(spill).expect("declared");
        root.counter(spill)
            .expect("declared")
            .set_max(10)
            .expect("a number");
        spilt.raw().try_charge(6).expect("room");
        spilt.raw().charge(1).expect("room");
        assert!(spilt.raw().try_charge(4).is_err());
        assert_eq!(spilt.raw().force_charge(4), 4);
        assert_eq!(live(&group, counters), [0, 11, 0]);
        spilt.raw().uncharge(11);
        assert_eq!(live(&root, counters), [0; 3]);
        // They keep the group, as those of a guard do.
        spilt.raw().charge(2).expect("room");
        group.offline().expect("no children");
        assert!(spilt.raw().try_charge(1).is_err());
        spilt.raw().uncharge(2);
        drop((spilt, group));
        assert_empty(&runtime);
    }
}

#[test]
fn every_counter_has_figures_of_its_own() {
    for builder in kinds() {
        let (runtime, [memory, spill, swap]) = with_spill_and_swap(builder);
        let group = create(&runtime.root(), "q");
        let names = [memory, spill, swap]
            .map(|counter| group.counter(counter).expect("declared").name().to_string());
        assert_eq!(names, ["memory", "spill", "swap"]);
        let spilt = group.counter(spill).expect("declared");
        let window = spilt.peak_window();
        let held = group.charge_set(&[(spill, 30)]).expect("room");
        assert_eq!((spilt.live(), spilt.usage() - spilt.stocked()), (30, 30));
        assert!(
            spilt.peak() >= 30 && window.peak() >= 30 && spilt.stocked() <= spilt.stocked_bound()
        );
        assert_eq!((group.usage(), group.peak()), (0, 0));
        assert_eq!(spilt.set_max(20).expect("a number"), 10);
        assert_eq!(
            (spilt.max(), spilt.forced(), group.max()),
            (20, 10, u64::MAX)
        );
        spilt.set_batch(0);
        spilt.drain();
        assert_eq!((spilt.usage(), spilt.stocked()), (30, 0));
        // A percentage of the same counter above.
        let half: Limit = "50%".parse().expect("a percentage");
        assert!(spilt.set_max(half).is_err(), "the root's spill has no max");
        runtime
            .root()
            .counter(spill)
            .expect("declared")
            .set_max(80)
            .expect("a number");
        spilt.set_max(half).expect("of 80");
        assert_eq!((spilt.max(), runtime.root().max()), (40, u64::MAX));
        drop((window, held, group));
        assert_empty(&runtime);
    }
}

/// Each counter of a group is an object of its own: the last of any of them is waited for.
#[test]
fn a_group_stays_until_its_last_counter_is_free() {
    for builder in kinds() {
        let (runtime, [memory, spill, swap]) = with_spill_and_swap(builder);
        let group = create(&runtime.root(), "q");
        let id = group.id();
        let [memory, spill, swap] = group
            .charge_set(&[(memory, 5), (spill, 7), (swap, 0)])
            .expect("room");
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
        assert_eq!(runtime.dying_count(), 1);
        drop(memory);
        drop(spill);
        let found = runtime.find(id).expect("kept by zero bytes of swap");
        assert_eq!(
            (swap.group(), found.path().as_str(), found.is_offline()),
            (found.clone(), "/q", true)
        );
        assert_sound(&runtime);
        drop(found);
        drop(swap);
        assert_eq!((runtime.find(id), runtime.dying_count()), (None, 0));
        let again = create(&runtime.root(), "q");
        assert_eq!(live(&again, [CounterKey::MEMORY; 3]), [0; 3]);
        drop((charge(&again, 5), again));
        assert_empty(&runtime);
    }
}

/// A counter is one builder's: another's of the same number is not taken for it.
#[test]
fn a_counter_of_another_builder_is_unknown() {
    let mut ours = Runtime::builder();
    let mut theirs = Runtime::builder();
    let spill = ours.counter("spill", memcg::Unit::Bytes);
    let swap = theirs.counter("swap", memcg::Unit::Bytes);
    let [ours, theirs] = [ours, theirs].map(|builder| builder.build().expect("a configuration"));
    assert_eq!(
        ours.root().counter(spill).expect("declared").name(),
        "spill"
    );
    for unknown in [
        ours.root().counter(swap).map(drop),
        ours.root().charge_set(&[(swap, 1)]).map(drop),
    ] {
        assert!(matches!(&unknown, Err(error) if error.is_other_runtime()));
    }
    let held = [spill, CounterKey::MEMORY]
        .map(|counter| ours.root().charge_set(&[(counter, 7)]).expect("room"));
    assert_eq!(
        (held.map(|[charge]| charge.bytes()), ours.root().live()),
        ([7, 7], 0)
    );
    assert!(matches!(ours.root().counter(swap), Err(error) if error.is_other_runtime()));
    assert!(
        theirs
            .root()
            .charge_set(&[(CounterKey::MEMORY, 1), (spill, 1)])
            .is_err()
    );
    assert_eq!(theirs.root().live(), 0);
}

/// A further counter has no place in reclaim: the group that is in excess is counted for memory
/// alone.
#[test]
fn a_group_in_excess_is_so_for_memory_alone() {
    let mut builder = Runtime::builder().batch(Bytes(0)).audit(true);
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = builder.build().expect("a counter");
    let group = runtime
        .root()
        .create("q", Limits::new().soft(5))
        .expect("a name");
    let held = group
        .charge_set(&[(CounterKey::MEMORY, 10), (spill, 10)])
        .expect("room");
    assert_eq!(runtime.root().inspect().descendants_in_excess(), 1);
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    drop(held);
    assert_eq!(runtime.root().inspect().descendants_in_excess(), 0);
}

/// Each figure of a counter alone, and the same figure of a group's counter.
fn figures<K>(counter: &PageCounter<K>) -> [u64; 7] {
    let stock = [counter.usage(), counter.live(), counter.stocked()];
    let [live, peak] = [stock[1], counter.peak()];
    [
        stock[0],
        live,
        stock[2],
        counter.forced(),
        peak,
        counter.max(),
        counter.refused_count(),
    ]
}

#[test]
fn the_counter_of_a_group_is_a_page_counter_that_keeps_the_group() {
    let (runtime, [memory, spill, _]) = with_spill_and_swap(super::fixed());
    let group = create(&runtime.root(), "q");
    let counters = [memory, spill].map(|counter| group.counter(counter).expect("declared"));
    let set = group
        .charge_set(&[(memory, 10), (spill, 10)])
        .expect("room");
    for counter in &counters {
        let alone =
            PageCounter::root(CounterConfig::new().batch(counter.batch()).adaptive(false)).child();
        alone.charge(10).expect("room");
        counter.set_max(300_000).expect("a number");
        alone.set_max(300_000).expect("room");
        assert_eq!(figures(counter), figures(&alone));
        assert_eq!(counter.drain(), alone.drain());
        assert_eq!(figures(counter), figures(&alone));
    }
    assert_eq!(
        counters
            .each_ref()
            .map(|counter| counter.name().to_string()),
        ["memory", "spill"]
    );
    assert!(counters[0] == group.counter(memory).expect("declared") && counters[0] != counters[1]);
    // The statistics are the group's, whichever counter reads them.
    counters[1].stat_add(StatKey::SOCK, 7);
    assert_eq!(
        counters
            .each_ref()
            .map(|counter| counter.read(Freshness::Exact).get(StatKey::SOCK)),
        [7, 7]
    );
    // The counter keeps the group's object, also offline.
    group.offline().expect("no children");
    drop((group, set));
    assert_eq!((runtime.dying_count(), counters[1].live()), (1, 0));
    drop(counters);
    runtime.settle();
    assert_empty(&runtime);
    assert_eq!(runtime.dying_count(), 0);
}

/// Whatever the caller takes out of a set, and in whichever order: each charge gives its own bytes
/// back.
#[test]
fn a_set_that_is_taken_apart_loses_no_bytes() {
    for builder in kinds() {
        let (runtime, counters) = with_spill_and_swap(builder);
        let group = create(&runtime.root(), "q");
        let charge = || {
            group
                .charge_set(&counters.map(|counter| (counter, 10)))
                .expect("room")
        };
        let first = charge().into_iter().next();
        assert_eq!(
            live(&group, counters),
            [10, 0, 0],
            "the iterator has dropped the others"
        );
        let [_, second, _] = charge();
        assert_eq!(live(&group, counters), [10, 10, 0]);
        let [third, ..] = charge();
        let moved = std::thread::spawn(move || third.bytes());
        assert_eq!(moved.join().expect("dropped there"), 10);
        drop((first, second));
        assert_eq!(live(&group, counters), [0; 3]);
        assert_sound(&runtime);
        drop(group);
        assert_empty(&runtime);
    }
}

/// Each counter of a set has a stock of its own, which its part of the set hits.
#[test]
fn each_counter_of_a_set_hits_its_own_stock() {
    let (runtime, counters) = with_spill_and_swap(super::fixed());
    let group = create(&runtime.root(), "q");
    let usage = || counters.map(|counter| group.counter(counter).expect("declared").usage());
    let first = group
        .charge_set(&counters.map(|counter| (counter, 10)))
        .expect("no limit");
    assert_eq!(
        (usage(), live(&group, counters)),
        ([64; 3], [10; 3]),
        "a batch each"
    );
    let second = group
        .charge_set(&counters.map(|counter| (counter, 20)))
        .expect("no limit");
    assert_eq!(
        (usage(), live(&group, counters)),
        ([64; 3], [30; 3]),
        "paid from it"
    );
    drop((first, second));
    assert_eq!(
        (usage(), live(&group, counters)),
        ([64; 3], [0; 3]),
        "and kept for the next set"
    );
    group.counter(counters[1]).expect("declared").drain();
    assert_eq!(
        usage(),
        [64, 0, 64],
        "a drain takes the credit of one counter"
    );
    drop(group);
    assert_empty(&runtime);
}

#[test]
fn a_group_has_as_many_counters_as_can_be() {
    let mut builder = super::fixed();
    let declared: Vec<CounterKey> = (1..1_024)
        .map(|number| builder.counter(&format!("c{number}"), memcg::Unit::Bytes))
        .collect();
    let runtime = left_empty(build(builder));
    let group = create(&runtime.root(), "q");
    let set = [
        declared[1_022],
        declared[511],
        CounterKey::MEMORY,
        declared[0],
    ];
    let _held = group
        .charge_set(&set.map(|counter| (counter, 3)))
        .expect("no limit");
    let names = set.map(|counter| group.counter(counter).expect("declared").name().to_string());
    assert_eq!(names, ["c1023", "c512", "memory", "c1"]);
    let counters = [CounterKey::MEMORY].into_iter().chain(declared);
    let live: Vec<u64> = counters
        .map(|counter| group.counter(counter).expect("declared").live())
        .collect();
    let charged: Vec<usize> = (0..1_024).filter(|&number| live[number] == 3).collect();
    assert_eq!(
        (charged, live.iter().sum::<u64>()),
        (vec![0, 1, 512, 1_023], 12)
    );
    assert_sound(&runtime);
}
