//! The program, run as a user runs it, in a small form.

#[path = "../../tests/beside.rs"]
mod beside;

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut program = Command::new(beside::program("http_service"));
    program
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
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
    assert!(
        printed.contains("all add up; 0 bytes are left"),
        "{printed}"
    );
}

#[test]
fn each_peer_runs() {
    for peer in ["unlimited", "concurrency", "split"] {
        let output = run(&["--scale", "8", "--seconds", "1", "--policy", peer]);
        assert!(
            output.status.success(),
            "{peer}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        assert!(
            text(&output.stdout)
                .lines()
                .any(|line| line.starts_with(peer)),
            "{peer}"
        );
    }
    let unknown = run(&["--policy", "hope"]);
    assert!(
        !unknown.status.success()
            && text(&unknown.stderr).contains("no policy \\\"hope\\\"; there are ours, ")
    );
}
