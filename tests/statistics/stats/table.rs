//! The statistics columns of the tree as a table.

use memcg::{Runtime, Stat, TreeTable, Unit};

use super::{Other, build, create, kinds};

/// The names of the columns, and the cells of the row of `path`.
fn printed(table: &TreeTable, path: &str) -> (Vec<String>, Vec<String>) {
    let text = table.to_string();
    let split =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(String::from).collect();
    let row = text.lines().find(|line| line.split("  ").next() == Some(path)).expect("a row");
    (split(text.lines().next().expect("a head")), split(row))
}

#[test]
fn rows_hold_what_was_written_exactly() {
    for mut builder in kinds() {
        let (rows, wait) = (builder.stat("rows", Unit::Events), builder.stat("wait", Unit::Nanoseconds));
        let idle = builder.stat("idle", Unit::Events);
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let acme = create(&root, "acme");
        let [query, gone] = ["q17", "gone"].map(|name| create(&acme, name));
        query.stat_add(rows, 7);
        other.add(&query, rows, 5);
        other.add(&query, Stat::ANON, -3 << 20);
        acme.stat_add(wait, 12_345);
        gone.stat_add(rows, 100);
        // What came to nothing is not shown.
        query.stat_add(idle, 1);
        other.add(&query, idle, -1);
        gone.offline().expect("no children");
        let table = runtime.tree();
        let found: Vec<_> = table.rows().iter().map(|row| (row.path.as_str(), row.stats.clone())).collect();
        assert_eq!(found.iter().map(|row| row.0).collect::<Vec<_>>(), ["/", "/acme", "/acme/q17"]);
        let expected = |rows: i64, wait: i64| {
            let all = [("rows", rows), ("wait", wait), ("anon", -3 << 20)];
            all.into_iter().filter(|item| item.1 != 0).map(|(name, figure)| (name.to_string(), figure)).collect()
        };
        assert_eq!(
            [&found[0].1, &found[1].1, &found[2].1],
            [&expected(112, 12_345), &expected(112, 12_345), &expected(12, 0)]
        );
        let (head, row) = printed(&table, "/acme/q17");
        assert_eq!(head[6..], ["anon", "rows", "wait"]);
        assert_eq!(row[6..], ["-3 MiB", "12", "0 ns"]);
    }
}

#[test]
fn a_tree_that_no_thread_wrote_has_no_columns() {
    let runtime = build(Runtime::builder());
    create(&runtime.root(), "q");
    let table = runtime.tree();
    assert!(table.rows().iter().all(|row| row.stats.is_empty()));
    assert_eq!(printed(&table, "/").0, ["path", "live", "stocked", "peak", "max", "refused"]);
}

/// The smallest figure there is has a text too.
#[test]
fn the_largest_figures_are_printed() {
    let runtime = build(Runtime::builder());
    let group = create(&runtime.root(), "q");
    group.stat_add(Stat::ANON, i64::MIN);
    group.stat_add(Stat::WORKINGSET_REFAULT, i64::MAX);
    let (head, row) = printed(&runtime.tree(), "/q");
    assert_eq!(head[6..], ["anon", "workingset_refault"]);
    assert_eq!(row[6..], ["-8 EiB".to_string(), i64::MAX.to_string()]);
}
