//! The program `tpch` in a small form: it runs, and all processes give the same rows.

use std::process::Command;

#[test]
fn all_processes_give_the_same_rows() {
    let ended = Command::new(env!("CARGO_BIN_EXE_tpch"))
        .args(["--scale", "0.002", "--rounds", "1", "--queries", "8"])
        .output()
        .expect("the program is built");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    for row in [
        "GreedyMemoryPool",
        "unbounded pool",
        "GroupPool",
        "spill_on_demand",
        "with the queue",
        "with memcg-alloc",
    ] {
        let line = printed
            .lines()
            .find(|line| line.starts_with(row))
            .unwrap_or_else(|| panic!("{row}: {printed}"));
        let ratio = line[26..]
            .split_whitespace()
            .next()
            .and_then(|ratio| ratio.parse::<f64>().ok());
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{line}");
    }
}

#[test]
fn below_a_limit_the_rows_are_the_same_or_the_group_is_named() {
    let ended = Command::new(env!("CARGO_BIN_EXE_tpch"))
        .args(["--scale", "0.002", "--queries", "8", "--limits", "64,1"])
        .output()
        .expect("the program is built");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert!(
        printed.contains("below 64 MiB: 8 with the same rows, 0 of them spilled, 0 refused"),
        "{printed}"
    );
    let tight = printed
        .lines()
        .find(|line| line.starts_with("below 1 MiB: "))
        .expect("the second limit");
    assert!(!tight.ends_with(" 0 refused"), "{printed}");
}

#[test]
fn a_bad_argument_is_told() {
    for bad in [["--scale", "0"], ["--rounds", "0"], ["--queries", "23"]] {
        let ended = Command::new(env!("CARGO_BIN_EXE_tpch"))
            .args(bad)
            .output()
            .expect("the program is built");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            !ended.status.success() && said.contains("--queries from 1 to 22"),
            "{bad:?}: {said}"
        );
    }
}
