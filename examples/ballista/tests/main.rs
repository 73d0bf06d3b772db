//! The program, run as a user runs it, in a small form.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn program(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ballista_tenants"));
    program.args(arguments);
    program
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The processes that a process has started and that run still.
fn children(of: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let stats = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let is_child = |stat: &String| {
        // After the name: the state, and the parent.
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1))
            == Some(&of.to_string())
    };
    stats.filter(is_child).collect()
}

/// Everybody's queries are answered where nothing is short, under both.
#[test]
fn both_in_a_small_form() {
    let Output {
        status,
        stdout,
        stderr,
    } = program(&["--quick"]).output().unwrap();
    let table = text(&stdout);
    let said = text(&stderr);
    assert!(status.success(), "{table}\n{said}");
    let row = |what: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(what));
        line.unwrap_or_else(|| panic!("no row {what:?}:\n{table}\n{said}"))
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(row("executors gone (exit code)"), ["0", "0"], "{table}");
    assert_eq!(
        row("gold: queries answered"),
        ["3 of 3", "3 of 3"],
        "{table}"
    );
    assert!(table.contains("in no control group"), "{table}");
}

/// Told to end, it takes its processes with it.
#[test]
fn it_ends_with_its_processes() {
    let mut runs = program(&["--quick", "--only", "groups", "--rounds", "1000000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(300);
    // A scheduler and two executors.
    while children(runs.id()).len() < 3 {
        assert!(
            Instant::now() < end && runs.try_wait().unwrap().is_none(),
            "it runs"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let processes = children(runs.id());
    let told = Command::new("kill")
        .args(["-TERM", &runs.id().to_string()])
        .status()
        .unwrap();
    assert!(told.success());
    assert!(!runs.wait().unwrap().success());
    for stat in processes {
        let process = stat.split(' ').next().unwrap();
        assert!(!Path::new("/proc").join(process).exists(), "{stat}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, words) in [
        (["--scale", "0"], "expected a number from 0.001 to 10"),
        (["--limit", "1MiB"], "expected at least 64 MiB"),
        (["--rounds", "0"], "0 is not in 1..=1000000"),
        (["--patience", "0"], "0 is not in 1..=3600"),
    ] {
        let output = program(&arguments).output().unwrap();
        assert!(
            !output.status.success() && text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
