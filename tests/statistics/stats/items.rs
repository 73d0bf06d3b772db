//! Items that can be counted.

use std::collections::HashSet;

use memcg::{Runtime, RuntimeBuilder, StatKey, Unit};

use super::{Other, assert_exact, build, create};

/// Most items of a runtime, those built in included.
const ITEMS_MAX: usize = 64;

/// Name, constant, unit, whether per node.
const BUILT_IN: [(&str, StatKey, Unit, bool); 11] = [
    ("anon", StatKey::ANON, Unit::Bytes, true),
    ("file", StatKey::FILE, Unit::Bytes, true),
    ("file_dirty", StatKey::FILE_DIRTY, Unit::Bytes, true),
    ("file_writeback", StatKey::FILE_WRITEBACK, Unit::Bytes, true),
    ("kernel", StatKey::KERNEL, Unit::Bytes, true),
    ("percpu", StatKey::PERCPU, Unit::Bytes, true),
    ("slab", StatKey::SLAB, Unit::Bytes, true),
    ("sock", StatKey::SOCK, Unit::Bytes, false),
    (
        "workingset_refault",
        StatKey::WORKINGSET_REFAULT,
        Unit::Events,
        false,
    ),
    ("stock_refill", StatKey::STOCK_REFILL, Unit::Events, false),
    ("stock_return", StatKey::STOCK_RETURN, Unit::Events, false),
];

fn with(names: &[&str]) -> RuntimeBuilder {
    let mut builder = Runtime::builder();
    for name in names {
        builder.stat(name, Unit::Events);
    }
    builder
}

/// A builder with so many items of its own, and those.
fn with_many(declared: usize) -> (RuntimeBuilder, Vec<StatKey>) {
    let mut builder = Runtime::builder();
    let stats = (0..declared)
        .map(|number| builder.stat(&format!("item{number}"), Unit::Events))
        .collect();
    (builder, stats)
}

#[test]
fn the_built_in_items_have_the_kernels_names() {
    let runtime = build(Runtime::builder());
    let mut found: Vec<_> = runtime
        .items()
        .map(|item| (item.name.to_string(), item.stat, item.unit, item.per_node))
        .collect();
    for (name, stat, unit, per_node) in BUILT_IN {
        let at = found
            .iter()
            .position(|item| item.0 == name)
            .unwrap_or_else(|| panic!("no item {name}"));
        assert_eq!(
            found.swap_remove(at),
            (name.to_string(), stat, unit, per_node)
        );
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn declared_items_are_listed_with_unit_and_node() {
    let mut builder = Runtime::builder();
    let rows = builder.stat("rows_scanned", Unit::Events);
    let cpu = builder.stat("cpu_ns", Unit::Nanoseconds);
    let spilt = builder.stat_per_node("spilt", Unit::Bytes);
    let runtime = build(builder);
    let declared: Vec<_> = runtime
        .items()
        .filter(|item| BUILT_IN.iter().all(|known| known.1 != item.stat))
        .map(|item| (item.stat, item.name.to_string(), item.unit, item.per_node))
        .collect();
    let expected = [
        (rows, "rows_scanned".to_string(), Unit::Events, false),
        (cpu, "cpu_ns".to_string(), Unit::Nanoseconds, false),
        (spilt, "spilt".to_string(), Unit::Bytes, true),
    ];
    assert_eq!(declared, expected);
    let all: HashSet<StatKey> = runtime.items().map(|item| item.stat).collect();
    assert_eq!(all.len(), BUILT_IN.len() + 3, "each is another");
}

#[test]
fn grains_of_the_units() {
    assert_eq!(
        [Unit::Bytes, Unit::Events, Unit::Nanoseconds].map(Unit::grain),
        [4_096, 1, 65_536]
    );
}

/// The answer is an error of one line when the runtime is built, and names what is wrong.
#[test]
fn names_that_are_none() {
    for (names, wrong) in [
        (&[""][..], "\"\""),
        (&["a", "b", "a"], "a"),
        (&["anon"], "anon"),
        (&["rows", "stock_refill"], "stock_refill"),
    ] {
        let error = with(names).build().expect_err(wrong);
        let said = error.to_string();
        assert!(
            said.contains(wrong) && !said.contains(char::is_control),
            "{names:?}: {said}"
        );
        assert_eq!(error, with(names).build().expect_err("the same answer"));
    }
    let mut mixed = with(&["rows"]);
    mixed.stat_per_node("rows", Unit::Bytes);
    assert!(mixed.build().is_err(), "whatever its unit and its nodes");
    // Just within: another case, a space, the name of a counter.
    let mut odd = with(&["ANON", " ", "memory", "rows scanned", "ü"]);
    let spill = odd.counter("rows scanned", memcg::Unit::Bytes);
    let runtime = build(odd);
    assert!(runtime.root().counter(spill).is_ok());
}

#[test]
fn the_most_items() {
    let (builder, stats) = with_many(ITEMS_MAX - BUILT_IN.len());
    let runtime = build(builder);
    assert_eq!(runtime.items().count(), ITEMS_MAX);
    for more in [1, 2, 1_000] {
        let error = with_many(stats.len() + more)
            .0
            .build()
            .expect_err("one more than there may be");
        let said = error.to_string();
        assert!(
            said.contains("64") && !said.contains(char::is_control),
            "{said}"
        );
    }
    // Every one of them is an item like any other, the last as well as the first.
    let group = create(&runtime.root(), "q");
    let other = Other::spawn();
    let all: Vec<StatKey> = runtime.items().map(|item| item.stat).collect();
    for (number, &stat) in (1..).zip(&all) {
        group.stat_add(stat, number);
        other.add(&group, stat, 1_000 * number);
    }
    for (number, &stat) in (1..).zip(&all) {
        assert_exact(&group, stat, 1_001 * number, 1_001 * number);
        assert_exact(&runtime.root(), stat, 1_001 * number, 0);
    }
}

/// Equal where they name the same item, and fit for a key.
#[test]
fn an_item_is_plain_data() {
    let mut builder = Runtime::builder();
    let [rows, bytes] = [
        builder.stat("rows", Unit::Events),
        builder.stat("bytes", Unit::Bytes),
    ];
    let copy = rows;
    assert_eq!(copy, rows);
    assert_ne!(rows, bytes);
    assert_ne!(StatKey::ANON, StatKey::FILE);
    assert_eq!(
        HashSet::from([rows, copy, bytes, StatKey::ANON, StatKey::ANON]).len(),
        3
    );
    assert!(format!("{:?}", StatKey::ANON).contains("anon") && !format!("{rows:?}").contains('\n'));
}
