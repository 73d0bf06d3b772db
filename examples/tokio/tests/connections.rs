//! The example `connections`, run as its users run it, but with fewer connections.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

#[path = "../../tests/program.rs"]
mod program;

/// The line that is printed however a run ends: no tenant leaves anything behind.
const NOTHING_LEFT: &str = "\nat the end: 1 group, 0 dying, 0 B charged";
const ADDS_UP: &str = "verified against the audited count: all add up\n";

/// True if it held, with its output and its complaints.
fn run(args: &str) -> (bool, String, String) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let mut command = Command::new(PROGRAM.get_or_init(|| program::program("connections")));
    let output = command
        .args(args.split_whitespace())
        .output()
        .expect("the example starts");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(
        stdout.contains(NOTHING_LEFT) && stdout.ends_with(ADDS_UP),
        "{stdout}{stderr}"
    );
    (output.status.success(), stdout, stderr)
}

/// A run that holds, and what it printed.
fn holds(args: &str) -> String {
    let (held, stdout, stderr) = run(args);
    assert!(held && stderr.is_empty(), "{stdout}{stderr}");
    stdout
}

/// A run that does not, and its complaints.
fn fails(args: &str) -> String {
    let (held, stdout, stderr) = run(args);
    assert!(!held, "{stdout}{stderr}");
    stderr
}

/// The whole number before these words.
fn number(stdout: &str, words: &str) -> u64 {
    let before = stdout
        .split(words)
        .next()
        .filter(|before| before.len() < stdout.len());
    let number = before.and_then(|before| {
        before
            .split(|byte: char| !byte.is_ascii_digit())
            .next_back()
    });
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number of {words:?} in {stdout}"))
}

#[test]
fn a_tenant_that_sends_much_is_held_back_and_no_other() {
    let stdout = holds("--in-turn 200 --at-once 60 --high 1MiB");
    assert!(
        stdout.contains("\n\nok: 60 connections at once, each check holds"),
        "{stdout}"
    );
    assert!(
        stdout.lines().all(|line| line.chars().count() <= 80),
        "{stdout}"
    );
    assert_eq!(number(&stdout, " connections were open at once"), 60);
    assert!(number(&stdout, " requests were not read") > 0, "{stdout}");
    assert_eq!(number(&stdout, " requests waited in line"), 0);
    for tenant in ["globex", "initech", "umbrella"] {
        let row = stdout
            .lines()
            .find(|line| line.starts_with(&format!("/{tenant} ")))
            .expect("a row for each tenant");
        // 50 connections in turn with a request each, 15 at once with three; never held back or
        // above high.
        let figures: Vec<&str> = row.split_whitespace().rev().take(5).collect();
        assert_eq!(figures, ["-", "0", "95", "65", "0"], "{stdout}");
    }
}

/// As often as there is time for, and each connection is counted.
#[test]
fn both_kinds_come_again_until_the_time_has_passed() {
    let stdout = holds("--in-turn 8 --at-once 60 --high 1MiB --seconds 1");
    let rounds = stdout
        .lines()
        .filter(|line| line.starts_with("60 connections at once: "))
        .count();
    assert!(rounds > 0, "{stdout}");
    let row = stdout
        .lines()
        .find(|line| line.starts_with("/umbrella "))
        .expect("a row for each tenant");
    let figures: Vec<&str> = row.split_whitespace().rev().skip(2).take(2).collect();
    assert_eq!(
        figures,
        [(rounds * 47).to_string(), (rounds * 17).to_string()],
        "{stdout}"
    );
}

#[test]
fn where_the_budget_is_used_up_requests_stand_in_line() {
    let stdout = holds("--in-turn 4 --at-once 24 --small 256KiB --budget 1MiB --high 256KiB");
    assert!(number(&stdout, " requests waited in line") > 0, "{stdout}");
}

#[test]
fn fewer_at_once_than_asked_for_is_a_failure() {
    let stderr = fails("--in-turn 0 --at-once 20 --connections-max 15");
    assert!(
        stderr.contains("there are 20 groups, as many as groups_max allows\n"),
        "{stderr}"
    );
    assert!(
        stderr.contains("connections: 15 connections at once, not 20\n"),
        "{stderr}"
    );
}

#[test]
fn no_tenant_held_back_is_a_failure() {
    let stderr = fails("--in-turn 4 --at-once 8 --high 1GiB");
    assert_eq!(
        stderr,
        "connections: no tenant was held back: no tenant was above its high\n"
    );
}

#[test]
fn a_request_above_its_connections_max_is_refused() {
    let stderr = fails("--in-turn 4 --at-once 8 --request-max 100KiB");
    assert!(stderr.contains(" refused 256 KiB for /acme/"), "{stderr}");
    assert!(stderr.contains(", max 100 KiB"), "{stderr}");
}

/// A peer that does not send what it has announced keeps its buffer for so long, and no longer.
#[test]
fn a_request_that_takes_too_long_is_given_up() {
    let stderr = fails("--in-turn 0 --at-once 8 --pause 2000 --patience 1");
    assert!(
        stderr.contains("a connection was closed: a request took longer than 1s\n"),
        "{stderr}"
    );
}
