//! The example `shuffle`, run as its users run it.

use crate::prints::prints;

/// The map stage is not far ahead of the other one, and no partition is charged twice.
#[test]
fn partitions_are_handed_over() {
    let stdout = prints("shuffle");
    let lines: Vec<&str> = stdout.lines().collect();
    let [whole, map, reduce, query, verdict] = lines[..] else {
        panic!("{stdout}")
    };
    let sum: u64 = (0..64).map(|number| number << 18).sum();
    assert!(
        whole.starts_with(&format!("64 partitions, sum {sum}; the map stage waited ")),
        "{whole}"
    );
    assert!(!whole.ends_with(" 0 times"), "{whole}");
    let mib = |line: &str, before: &str| -> f64 {
        let text = line.strip_prefix(before).expect(before);
        let (number, unit) = text.split_once(' ').expect("a unit");
        let number: f64 = number.parse().expect("a number");
        match unit {
            "MiB" => number,
            "KiB" => number / 1024.0,
            other => panic!("{other}"),
        }
    };
    // Eight partitions and the one that goes above, and the credit of the thread that makes them.
    let map = mib(map, "most in map: ");
    assert!((2.0..=3.0).contains(&map), "{map}");
    // One or a few, and the credit beside it.
    let reduce = mib(reduce, "most in reduce: ");
    assert!(reduce <= 1.0, "{reduce}");
    let query = mib(query, "most in the query: ");
    assert!(query >= map && query <= map + reduce + 0.1, "{query}");
    assert!(verdict.ends_with("all add up"), "{verdict}");
}
