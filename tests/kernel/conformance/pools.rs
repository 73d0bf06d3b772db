//! Statements 101 and 102: objects of groups and of their parts, and where they come from. The
//! sizes of the patch series are reckoned in `src/pool/shape.rs`.

use memcg::footprint::{PoolAlign, PoolRow};
use memcg::kmem::NodeId;
use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey};

/// 10^5 in release builds.
const GROUPS: u64 = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};

/// A shape that no other test has: its counts are this one's alone.
fn of_its_own(counters: usize) -> RuntimeBuilder {
    let mut builder = Runtime::builder();
    for number in 1..counters {
        let _counter = builder.counter(&number.to_string(), memcg::Unit::Bytes);
    }
    builder
}

fn groups_of(runtime: &Runtime) -> PoolRow {
    runtime.pools().rows()[0].clone()
}

/// Chunks of so many objects, and one more for each thread that keeps some at hand.
#[test]
fn s101_a_group_takes_its_lines_and_no_more() {
    for (counters, align) in [(7, PoolAlign::CacheLine), (8, PoolAlign::Packed)] {
        let runtime = of_its_own(counters)
            .pool_align(align)
            .build()
            .expect("a configuration");
        let root = runtime.root();
        let mut chunks = 0;
        for round in 0..3 {
            let groups: Vec<Group> = (0..GROUPS)
                .map(|number| {
                    root.create(&number.to_string(), Limits::new())
                        .expect("room")
                })
                .collect();
            let row = groups_of(&runtime);
            assert_eq!(row.live, GROUPS + 1);
            assert_eq!(row.given, row.asked.next_multiple_of(row.align));
            assert!(row.objects_per_chunk * row.given <= row.chunk);
            let least = (GROUPS as usize + 1).div_ceil(row.objects_per_chunk);
            assert!((least..=least + 1).contains(&row.chunks), "{row:?}");
            // Made once, taken again.
            assert!(round == 0 || row.chunks == chunks, "{row:?}");
            chunks = row.chunks;
            groups
                .iter()
                .for_each(|group| group.offline().expect("no children"));
            drop(groups);
            assert_eq!(groups_of(&runtime).live, 1);
        }
    }
}

#[test]
fn s101_what_is_taken_again_is_as_new() {
    let runtime = of_its_own(9).nodes(2).build().expect("a configuration");
    let root = runtime.root();
    let (new, ids): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let group = root.create("q", Limits::new()).expect("room");
            let new = (
                group.max(),
                group.inspect().min(),
                group.inspect().low(),
                group.inspect().high(),
                group.live(),
                group.peak(),
            );
            let stats = group.read(Freshness::Exact);
            assert!(
                runtime.items().all(|item| stats.get(item.stat) == 0),
                "{stats:?}"
            );
            assert_eq!(group.memory().stocked(), 0);
            // Everything that can be said of a group is changed.
            group.set_max(1 << 20).expect("nothing is charged");
            group.set_limits(Limits::new().min(100)).expect("a number");
            group.set_limits(Limits::new().low(200)).expect("a number");
            group
                .set_limits(Limits::new().high(1 << 19))
                .expect("a number");
            group.stat_add(StatKey::ANON, 5_000);
            let held = group.charge(300_000).expect("room");
            assert!(group.charge(1 << 20).is_err());
            drop(held);
            group.offline().expect("no children");
            (new, group.id())
        })
        .unzip();
    assert_eq!(new[0], new[1]);
    assert_ne!(ids[0], ids[1], "the same object, another group");
    assert_eq!(runtime.find(ids[1]), None);
}

/// A configuration has no groups: `build` makes the pools, takes the root from them, and gives both
/// or neither.
#[test]
fn s102_the_root_comes_from_the_pool() {
    let runtime = of_its_own(10).build().expect("a configuration");
    let row = groups_of(&runtime);
    assert_eq!((row.live, row.chunks), (1, 1));
    assert_eq!(row.free, row.objects_per_chunk as u64 - 1);
}

/// Sizes are reckoned once, from what is configured.
#[test]
fn s101_pools_of_one_two_and_eight_nodes() {
    let row_of = |nodes: usize| {
        let runtime = of_its_own(11)
            .nodes(nodes)
            .build()
            .expect("a configuration");
        runtime.pools().rows().to_vec()
    };
    let tables = [1, 2, 8].map(row_of);
    // A pointer for each node, where there is more than one.
    let asked = tables.each_ref().map(|rows| rows[0].asked);
    assert_eq!((asked[1] - asked[0], asked[2] - asked[1]), (2 * 8, 6 * 8));
    for (rows, nodes) in tables.iter().zip([0_u16, 2, 8]) {
        let stats = rows.iter().filter(|row| row.name == "stats");
        let on: Vec<_> = stats.map(|row| row.node).collect();
        let all: Vec<_> = std::iter::once(None)
            .chain((0..nodes).map(|node| Some(NodeId::new(node))))
            .collect();
        assert_eq!(on, all);
        assert!(
            rows.iter()
                .all(|row| row.size_class().is_power_of_two()
                    || [96, 192].contains(&row.size_class()))
        );
        assert!(
            rows.iter()
                .all(|row| row.given - row.asked == row.waste && row.waste < row.align)
        );
    }
}

/// The text has a line for each row, below a line that names the columns.
#[test]
fn s102_the_table_is_printed() {
    let runtime = Runtime::builder()
        .nodes(2)
        .build()
        .expect("a configuration");
    runtime
        .root()
        .create("q", Limits::new())
        .expect("room")
        .stat_add(StatKey::ANON, 1);
    let pools = runtime.pools();
    let text = runtime.pools().to_string();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["pool", "node", "live", "free"]);
    assert_eq!(lines.len(), 1 + pools.rows().len(), "{text}");
    for (line, row) in lines[1..].iter().zip(pools.rows()) {
        assert_eq!(
            (line.len(), line[0], line[4]),
            (12, row.name, row.asked.to_string().as_str()),
            "{text}"
        );
    }
}
