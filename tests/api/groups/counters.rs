//! Counters beside memory: a set is charged as one, a refusal says which counter was full.

use memcg::expert::{FixedBatch, Inspect};
use memcg::{
    Bytes, Charge, ChargeError, Counter, CounterConfig, Freshness, Group, Limit, Limits, PageCounter, Runtime,
    RuntimeBuilder, Stat,
};

use super::{Other, assert_empty, assert_sound, build, charge, create, kinds};

fn with_spill_and_swap(mut builder: RuntimeBuilder) -> (Runtime, [Counter; 3]) {
    let counters = [Counter::MEMORY, builder.counter("spill").independent(), builder.counter("swap").independent()];
    (build(builder), counters)
}

fn live(group: &Group, counters: [Counter; 3]) -> [u64; 3] {
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
        let amounts =
            move |bytes: [u64; 3]| [(counters[0], bytes[0]), (counters[1], bytes[1]), (counters[2], bytes[2])];
        let set = group.try_charge_set(&amounts([60, 70, 0])).expect("room");
        assert_eq!(counters.map(|counter| set.bytes(counter)), [60, 70, 0]);
        assert_eq!(live(&group, counters), [60, 70, 0]);
        for (full, name, bytes) in
            [(0, None, [41, 30, 100]), (1, Some("spill"), [40, 31, 100]), (2, Some("swap"), [40, 30, 101])]
        {
            let refused = other.with(&group, move |group| group.try_charge_set(&amounts(bytes)).expect_err("too much"));
            let ChargeError::Limit(refusal) = &refused else { panic!("{refused}") };
            assert_eq!((refusal.counter(), refusal.requested()), (name, bytes[full]));
            assert_eq!((refusal.group(), refusal.requester(), refusal.max()), (&group, &group, 100));
            assert_eq!(refused.to_string().contains(" of spill "), full == 1, "{refused}");
            assert_eq!(live(&group, counters), [60, 70, 0], "none of it is left");
            assert_eq!(group.counter(counters[full]).expect("declared").refused_count(), 1);
            assert_sound(&runtime);
        }
        let rest = other.with(&group, move |group| group.try_charge_set(&amounts([40, 30, 100])).expect("to the byte"));
        assert_eq!(live(&runtime.root(), counters), [100, 100, 100]);
        drop(set);
        assert_eq!(live(&group, counters), [40, 30, 100]);
        drop((rest, group));
        assert_empty(&runtime);
    }
}

#[test]
fn one_counter_may_stand_in_a_set_twice_or_not_at_all() {
    let (runtime, [memory, spill, swap]) = with_spill_and_swap(super::fixed());
    let root = runtime.root();
    let set = root.try_charge_set(&[(spill, 3), (memory, 5), (spill, 4)]).expect("room");
    assert_eq!((set.bytes(memory), set.bytes(spill), set.bytes(swap)), (5, 7, 0));
    let charges: Vec<(Counter, Charge)> = set.into_charges().collect();
    assert_eq!(
        charges.iter().map(|(counter, charge)| (*counter, charge.bytes())).collect::<Vec<_>>(),
        [(spill, 3), (memory, 5), (spill, 4)]
    );
    drop(root.try_charge_set(&[]).expect("nothing"));
    drop(charges);
    assert_empty(&runtime);
}

