//! The program, run as a user runs it, in a small form.

use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_query_service"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The outcome of one policy in phases of a moment, without its goals.
fn outcome(policy: &str) -> Value {
    let small = [
        "--policy",
        policy,
        "--scale",
        "0.003",
        "--memory",
        "16",
        "--seconds",
        "0.3",
        "--quiet",
    ];
    let output = run(&[&small[..], &["--format", "json"]].concat());
    let mut report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let goals = report["goals"].as_array().unwrap();
    for words in ["all its rows", "all is given back"] {
        let goal = goals
            .iter()
            .find(|goal| goal["text"].as_str().unwrap().contains(words))
            .unwrap();
        assert!(goal["is_met"].as_bool().unwrap(), "{report}");
    }
    let outcome = report["outcomes"][0].take();
    assert_eq!(outcome["policy"].as_str(), Some(policy));
    for (at, phase) in outcome["phases"].as_array().unwrap().iter().enumerate() {
        for (tenant, runs) in [at != 3, at != 3 && at > 0, at > 1].into_iter().enumerate() {
            let tally = &phase["tenants"][tenant];
            let sent: u64 = ["done", "refused", "failed"]
                .iter()
                .map(|count| tally[count].as_u64().unwrap())
                .sum();
            assert_eq!(sent > 0, runs, "tenant {tenant} in phase {at}: {phase}");
        }
    }
    outcome
}

/// Groups: the tenants are told apart, and the last phase has less memory.
#[test]
fn groups_under_three_tenants() {
    for policy in ["ours", "ranked"] {
        let outcome = outcome(policy);
        assert!(outcome["is_lowered"].as_bool().unwrap());
        let memory = outcome["memory_bytes"].as_u64().unwrap();
        let phases = outcome["phases"].as_array().unwrap();
        let most: Vec<_> = phases
            .iter()
            .map(|phase| phase["most_reserved_bytes"].as_u64().unwrap())
            .collect();
        assert!(most[2] > 0 && most[3] > 0, "{most:?}");
        assert_eq!(memory, 16 << 20);
    }
}

/// A pool that all tenants share, and one for each.
#[test]
fn pools_under_three_tenants() {
    for policy in ["greedy", "split"] {
        assert!(
            !outcome(policy)["is_lowered"].as_bool().unwrap(),
            "{policy}"
        );
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, words) in [
        (
            ["--policy", "hope"],
            "possible values: unbounded, greedy, fair, track, split, ours, ranked",
        ),
        (["--scale", "0"], "expected a number from 0.001 to 10"),
        (["--seconds", "0"], "expected a number from 0.1 to 3600"),
        (["--rounds", "0"], "0 is not in 1..=100"),
        (["--memory", "0"], "0 is not in 1..=1048576"),
    ] {
        let output = run(&arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
