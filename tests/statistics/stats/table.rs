//! Statistics in a snapshot, and as columns of its table.

use memcg::figures::Snapshot;
use memcg::{Runtime, StatKey, Unit};

use super::{Other, build, create, kinds};

/// The cells of the head and of the row of `path` that are to the right of `max`.
fn printed(snapshot: &Snapshot, items: &[&str], path: &str) -> [Vec<String>; 2] {
    let text = snapshot.with_stats(items).to_string();
    let split = |line: &str| -> Vec<String> {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .skip(4)
            .map(String::from)
            .collect()
    };
    let row = text
        .lines()
        .find(|line| line.split("  ").next() == Some(path))
        .expect("a row");
    [text.lines().next().expect("a head"), row].map(split)
}

#[test]
fn rows_hold_what_was_written_exactly() {
    for mut builder in kinds() {
        let rows = builder.stat("rows", Unit::Events);
        let wait = builder.stat("wait", Unit::Nanoseconds);
        let idle = builder.stat("idle", Unit::Events);
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let acme = create(&root, "acme");
        let [query, gone] = ["q17", "gone"].map(|name| create(&acme, name));
        query.stat_add(rows, 7);
        other.add(&query, rows, 5);
        other.add(&query, StatKey::ANON, -3 << 20);
        acme.stat_add(wait, 12_345);
        gone.stat_add(rows, 100);
        // An item that came to nothing is not in the row.
        query.stat_add(idle, 1);
        other.add(&query, idle, -1);
        gone.offline().expect("no children");
        let snapshot = runtime.snapshot();
        let found: Vec<_> = snapshot
            .rows()
            .iter()
            .map(|row| (row.path.as_str(), row.stats.clone()))
            .collect();
        assert_eq!(
            found.iter().map(|row| row.0).collect::<Vec<_>>(),
            ["/", "/acme", "/acme/q17"]
        );
        let expected = |rows: i64, wait: i64| {
            let all = [("rows", rows), ("wait", wait), ("anon", -3 << 20)];
            all.into_iter()
                .filter(|item| item.1 != 0)
                .map(|(name, figure)| (name.to_string(), figure))
                .collect()
        };
        assert_eq!(
            [&found[0].1, &found[1].1, &found[2].1],
            [
                &expected(112, 12_345),
                &expected(112, 12_345),
                &expected(12, 0)
            ]
        );
        let [head, row] = printed(
            &snapshot,
            &["anon", "rows", "wait", "idle", "none"],
            "/acme/q17",
        );
        assert_eq!(
            head,
            ["anon", "rows", "wait", "idle", "none"],
            "in the order that was asked for"
        );
        assert_eq!(row, ["-3 MiB", "12", "0 ns", "0", "0"]);
    }
}

/// No item is a column unless it is asked for, those that the crate counts itself among them.
#[test]
fn no_item_is_a_column_by_itself() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let held: Vec<_> = (0..100)
            .map(|_| group.charge(10_000).expect("no limit"))
            .collect();
        group.stat_add(StatKey::ANON, 1);
        let snapshot = runtime.snapshot();
        assert!(
            snapshot
                .rows()
                .iter()
                .all(|row| row.stats.contains_key("anon")),
            "{:?}",
            snapshot.rows()
        );
        let head = snapshot.to_string();
        assert_eq!(
            head.lines()
                .next()
                .expect("a head")
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["path", "live", "%max", "max"]
        );
        drop(held);
    }
}

/// The smallest figure there is has a text too.
#[test]
fn the_largest_figures_are_printed() {
    let runtime = build(Runtime::builder());
    let group = create(&runtime.root(), "q");
    group.stat_add(StatKey::ANON, i64::MIN);
    group.stat_add(StatKey::WORKINGSET_REFAULT, i64::MAX);
    let [head, row] = printed(&runtime.snapshot(), &["anon", "workingset_refault"], "/q");
    assert_eq!(head, ["anon", "workingset_refault"]);
    assert_eq!(row, ["-8 EiB".to_string(), i64::MAX.to_string()]);
}
