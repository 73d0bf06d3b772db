//! The program, run as a user runs it, in a small form.

#[path = "../../tests/beside.rs"]
mod beside;

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut program = Command::new(beside::program("http_service"));
    program.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_flood_is_shed_and_the_other_tenant_keeps_its_cache() {
    let output = run(&["--scale", "8", "--seconds", "2"]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert_eq!(printed.matches("  met:    ").count(), 6, "{printed}");
    assert!(printed.contains("all add up; 0 bytes are left"), "{printed}");
}

#[test]
fn each_peer_runs() {
    for peer in ["unlimited", "concurrency", "semaphore", "moka", "moka-static", "foyer"] {
        let output = run(&["--scale", "8", "--seconds", "1", "--policy", peer]);
        assert!(output.status.success(), "{peer}: {}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stdout).lines().any(|line| line.starts_with(peer)), "{peer}");
    }
    let unknown = run(&["--policy", "hope"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("no policy \\\"hope\\\"; there are ours, "));
}

#[test]
fn throughput_is_measured_beside_the_same_service_without_it() {
    let output = run(&["--scale", "8", "--throughput", "10"]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    let lines: Vec<&str> = printed.lines().collect();
    let [head, ours, without, ratio, .., verdict] = lines[..] else { panic!("{printed}") };
    assert!(head.starts_with("10 pairs of turns of 100 ms") && ours.starts_with("ours "), "{printed}");
    assert!(without.starts_with("without ") && ratio.starts_with("ratio "), "{printed}");
    assert!(verdict.ends_with("all add up"), "{printed}");
    let too_few = run(&["--throughput", "9"]);
    assert!(!too_few.status.success() && text(&too_few.stderr).contains("--throughput is a number from 10 on"));
}
