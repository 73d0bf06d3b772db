//! Objects that a group takes at its first use, and not before.

use memcg::{Event, Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey, Unit};

use super::{build, left_empty};

/// Groups and statistics of a shape that no other test of this program has: their pools are this
/// one's alone.
fn of_its_own(counters: usize) -> RuntimeBuilder {
    let mut builder = Runtime::builder();
    for number in 0..counters {
        let _counter = builder.counter(&format!("counter{number}"), memcg::Unit::Bytes);
        let _item = builder.stat(&format!("item{number}"), Unit::Events);
    }
    builder
}

/// Objects in use: of groups, and of statistics in all their pools.
fn objects(runtime: &Runtime) -> [u64; 2] {
    let pools = runtime.pools();
    ["group", "stats"].map(|name| {
        pools
            .rows()
            .iter()
            .filter(|row| row.name == name)
            .map(|row| row.live)
            .sum()
    })
}

/// Groups that no group counts anything in, and what is above them: no part and no count of events
/// is made for them.
#[test]
fn what_no_group_uses_is_not_made() {
    let runtime = left_empty(build(of_its_own(16).nodes(2)));
    let root = runtime.root();
    let before = objects(&runtime);
    let groups: Vec<Group> = (0..100)
        .map(|number| {
            root.create(&number.to_string(), Limits::new())
                .expect("a name")
        })
        .collect();
    for group in &groups {
        let held = group.charge(1).expect("no limit");
        assert_eq!(
            (
                group.read(Freshness::Exact).get(StatKey::ANON),
                group.events().get(Event::Max)
            ),
            (0, 0)
        );
        let _ = (
            group.waiting_count(),
            group.peak(),
            group.children(),
            group.path(),
        );
        drop(held);
    }
    assert_eq!(objects(&runtime), [before[0] + 100, before[1]]);
    groups
        .iter()
        .for_each(|group| group.offline().expect("no children"));
    drop(groups);
    runtime.settle();
    assert_eq!(objects(&runtime), before);
}