#[test]
fn every_counter_has_figures_of_its_own() {
    for builder in kinds() {
        let (runtime, [memory, spill, swap]) = with_spill_and_swap(builder);
        let group = create(&runtime.root(), "q");
        let names = [memory, spill, swap].map(|counter| group.counter(counter).expect("declared").name().to_string());
        assert_eq!(names, ["memory", "spill", "swap"]);
        let spilt = group.counter(spill).expect("declared");
        let window = spilt.peak_window();
        let held = group.try_charge_set(&[(spill, 30)]).expect("room");
        assert_eq!((spilt.live(), spilt.usage() - spilt.stocked()), (30, 30));
        assert!(spilt.peak() >= 30 && window.peak() >= 30 && spilt.stocked() <= spilt.stocked_bound());
        assert_eq!((group.usage(), group.peak()), (0, 0));
        assert_eq!(spilt.set_max(20).expect("a number"), 10);
        assert_eq!((spilt.max(), spilt.forced(), group.max()), (20, 10, u64::MAX));
        spilt.set_batch(0);
        spilt.drain();
        assert_eq!((spilt.usage(), spilt.stocked()), (30, 0));
        // A percentage of the same counter above.
        let half: Limit = "50%".parse().expect("a percentage");
        assert!(spilt.set_max(half).is_err(), "the root's spill has no max");
        runtime.root().counter(spill).expect("declared").set_max(80).expect("a number");
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
        let set = group.try_charge_set(&[(memory, 5), (spill, 7), (swap, 0)]).expect("room");
        let [memory, spill, swap]: [Charge; 3] =
            set.into_charges().map(|(_, charge)| charge).collect::<Vec<_>>().try_into().expect("three");
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
        assert_eq!(runtime.dying_count(), 1);
        drop(memory);
        drop(spill);
        let found = runtime.find(id).expect("kept by zero bytes of swap");
        assert_eq!((swap.group(), found.path().as_str(), found.is_offline()), (found.clone(), "/q", true));
        assert_sound(&runtime);
        drop(found);
        drop(swap);
        assert_eq!((runtime.find(id), runtime.dying_count()), (None, 0));
        let again = create(&runtime.root(), "q");
        assert_eq!(live(&again, [Counter::MEMORY; 3]), [0; 3]);
        drop((charge(&again, 5), again));
        assert_empty(&runtime);
    }
}

/// A counter is one builder's: another's of the same number is not taken for it.
#[test]
fn a_counter_of_another_builder_is_unknown() {
    let (mut ours, mut theirs) = (Runtime::builder(), Runtime::builder());
    let (spill, swap) = (ours.counter("spill").independent(), theirs.counter("swap").independent());
    let [ours, theirs] = [ours, theirs].map(|builder| builder.build().expect("a configuration"));
    assert_eq!(ours.root().counter(spill).expect("declared").name(), "spill");
    for unknown in [ours.root().counter(swap).map(drop), ours.root().try_charge_counter(swap, 1).map(drop)] {
        assert!(matches!(unknown, Err(ChargeError::UnknownCounter { counter: 1, .. })));
    }
    let held = [spill, Counter::MEMORY].map(|counter| ours.root().try_charge_counter(counter, 7).expect("room"));
    assert_eq!((held.map(|charge| charge.bytes()), ours.root().live()), ([7, 7], 0));
    assert!(matches!(ours.root().counter(swap), Err(ChargeError::UnknownCounter { counter: 1, .. })));
    assert!(theirs.root().try_charge_set(&[(Counter::MEMORY, 1), (spill, 1)]).is_err());
    assert_eq!(theirs.root().live(), 0);
}

/// A further counter has no place in reclaim: the group that is in excess is counted for memory alone.
#[test]
fn a_group_in_excess_is_so_for_memory_alone() {
    let mut builder = Runtime::builder().batch(Bytes(0)).audit(true);
    let spill = builder.counter("spill").independent();
    let runtime = builder.build().expect("a counter");
    let group = runtime.root().create("q", Limits::new().soft(5)).expect("a name");
    let held = group.try_charge_set(&[(Counter::MEMORY, 10), (spill, 10)]).expect("room");
    assert_eq!(runtime.root().descendants_in_excess(), 1);
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    drop(held);
    assert_eq!(runtime.root().descendants_in_excess(), 0);
}

/// What a figure of a counter alone says, that of a group's counter says.
fn figures<K>(counter: &PageCounter<K>) -> [u64; 7] {
    let stock = [counter.usage(), counter.live(), counter.stocked()];
    let [live, peak] = [stock[1], counter.peak()];
    [stock[0], live, stock[2], counter.forced(), peak, counter.max(), counter.failcnt()]
}

