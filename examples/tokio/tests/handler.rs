//! The example `handler`, run as its users run it.

#[path = "../../tests/prints.rs"]
mod prints;
#[path = "../../tests/program.rs"]
mod program;

#[test]
fn requests_above_the_max_wait_and_are_told_that_the_tenant_is_busy() {
    let stdout = prints::prints("handler");
    let answers = |to: &str| stdout.lines().filter(|line| *line == to).count();
    let sums = answers("tenant 0, 100000 bytes: sum 100000");
    let busy = answers("tenant 0, 100000 bytes: busy");
    assert!(sums >= 2 && busy >= 1 && sums + busy == 6, "{stdout}");
    assert_eq!(answers("tenant 1, 100000 bytes: sum 100000"), 1, "{stdout}");
    assert!(
        stdout.contains("tenant 1, 1000000 bytes: refused: /globex refused "),
        "{stdout}"
    );

    let (_, table) = stdout.split_once("\npath ").expect("a table of the groups");
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("/acme ") && line.contains("timed_out ")),
        "{table}"
    );
    assert!(
        stdout.ends_with("\n3 counters verified against the audited count: all add up\n"),
        "{stdout}"
    );
}
