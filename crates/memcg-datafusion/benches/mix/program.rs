//! The program `mix` in a small form.

use std::process::Command;

/// The columns of a pool's row: how many ended well, and how many of those that do so alone.
fn row<'a>(printed: &'a str, pool: &str) -> Vec<&'a str> {
    let line = printed.lines().find(|line| line.split_whitespace().nth(1) == Some(pool));
    line.unwrap_or_else(|| panic!("no {pool}: {printed}")).split_whitespace().collect()
}

/// Queries run side by side below a limit that each of them fits alone. Without the queue some are refused.
#[test]
fn with_the_queue_all_queries_end_well() {
    let ended = Command::new(env!("CARGO_BIN_EXE_mix"))
        .args(["--rows", "3000", "--kib", "1024", "--runs", "1", "--pools", "demand,queue", "--no-alone"])
        .output()
        .expect("the program is built");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{printed}{}", String::from_utf8_lossy(&ended.stderr));
    let ended = |pool| row(&printed, pool)[2].parse::<usize>().expect("a number");
    assert!(ended("demand") < 36, "the limit is too large: {printed}");
    assert_eq!(ended("queue"), 36, "{printed}");
}

#[test]
fn a_bad_argument_is_told() {
    for bad in [["--rows", "1"], ["--runs", "0"], ["--kib", "1"]] {
        let ended = Command::new(env!("CARGO_BIN_EXE_mix")).args(bad).output().expect("the program is built");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("--kib from 64"), "{bad:?}: {said}");
    }
}
