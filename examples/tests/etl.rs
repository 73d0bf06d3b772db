//! The example `etl`, run as its users run it.

use crate::prints::prints;

#[test]
fn jobs_are_charged_to_their_groups() {
    let stdout = prints("etl");
    let lines: Vec<&str> = stdout.lines().collect();
    let [totals, refused, few, verdict] = lines[..] else {
        panic!("{stdout}")
    };
    assert!(
        totals.starts_with("10000 customers, 729635000 cents, "),
        "{stdout}"
    );
    assert!(refused.starts_with("/ad_hoc refused "), "{stdout}");
    assert_eq!(few, "10 days of orders");
    assert!(verdict.ends_with(": all add up"), "{stdout}");
}
