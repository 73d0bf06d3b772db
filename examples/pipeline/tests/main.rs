//! The programs, run as a user runs them.

#[path = "../../tests/beside.rs"]
mod beside;

use std::process::{Command, Output};

fn run(example: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(beside::program(example));
    program
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[track_caller]
fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
fn a_runaway_task_is_stopped_and_its_neighbours_are_not() {
    let printed = printed(&run("runaway", &[]));
    let lines: Vec<&str> = printed.lines().collect();
    let [report, runaway, search] = lines[..] else {
        panic!("{printed}")
    };
    assert!(report.starts_with("/report: 2000 rows"), "{printed}");
    assert!(
        runaway.starts_with("/runaway: stopped. /runaway refuses a checkpoint of /runaway"),
        "{printed}"
    );
    assert!(search.starts_with("/search: 3000 rows"), "{printed}");
}

#[test]
fn nothing_is_left_of_the_pipeline() {
    let printed = printed(&run("pipeline", &["--seconds", "1", "--strings"]));
    let (messages, samples) = printed
        .split_once(" messages/s; ")
        .unwrap_or_else(|| panic!("{printed}"));
    assert!(
        messages.parse::<u64>().is_ok_and(|messages| messages > 0),
        "{printed}"
    );
    let (taken, off) = samples
        .split_once(" samples, ")
        .unwrap_or_else(|| panic!("{printed}"));
    assert!(
        taken.parse::<u64>().is_ok_and(|taken| taken > 10),
        "{printed}"
    );
    assert!(
        off.starts_with(
            "0 of them off, by 0 bytes at most\nat the end the ledgers are off by 0 bytes\n"
        ),
        "{printed}"
    );
}
