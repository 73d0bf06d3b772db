//! The host of plugins, run as its users run it.

use std::process::Command;

#[test]
fn a_plugin_ends_where_the_host_is_full_and_the_others_go_on() {
    let output = Command::new(env!("CARGO_BIN_EXE_plugins"))
        .output()
        .expect("the program runs");
    let [printed, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{printed}{errors}");
    for line in [
        "/plugins/leaky: created, max 75%",
        "/plugins/search: low 4 MiB -> 0 B, max none -> 8 MiB",
        "/plugins/leaky: offline",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{printed}");
    }
    assert!(
        printed.contains("\nleaky: ended after ") && printed.contains(" calls, 1 victims\n"),
        "{printed}"
    );
    assert!(
        printed.contains("/plugins/search: unknown field `lowest`"),
        "{printed}"
    );
    assert!(printed.contains("\nsearch: 0 of "), "{printed}");
    assert!(printed.ends_with(": all add up\n"), "{printed}");
}
