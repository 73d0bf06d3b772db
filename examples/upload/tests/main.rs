//! The program, run as a user runs it.

use std::process::Command;

#[test]
fn files_larger_than_the_max_are_stored_and_too_many_are_shed() {
    let output = Command::new(env!("CARGO_BIN_EXE_upload")).output().unwrap();
    let [printed, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{printed}{errors}");
    let (logged, lines): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|line| line.starts_with("log: "));
    let [large, unknown, held, fourth, other, ends @ .., verdict] = &lines[..] else {
        panic!("{printed}")
    };
    assert_eq!(
        [*large, unknown, held, other],
        [
            "acme, 16 MiB: 200 16777216 bytes",
            "initech: 403 no such tenant",
            "three uploads hold 3 MiB or more",
            "globex: 200 3145728 bytes",
        ]
    );
    assert_eq!(
        *fourth,
        "acme, a fourth: 429 too much is under way for this tenant: try again later"
    );
    let [unknown, full] = logged[..] else {
        panic!("{printed}")
    };
    assert_eq!(unknown, "log: no such tenant");
    assert!(
        full.starts_with("log: /acme refused 1.1 MiB for /acme: short by "),
        "{printed}"
    );
    assert_eq!(ends, ["acme, to the end: 200 2097152 bytes"; 3]);
    assert!(verdict.ends_with(": all add up"), "{printed}");
}
