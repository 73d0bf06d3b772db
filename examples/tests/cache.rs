//! The example `cache`, run as its users run it.

use crate::prints::prints;

/// The number before these words in the first line that starts with this name.
fn number(stdout: &str, name: &str, words: &str) -> u64 {
    let line = stdout
        .lines()
        .find(|line| line.starts_with(name))
        .expect("a line for each tenant");
    let before = line
        .split(words)
        .next()
        .and_then(|before| before.split_whitespace().next_back());
    before
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number of {words:?} in {line}"))
}

#[test]
fn tenant_that_floods_the_cache_evicts_its_own_entries_first() {
    let stdout = prints("cache");
    // All that `hot` asks for lies below its low, and 150 keys are loaded once.
    assert!(number(&stdout, "hot ", " hits") >= 19_850, "{stdout}");
    assert_eq!(number(&stdout, "hot ", " evicted"), 0, "{stdout}");
    for tenant in ["wide ", "scan "] {
        assert!(
            number(&stdout, tenant, " evicted") > 0 && number(&stdout, tenant, " cached") > 0,
            "{stdout}"
        );
    }
    assert!(
        number(&stdout, "scan ", " evicted") > number(&stdout, "wide ", " evicted"),
        "{stdout}"
    );
    assert!(
        stdout.ends_with("4 counters verified against the audited count: all add up\n"),
        "{stdout}"
    );
}
