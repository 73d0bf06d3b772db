//! The output of an example that runs without arguments and succeeds.

use std::process::Command;

use crate::program::program;

/// The standard output of the example. The test fails where the example does.
pub(crate) fn prints(name: &str) -> String {
    let output = Command::new(program(name))
        .output()
        .expect("the example starts");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{stdout}{stderr}");
    stdout
}
