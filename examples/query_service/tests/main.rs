//! The program, run as a user runs it, in a small form.

use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_query_service")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The outcome of one policy in phases of a moment, without its goals.
fn outcome(policy: &str, more: &[&str]) -> Value {
    let small = ["--policy", policy, "--scale", "0.003", "--memory", "16", "--seconds", "0.3", "--quiet"];
    let output = run(&[&small[..], &["--format", "json"], more].concat());
    let mut report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let goals = report["goals"].as_array().unwrap();
    for words in ["all its rows", "all is given back"] {
        let goal = goals.iter().find(|goal| goal["text"].as_str().unwrap().contains(words)).unwrap();
        assert!(goal["is_met"].as_bool().unwrap(), "{report}");
    }
    let outcome = report["outcomes"][0].take();
    assert_eq!(outcome["policy"].as_str(), Some(policy));
    for (at, phase) in outcome["phases"].as_array().unwrap().iter().enumerate() {
        for (tenant, runs) in [at != 3, at != 3 && at > 0, at > 1].into_iter().enumerate() {
            let tally = &phase["tenants"][tenant];
            let sent: u64 = ["done", "refused", "failed"].iter().map(|count| tally[count].as_u64().unwrap()).sum();
            assert_eq!(sent > 0, runs, "tenant {tenant} in phase {at}: {phase}");
        }
    }
    outcome
}

/// Groups, with a page: the tenants are told apart, and the last phase has less memory.
#[test]
fn groups_under_three_tenants() {
    let page = std::env::temp_dir().join(format!("query_service-{}.html", std::process::id()));
    let ours = outcome("ours", &["--html", page.to_str().unwrap()]);
    assert!(ours["is_lowered"].as_bool().unwrap());
    let memory = ours["memory_bytes"].as_u64().unwrap();
    let phases = ours["phases"].as_array().unwrap();
    let most: Vec<_> = phases.iter().map(|phase| phase["most_reserved_bytes"].as_u64().unwrap()).collect();
    assert!(most[2] > 0 && most[3] > 0, "{most:?}");
    let drawn = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(drawn.starts_with("<!DOCTYPE html>"), "{drawn}");
    assert_eq!(drawn.matches("<svg").count(), 2 * 3, "three charts, for two widths");
    assert_eq!(memory, 16 << 20);
}

/// A pool that all tenants share, and one for each.
#[test]
fn pools_under_three_tenants() {
    for policy in ["greedy", "split"] {
        assert!(!outcome(policy, &[])["is_lowered"].as_bool().unwrap(), "{policy}");
    }
}

/// A control group of the system, where it lets the program make one; the load fits. The group is gone afterwards.
#[test]
fn a_container() {
    let small = ["--policy", "guard", "--scale", "0.001", "--memory", "16", "--seconds", "0.1", "--rounds", "2"];
    let output = run(&[&small[..], &["--quiet", "--container", "--format", "csv"]].concat());
    if is_left_out(&output) {
        return;
    }
    let table = text(&output.stdout);
    assert_eq!(table.lines().filter(|line| line.starts_with("guard,")).count(), 1, "{table}");
    assert!(!table.contains(",-"), "it has ended all phases: {table}");
}

/// Queries without a limit in a small control group of the system: it kills the process, and the program says when.
#[test]
fn a_container_kills_what_has_no_limit() {
    let large = ["--policy", "unbounded", "--scale", "0.05", "--memory", "1", "--seconds", "1", "--quiet"];
    let output = run(&[&large[..], &["--container", "--format", "json"]].concat());
    if is_left_out(&output) {
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outcome = &report["outcomes"][0];
    assert!(outcome["is_in_container"].as_bool().unwrap());
    assert!(outcome["killed_in"].is_string(), "{}", outcome["phases"]);
}

/// True if the system lets the program make no control group here.
fn is_left_out(output: &Output) -> bool {
    if output.stdout.is_empty() {
        assert!(text(&output.stderr).contains("makes no control group here"), "{}", text(&output.stderr));
        println!("left out: {}", text(&output.stderr));
    }
    output.stdout.is_empty()
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, words) in [
        (
            ["--policy", "hope"],
            "no policy \\\"hope\\\"; there are unbounded, greedy, fair, track, split, guard, ours, all",
        ),
        (["--scale", "0"], "--scale is a number from 0.001 to 10"),
        (["--seconds", "0"], "--seconds is a number from 0.1 to 3600"),
        (["--rounds", "0"], "--rounds is a number from 1 to 100"),
        (["--memory", "0"], "--memory is a number from 1 to 1048576, in MiB"),
    ] {
        let output = run(&arguments);
        assert!(!output.status.success() && text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}
