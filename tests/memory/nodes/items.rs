//! Which items there are by node, and the table of them.

use std::collections::BTreeMap;

use memcg::kmem::NumaTable;
use memcg::{Bytes, Freshness, Group, Runtime, StatKey, Unit};

use super::{assert_empty, assert_sums, assert_zero, hold, left_empty, node, placed, scattered};
use crate::support::trees::{bare, build, create};

/// `memory.numa_stat`, read back: item, node, bytes.
fn parse(table: &str) -> BTreeMap<String, Vec<(u16, i64)>> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let cell = |word: &str| {
            let (of, bytes) = word
                .strip_prefix('N')
                .expect("N and a number")
                .split_once('=')
                .expect("a figure");
            (
                of.parse().expect("a node"),
                bytes.parse().expect("a number"),
            )
        };
        (name, words.map(cell).collect())
    };
    assert!(table.ends_with('\n'));
    table.lines().map(line).collect()
}

fn account_as(
    group: &Group,
    stat: StatKey,
    placement: &memcg::kmem::Placement,
) -> memcg::kmem::Kmem {
    group
        .precharge(Bytes(placement.bytes()))
        .expect("room")
        .account_as(stat, placement)
}

#[test]
fn the_table_is_numa_stat() {
    let mut builder = bare().topology(super::machine(&[0, 1, 5]));
    let spilt = builder.stat_per_node("spilt", Unit::Bytes);
    let rows = builder.stat_per_node("rows", Unit::Events);
    let calls = builder.stat("calls", Unit::Bytes);
    let runtime = left_empty(build(builder));
    let group = create(&runtime.root(), "q");
    let _held = [
        hold(&group, &scattered(&[(0, 4_096), (5, 1)], 7)),
        account_as(&group, StatKey::SLAB, &placed(&[(1, 77)])),
        account_as(&group, spilt, &placed(&[(5, 123)])),
        account_as(&group, rows, &placed(&[(5, 3)])),
    ];
    group.stat_add(calls, 9);
    let table = NumaTable::of(&group);
    let parsed = parse(&table.to_string());
    assert_eq!(parsed["kernel"], [(0, 4_096), (1, 0), (5, 1)]);
    assert_eq!(parsed["slab"], [(0, 0), (1, 77), (5, 0)]);
    assert_eq!(parsed["spilt"], [(0, 0), (1, 0), (5, 123)]);
    assert!(
        !parsed.contains_key("calls") && !parsed.contains_key("sock"),
        "not by node"
    );
    assert!(!parsed.contains_key("rows"), "not bytes");
    assert_eq!(group.numa_stat(rows, Freshness::Exact).get(node(5)), 3);
    // As it is in figures.
    assert_eq!(parsed.len(), table.rows().count());
    for (name, row) in table.rows() {
        let cells: Vec<(u16, i64)> = row.iter().map(|(of, bytes)| (of.get(), bytes)).collect();
        assert_eq!(parsed[name], cells, "{name}");
    }
    let names: Vec<&str> = table.rows().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "anon",
            "file",
            "file_dirty",
            "file_writeback",
            "kernel",
            "percpu",
            "slab",
            "spilt"
        ]
    );
    assert_sums(&runtime);
}

/// Items per node and of the group share cells; what is counted in events is counted one by one.
#[test]
fn every_declared_item_keeps_to_itself() {
    let mut builder = bare().nodes(2).stat_batch(8);
    let stats: Vec<StatKey> = (0..40)
        .map(|number| builder.stat_per_node(&format!("i{number}"), Unit::Bytes))
        .collect();
    let runtime = left_empty(build(builder));
    let group = create(&runtime.root(), "q");
    let _held: Vec<_> = (0..)
        .zip(&stats)
        .map(|(number, &stat)| {
            account_as(
                &group,
                stat,
                &placed(&[((number % 2) as u16, 1_000 + number)]),
            )
        })
        .collect();
    for (number, &stat) in (0_i64..).zip(&stats) {
        let expected = [
            (1_000 + number) * (1 - number % 2),
            (1_000 + number) * (number % 2),
        ];
        let now = runtime.root().numa_stat(stat, Freshness::Exact);
        assert_eq!(
            [node(0), node(1)].map(|of| now.get(of)),
            expected,
            "item {number}"
        );
    }
    assert_sums(&runtime);
}

/// The charge is charged, the account nowhere, and that is counted.
#[test]
fn an_item_of_another_builder() {
    let foreign = Runtime::builder().stat_per_node("foreign", Unit::Bytes);
    for nodes in [1, 2] {
        let runtime = left_empty(build(bare().nodes(nodes)));
        let root = runtime.root();
        for round in 0..2 {
            let before = runtime.counts().foreign_stats;
            let mut kmem = account_as(&root, foreign, &placed(&[(0, 100)]));
            assert_eq!(
                (kmem.bytes(), root.live(), kmem.stat()),
                (100, 100, foreign)
            );
            assert_zero(&root.numa_stat(foreign, Freshness::Exact));
            assert!(
                runtime
                    .items()
                    .all(|item| root.read(Freshness::Exact).get(item.stat) == 0)
            );
            assert_eq!(runtime.counts().foreign_stats, before + 1);
            kmem.migrated(Some(node(0)), Some(node(1)), 50);
            kmem.relocate(&placed(&[(1, 100)]));
            assert_eq!(
                kmem.shrink(&placed(&[(if nodes == 1 { 0 } else { 1 }, 100)])),
                100
            );
            drop(kmem);
            assert_eq!(root.live(), 0);
            // And once there are cells.
            drop(hold(&root, &placed(&[(0, 1), (1, 1)])));
            assert!(round < 2);
        }
    }
}

/// Two runtimes of one builder count the same item apart, on their own nodes.
#[test]
fn items_of_a_clone() {
    let mut builder = bare();
    let spilt = builder.stat_per_node("spilt", Unit::Bytes);
    let runtimes = [build(builder.clone().nodes(2)), build(builder.nodes(4))];
    let held = [0, 1].map(|at: usize| {
        account_as(
            &runtimes[at].root(),
            spilt,
            &placed(&[(1, 10 + at as u64), (3, 1)]),
        )
    });
    let of = |at: usize| {
        runtimes[at]
            .root()
            .numa_stat(spilt, Freshness::Exact)
            .to_string()
    };
    assert_eq!(
        (of(0), of(1)),
        ("N0=0 N1=10".into(), "N0=0 N1=11 N2=0 N3=1".into())
    );
    assert_eq!(
        runtimes[0]
            .root()
            .numa_stat(spilt, Freshness::Exact)
            .unplaced(),
        1
    );
    drop(held);
    runtimes.iter().for_each(assert_empty);
}
