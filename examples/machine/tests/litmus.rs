//! The example `litmus`, run as its users run it: it says how far it is, and what it found.

use std::process::Command;

use crate::program::program;

#[test]
fn a_reader_of_a_pipe_gets_the_start_too() {
    let args = ["--shape", "put-close", "--rounds", "2000"];
    let output = Command::new(program("litmus"))
        .args(args)
        .output()
        .expect("the example starts");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{stdout}{stderr}");
    if stdout.starts_with("litmus: skipped, ") {
        return print!("{stdout}");
    }
    assert_eq!(stderr, "litmus: put-close        2000 rounds\n");
    let found = "litmus: put-close        real pair: 0 misses in 2000 rounds, ";
    assert!(
        stdout.starts_with(found) && stdout.ends_with(" s: ok\n"),
        "{stdout}"
    );
}

#[test]
fn shape_that_there_is_not_is_named_beside_those_that_there_are() {
    let output = Command::new(program("litmus"))
        .args(["--shape", "square"])
        .output();
    let output = output.expect("the example starts");
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(
        stderr,
        "litmus: no such shape; there are store-buffering, put-close, consume-drain, add-unlist\n"
    );
}
