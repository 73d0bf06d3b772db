//! The example `table`, run as its users run it.

use crate::prints::prints;

#[test]
fn each_second_has_its_table_and_no_line_is_too_long() {
    let stdout = prints("table");
    let long: Vec<&str> = stdout
        .lines()
        .filter(|line| line.chars().count() > 80)
        .collect();
    assert!(long.is_empty(), "{long:?}");
    let heads: Vec<&str> = stdout
        .lines()
        .filter(|line| line.starts_with("path ") && line.contains(" rows "))
        .collect();
    assert_eq!(
        (heads.len(), stdout.matches("after ").count()),
        (4, 3),
        "{stdout}"
    );

    // Queries have rows while they run, and none is left. What they counted stays with their
    // tenants.
    let (while_they_run, last) = stdout
        .split_once(" queries\n")
        .expect("how many queries there were");
    for tenant in ["/acme", "/globex"] {
        let below = format!("{tenant}/");
        assert!(
            while_they_run.lines().any(|line| line.starts_with(&below)),
            "{stdout}"
        );
        assert!(!last.contains(&below), "{stdout}");
    }
    let queries: u64 = while_they_run
        .lines()
        .last()
        .and_then(|line| line.parse().ok())
        .expect("a number");
    let all = last
        .lines()
        .find(|line| line.starts_with("/ "))
        .expect("the row of the root");
    assert!(
        all.split_whitespace()
            .any(|field| field == (queries * 5_000).to_string()),
        "{stdout}"
    );
}
