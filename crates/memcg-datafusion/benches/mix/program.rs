//! The program `mix` in a small form.

use std::process::Command;

/// Words of a pool's row.
fn row<'a>(printed: &'a str, pool: &str) -> Vec<&'a str> {
    let line = printed.lines().find(|line| line.split_whitespace().nth(1) == Some(pool));
    line.unwrap_or_else(|| panic!("no {pool}: {printed}")).split_whitespace().collect()
}

/// Queries run side by side below a limit that each of them fits alone. Of all refusals, only those that come after a
/// query's first row end it.
#[test]
fn with_the_queue_queries_that_fit_alone_end_well() {
    let ended = Command::new(env!("CARGO_BIN_EXE_mix"))
        .args(["--rows", "3000", "--kib", "1024", "--runs", "1", "--pools", "queue", "--no-alone"])
        .output()
        .expect("the program is built");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{printed}{}", String::from_utf8_lossy(&ended.stderr));
    let [ended, after_first_row, hangs] =
        [2, 10, 11].map(|column| row(&printed, "queue")[column].parse::<usize>().expect("a number"));
    assert_eq!(ended + after_first_row + hangs, 36, "{printed}");
}

#[test]
fn a_bad_argument_is_told() {
    for bad in [["--rows", "1"], ["--runs", "0"], ["--kib", "1"]] {
        let ended = Command::new(env!("CARGO_BIN_EXE_mix")).args(bad).output().expect("the program is built");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("--kib from 64"), "{bad:?}: {said}");
    }
}
