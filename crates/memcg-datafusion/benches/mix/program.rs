//! The program `mix` in a small form.

use std::process::Command;

/// Words of a pool's row.
fn row<'a>(printed: &'a str, pool: &str) -> Vec<&'a str> {
    let line = printed
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some(pool));
    line.unwrap_or_else(|| panic!("no {pool}: {printed}"))
        .split_whitespace()
        .collect()
}

/// The figures at `columns` of each of `pools`, below a limit.
fn figures<const N: usize, const P: usize>(
    kib: &str,
    patience: &str,
    pools: [&str; P],
    columns: [usize; N],
) -> [[usize; N]; P] {
    let ended = Command::new(env!("CARGO_BIN_EXE_mix"))
        .args([
            "--rows",
            "3000",
            "--kib",
            kib,
            "--runs",
            "1",
            "--patience",
            patience,
            "--pools",
            &pools.join(","),
            "--no-alone",
        ])
        .output()
        .expect("the program is built");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    println!("{printed}");
    pools.map(|pool| columns.map(|column| row(&printed, pool)[column].parse().expect("a number")))
}

/// Queries run side by side below a limit that each of them fits alone. Of all refusals, only those
/// that come after a query's first row end it.
#[test]
fn with_the_queue_queries_that_fit_alone_end_well() {
    let [[ended, after_first_row, hangs]] = figures("1024", "100", ["queue"], [2, 10, 11]);
    assert_eq!(ended + after_first_row + hangs, 36);
}

/// Below a limit that a quarter of the queries do not fit, most of the others are refused without
/// the queue.
#[test]
fn without_the_queue_queries_that_fit_alone_are_refused() {
    // Those that cannot end wait for as long as they may, some of them one after the other.
    let [[demand, restarts], [queue, restarts_in_line]] =
        figures("330", "5", ["demand", "queue"], [2, 9]);
    assert!(demand < queue, "{demand} of {queue}");
    assert!(
        restarts == 0 && restarts_in_line > 0,
        "{restarts}, {restarts_in_line}"
    );
}

#[test]
fn a_bad_argument_is_told() {
    for bad in [["--rows", "1"], ["--runs", "0"], ["--kib", "1"]] {
        let ended = Command::new(env!("CARGO_BIN_EXE_mix"))
            .args(bad)
            .output()
            .expect("the program is built");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            !ended.status.success() && said.contains("--kib from 64"),
            "{bad:?}: {said}"
        );
    }
}