#[test]
fn the_counter_of_a_group_is_a_page_counter_that_keeps_the_group() {
    let (runtime, [memory, spill, _]) = with_spill_and_swap(super::fixed());
    let group = create(&runtime.root(), "q");
    let counters = [memory, spill].map(|counter| group.counter(counter).expect("declared"));
    let set = group.try_charge_set(&[(memory, 10), (spill, 10)]).expect("room");
    for counter in &counters {
        let alone = PageCounter::root(CounterConfig::new().batch(counter.batch()).adaptive(false)).child();
        alone.try_charge(10).expect("room");
        counter.set_max(300_000).expect("a number");
        alone.set_max(300_000).expect("room");
        assert_eq!(figures(counter), figures(&alone));
        assert_eq!(counter.drain(), alone.drain());
        assert_eq!(figures(counter), figures(&alone));
    }
    assert_eq!(counters.each_ref().map(|counter| counter.name().to_string()), ["memory", "spill"]);
    assert!(counters[0] == group.counter(memory).expect("declared") && counters[0] != counters[1]);
    // The statistics are the group's, whichever counter reads them.
    counters[1].stat_add(Stat::SOCK, 7);
    assert_eq!(counters.each_ref().map(|counter| counter.read(Freshness::Exact).get(Stat::SOCK)), [7, 7]);
    // The counter keeps the group's object, also offline.
    group.offline().expect("no children");
    drop((group, set));
    assert_eq!((runtime.dying_count(), counters[1].live()), (1, 0));
    drop(counters);
    runtime.settle();
    assert_empty(&runtime);
    assert_eq!(runtime.dying_count(), 0);
}

// === One stock for several counters ===

fn with_shared(mut builder: RuntimeBuilder) -> (Runtime, [Counter; 3]) {
    let counters = [Counter::MEMORY, builder.counter("memsw").shared(), builder.counter("spill").independent()];
    (build(builder), counters)
}

#[test]
fn one_hit_pays_for_all_counters_that_share_a_stock() {
    let (runtime, counters @ [memory, memsw, spill]) = with_shared(super::fixed());
    let group = create(&runtime.root(), "q");
    let both = [(memory, 10), (memsw, 10)];
    let first = group.try_charge_set(&both).expect("no limit");
    let usage = || counters.map(|counter| group.counter(counter).expect("declared").usage());
    assert_eq!((usage(), live(&group, counters)), ([64, 64, 0], [10, 10, 0]), "one batch for both");
    let second = group.try_charge_set(&[(memsw, 10), (spill, 3), (memory, 10)]).expect("no limit");
    assert_eq!((usage(), live(&group, counters)), ([64, 64, 64], [20, 20, 3]), "paid from it");
    assert_eq!(counters.map(|counter| second.bytes(counter)), [10, 10, 3]);
    let bound = |counter: Counter| group.counter(counter).expect("declared").stocked_bound();
    assert_eq!(counters.map(bound), [128, 128, 128]);
    drop(first);
    assert_eq!((usage()[..2].to_vec(), live(&group, counters)), (vec![64, 64], [10, 10, 3]));
    // Amounts that differ are charged one by one, each from a stock of its own.
    let uneven = group.try_charge_set(&[(memory, 7), (memsw, 8)]).expect("no limit");
    assert_eq!((usage()[..2].to_vec(), live(&group, counters)), (vec![128, 128], [17, 18, 3]));
    // What was charged as one is given back one by one, in parts and on other threads.
    let parts: Vec<(Counter, Charge)> = second.into_charges().collect();
    assert_eq!(
        parts.iter().map(|(of, charge)| (*of, charge.bytes())).collect::<Vec<_>>(),
        [(memory, 10), (memsw, 10), (spill, 3)]
    );
    assert_sound(&runtime);
    std::thread::spawn(move || drop(parts)).join().expect("dropped");
    assert_eq!(live(&group, counters), [7, 8, 0]);
    drop(uneven);
    group.counter(memsw).expect("declared").drain();
    assert_eq!(group.counter(memsw).expect("declared").usage(), 0, "a drain of either takes what both share");
    group.drain();
    assert_eq!(usage()[..2], [0, 0]);
    drop(group);
    assert_empty(&runtime);
}

