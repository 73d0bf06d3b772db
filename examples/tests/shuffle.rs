//! The example `shuffle`, run as its users run it.

use memcg::Bytes;

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
    let bytes = |line: &str, before: &str| -> Bytes {
        let text = line.strip_prefix(before).expect(before);
        text.parse().expect("an amount")
    };
    // Eight partitions, one more, and the credit of the thread that makes them.
    let map = bytes(map, "most in map: ");
    assert!(map >= Bytes::mib(2) && map <= Bytes::mib(3), "{map}");
    // One, and the credit beside it.
    let reduce = bytes(reduce, "most in reduce: ");
    assert!(reduce <= Bytes::mib(1), "{reduce}");
    let query = bytes(query, "most in the query: ");
    assert!(query >= map && query.0 <= map.0 + reduce.0, "{query}");
    assert!(verdict.ends_with("all add up"), "{verdict}");
}
