//! The example `vector`, run as its users run it.

use crate::prints::prints;

#[test]
fn vector_grows_to_the_max_and_gives_back_what_did_not_fit() {
    let stdout = prints("vector");
    let lines: Vec<&str> = stdout.lines().collect();
    let [full, refused, short, verdict] = lines[..] else {
        panic!("{stdout}")
    };
    assert_eq!(full, "24576 rows, 576 KiB of 1 MiB");
    assert!(
        refused.starts_with("row [24576, 24576, 24576] came back: /q17 refused 576 KiB for /q17: "),
        "{refused}"
    );
    assert_eq!(short, "1000 rows, 24000 bytes");
    assert_eq!(
        verdict,
        "2 counters verified against the audited count: all add up"
    );
}
