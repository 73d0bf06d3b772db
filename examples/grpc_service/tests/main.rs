//! The program, run as a user runs it.

#[path = "../../tests/beside.rs"]
mod beside;

use std::process::Command;

#[test]
fn a_full_tenant_gets_resource_exhausted_and_the_other_is_answered() {
    let mut program = Command::new(beside::program("grpc_service"));
    let output = program
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let printed = text(&output.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    let [
        first,
        logged,
        refused,
        retry,
        full,
        other,
        again,
        unknown_logged,
        unknown,
        unnamed_logged,
        unnamed,
        verdict,
    ] = lines[..]
    else {
        panic!("{printed}")
    };
    assert_eq!(
        [first, other, again],
        ["acme: SERVING", "globex: SERVING", "acme: SERVING"]
    );
    assert_eq!([unknown_logged, unnamed_logged], ["log: no such tenant"; 2]);
    assert_eq!(
        [unknown, unnamed],
        [
            "initech: PermissionDenied: no such tenant",
            ": PermissionDenied: no such tenant"
        ]
    );
    assert!(
        logged.starts_with("log: /acme refused 144 KiB for /acme: short by 144 KiB"),
        "{printed}"
    );
    assert_eq!(
        refused,
        "acme: ResourceExhausted: too much is under way for this tenant: try again later"
    );
    assert_eq!(
        [retry, full],
        ["  try again after 1s", "  short: the tenant"]
    );
    assert_eq!(
        verdict,
        "3 counters verified against the audited count: all add up"
    );
}
