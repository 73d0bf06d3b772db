//! What a group has from its first use on: several threads come first, and one of each is made.

use memcg::{Event, Freshness, Group, Limits, Runtime, RuntimeBuilder, Stat, Unit};

use super::{assert_empty, build};
use crate::support::crowds::crowd;

const ROUNDS: u64 = if cfg!(debug_assertions) { 200 } else { 10_000 };
const THREADS: usize = 4;

/// Groups and statistics of a shape that no other test of this program has: their pools are this one's alone.
fn of_its_own(counters: usize) -> RuntimeBuilder {
    let mut builder = Runtime::builder();
    for number in 0..counters {
        let _counter = builder.counter(&format!("counter{number}")).independent();
        let _item = builder.stat(&format!("item{number}"), Unit::Events);
    }
    builder
}

/// Objects in use: of groups, and of statistics in all their pools.
fn objects(runtime: &Runtime) -> [u64; 2] {
    let pools = runtime.pools();
    ["group", "stats"].map(|name| pools.rows().iter().filter(|row| row.name == name).map(|row| row.live).sum())
}

#[test]
fn many_come_first_and_nothing_is_made_twice_or_lost() {
    for (counters, nodes) in [(13, 1), (14, 2), (15, 8)] {
        let runtime = build(of_its_own(counters).nodes(nodes));
        let root = runtime.root();
        root.stat_add(Stat::FILE, 1);
        let before = objects(&runtime);
        crowd(
            THREADS,
            ROUNDS,
            |_| root.create("q", Limits::new().max(10)).expect("a name"),
            |who, group| {
                // Each begins with something else.
                for turn in 0..3 {
                    match (who + turn) % 3 {
                        0 => group.stat_add(Stat::ANON, 1),
                        1 => drop(group.try_charge(11).expect_err("10 of 10")),
                        _ => {
                            let window = group.peak_window();
                            let subscription = group.on_event(Event::Low, |_| ());
                            group.flush();
                            drop((window, subscription));
                        }
                    }
                }
            },
            |round, group, _| {
                let now = group.read(Freshness::Exact);
                assert_eq!((now.get(Stat::ANON), now.local(Stat::ANON)), (4, 4), "round {round}");
                assert_eq!((group.events().local().get(Event::Max), group.refused_count()), (4, 4), "round {round}");
                let [groups, parts] = objects(&runtime);
                assert_eq!(groups, before[0] + 1, "round {round}");
                assert!((1..=1 + nodes as u64).contains(&(parts - before[1])), "round {round}: {parts} parts");
                group.offline().expect("no children");
                drop(group);
                assert_eq!(objects(&runtime)[0], before[0], "round {round}");
            },
        );
        runtime.settle();
        root.flush();
        assert_eq!(objects(&runtime), before, "what was made goes with its group");
        assert_eq!(root.read(Freshness::Exact).get(Stat::ANON), 4 * ROUNDS as i64);
        assert_empty(&runtime);
    }
}

/// Groups that no group counts anything in, and what is above them: no part and no count of events is made for them.
#[test]
fn what_no_group_uses_is_not_made() {
    let runtime = build(of_its_own(16).nodes(2));
    let root = runtime.root();
    let before = objects(&runtime);
    let groups: Vec<Group> =
        (0..100).map(|number| root.create(&number.to_string(), Limits::new()).expect("a name")).collect();
    for group in &groups {
        let held = group.try_charge(1).expect("no limit");
        assert_eq!((group.read(Freshness::Exact).get(Stat::ANON), group.events().get(Event::Max)), (0, 0));
        let _ = (group.waiting_count(), group.peak(), group.children(), group.path());
        drop(held);
    }
    assert_eq!(objects(&runtime), [before[0] + 100, before[1]]);
    groups.iter().for_each(|group| group.offline().expect("no children"));
    drop(groups);
    runtime.settle();
    assert_eq!(objects(&runtime), before);
    assert_empty(&runtime);
}