#[test]
fn as_many_counters_share_as_can() {
    let mut builder = super::fixed();
    let shared = (1..64).map(|number| builder.counter(&format!("c{number}")).shared()).collect::<Vec<_>>();
    // The shared stock takes the place of one.
    let rest = (64..1_023).map(|number| builder.counter(&format!("c{number}")).independent()).collect::<Vec<_>>();
    let runtime = build(builder);
    let group = create(&runtime.root(), "q");
    let all: Vec<_> = [Counter::MEMORY].into_iter().chain(shared).map(|counter| (counter, 1)).collect();
    let held = [(); 2].map(|()| group.try_charge_set(&all).expect("no limit"));
    let last = rest[958];
    let alone = group.try_charge_set(&[(last, 1)]).expect("no limit");
    for &(counter, _) in &all {
        let counter = group.counter(counter).expect("declared");
        assert_eq!((counter.usage(), counter.live()), (64, 2), "{}: a batch for both charges", counter.name());
    }
    assert_eq!(live(&group, [Counter::MEMORY, all[63].0, last]), [2, 2, 1]);
    assert_sound(&runtime);
    drop((held, alone, group));
    assert_empty(&runtime);
}

#[test]
fn counters_of_two_builders_share_a_stock() {
    let mut builder = super::fixed();
    let swap = builder.counter("swap").shared();
    let mut later = builder.clone();
    let tier = later.counter("tier").shared();
    let foreign = builder.counter("tier").shared();
    let runtime = build(later);
    let group = create(&runtime.root(), "q");
    let all = [tier, Counter::MEMORY, swap];
    let held = [(); 2].map(|()| group.try_charge_set(&all.map(|counter| (counter, 3))).expect("no limit"));
    let usage = all.map(|counter| group.counter(counter).expect("declared").usage());
    assert_eq!((usage, live(&group, all)), ([64; 3], [6; 3]), "one batch for all, and one hit");
    let refused = group.try_charge_set(&[(Counter::MEMORY, 3), (swap, 3), (foreign, 3)]);
    assert!(matches!(refused, Err(ChargeError::UnknownCounter { counter: 2, .. })), "{refused:?}");
    assert_eq!(live(&group, all), [6; 3]);
    drop((held, group));
    assert_empty(&runtime);
}

#[test]
fn a_shared_stock_is_no_reason_to_refuse() {
    for builder in kinds() {
        let (runtime, [memory, memsw, _]) = with_shared(builder);
        let group = create(&runtime.root(), "q");
        group.counter(memsw).expect("declared").set_max(1_000).expect("a number");
        let other = Other::spawn();
        let both = move |bytes| [(memory, bytes), (memsw, bytes)];
        let held = other.with(&group, move |group| group.try_charge_set(&both(10)).expect("room"));
        let rest = group.try_charge_set(&both(990)).expect("credit of another thread's slot comes back");
        let refused = group.try_charge_set(&both(1)).expect_err("full");
        let ChargeError::Limit(refusal) = &refused else { panic!("{refused}") };
        assert_eq!((refusal.counter(), refusal.requested(), refusal.max()), (Some("memsw"), 1, 1_000));
        assert_eq!(group.live(), 1_000, "nothing of it stays at memory");
        // Memory alone has room still, and so has what another charge gives back.
        let alone = group.try_charge(5).expect("no limit");
        drop(held);
        let again = group.try_charge_set(&both(10)).expect("room again");
        assert_sound(&runtime);
        group.offline().expect("no children");
        assert!(matches!(group.try_charge_set(&both(1)), Err(ChargeError::Offline { .. })));
        assert_eq!((group.live(), runtime.dying_count()), (1_005, 1));
        drop((rest, alone, again, group, refused));
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_empty(&runtime);
    }
}

#[test]
fn threads_share_counters_that_share_a_stock() {
    const ROUNDS: u64 = 300;
    let (runtime, counters @ [memory, memsw, spill]) = with_shared(super::fixed());
    let root = runtime.root();
    root.counter(memsw).expect("declared").set_max(2_000).expect("a number");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let root = &root;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let group = create(root, &format!("{thread}"));
                    let bytes = round % 200 + 1;
                    let set = group.try_charge_set(&[(memory, bytes), (memsw, bytes), (spill, 1)]);
                    if round % 3 == 0 {
                        group.offline().expect("no children");
                        drop(set);
                    } else {
                        drop(set);
                        group.offline().expect("no children");
                    }
                    assert!(root.counter(memsw).expect("declared").usage() <= 2_000);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS / 4 {
                root.drain();
                runtime.settle();
            }
        });
    });
    runtime.settle();
    assert_eq!((live(&root, counters), runtime.dying_count()), ([0; 3], 0));
    assert_sound(&runtime);
    assert_empty(&runtime);
}
