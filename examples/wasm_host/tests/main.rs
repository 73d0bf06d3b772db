//! The program, run as a user runs it.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use serde_json::Value;

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wasm_host"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn outcomes(arguments: &[&str]) -> Result<Vec<Value>, String> {
    let output = program(arguments);
    let printed = text(&output.stdout);
    if !output.status.success() {
        return Err(format!("{printed}{}", text(&output.stderr)));
    }
    Ok(serde_json::from_str(printed.lines().last().unwrap()).unwrap())
}

fn count(outcome: &Value, tenant: usize, what: &str) -> u64 {
    outcome["tenants"][tenant][what].as_u64().unwrap()
}

fn groups_serve_all_but_the_greedy(outcome: &Value, requests: u64) {
    assert_eq!(
        (&outcome["policy"], &outcome["exit"]),
        (&"groups".into(), &0.into()),
        "{outcome}"
    );
    for tenant in [0, 1] {
        assert_eq!(count(outcome, tenant, "served"), requests, "{outcome}");
    }
    assert_eq!(count(outcome, 2, "refused"), requests, "{outcome}");
    let reason = outcome["tenants"][2]["reason"].as_str().unwrap();
    assert!(
        reason.contains("no room for the guest's memory"),
        "{reason}"
    );
}

#[test]
fn without_a_control_group_two_policies_run() {
    let all = outcomes(&["--quick", "--limit", "64MiB", "--requests", "6"]).unwrap();
    let [shares, groups] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(
        (&shares["policy"], &shares["exit"]),
        (&"store_limits".into(), &0.into())
    );
    assert_eq!(count(shares, 0, "served"), 6, "{shares}");
    // A report needs more than an equal share, also while the rest is free.
    assert_eq!(
        (count(shares, 1, "refused"), count(shares, 2, "refused")),
        (6, 6),
        "{shares}"
    );
    groups_serve_all_but_the_greedy(groups, 6);
}

/// If the system lets the test make no control group it says so, unless `CI=true` and this is root.
#[test]
fn the_kernel_kills_the_service_without_a_limit() {
    match outcomes(&["--limit", "128MiB", "--requests", "8"]) {
        Ok(all) => {
            let [none, shares, groups] = &all[..] else {
                panic!("{all:?}")
            };
            assert_eq!(none["exit"], 137, "{none}");
            assert!(
                count(none, 0, "lost") + count(none, 1, "lost") > 0,
                "{none}"
            );
            assert_eq!(
                (count(shares, 1, "served"), &shares["exit"]),
                (0, &0.into()),
                "{shares}"
            );
            groups_serve_all_but_the_greedy(groups, 8);
        }
        Err(why) => {
            let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
            let cannot = ["No such file", "Read-only file system"]
                .iter()
                .any(|words| why.contains(words));
            assert!(why.contains("no control group"), "{why}");
            assert!(
                std::env::var("CI").as_deref() != Ok("true") || !is_root || cannot,
                "root may make one: {why}"
            );
            println!("left out: {why}");
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, words) in [
        (&["--limit", "1MiB"][..], "--limit is at least 64 MiB"),
        (
            &["--requests", "0"],
            "--requests is a number from 1 to 10000",
        ),
        (
            &["--quick", "--only", "none"],
            "nothing would end the service",
        ),
    ] {
        let output = program(arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
