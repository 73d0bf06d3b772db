#![cfg(not(any(loom, shuttle)))]
//! The example `numa_kmem`, run as its users run it: its table says where bytes lie, without an
//! empty field.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The place where cargo has put the example: beside the folder of this test's own program.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("a profile folder");
    let program = profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        program.exists(),
        "no example at {}: `cargo test` without `--test` builds it",
        program.display()
    );
    program
}

#[test]
fn no_field_is_empty() {
    let output = Command::new(program("numa_kmem"))
        .args(["--only", "simulation"])
        .output();
    let output = output.expect("the example starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let stdout = String::from_utf8(output.stdout).expect("text");

    // The first table is of rows that no thread has written: all of them are on no node.
    let rows: Vec<&str> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("    kernel "))
        .map(str::trim)
        .collect();
    assert_eq!(rows.first(), Some(&"on no node 8 MiB"), "{stdout}");
    let quarter = rows.get(1).expect("the same row, a quarter of it written");
    assert!(
        quarter.starts_with("N0=") && quarter.ends_with(", on no node 6 MiB"),
        "{stdout}"
    );
    assert!(
        stdout
            .lines()
            .all(|line| !line.contains(" ,") && !line.ends_with(' ')),
        "{stdout}"
    );
}
