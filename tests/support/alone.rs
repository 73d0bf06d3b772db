//! A process that runs one test and nothing else: the test program, started again.

use std::env;
use std::process::Command;

/// Set in the process that a test started for itself.
const ALONE: &str = "MEMCG_TEST_ALONE";

/// Runs `body` in a process that runs nothing else. `name` is the test's own, with its module.
/// Lines in which it prints one of the `words` are printed here, too.
#[track_caller]
pub(crate) fn alone(name: &str, words: &[&str], body: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    let output = Command::new(env::current_exe().expect("a test program has a path"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .expect("a test program starts");
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{name}: {}\n{stdout}\n{stderr}",
        output.status
    );
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}");
    let asked_for = |line: &&str| words.iter().any(|word| line.contains(word));
    stdout
        .lines()
        .filter(asked_for)
        .for_each(|line| println!("{line}"));
}

/// Resident anonymous memory of this process, in bytes. Pages of the program are left out: code
/// that runs for the first time maps sixteen of them at once, and the bounds of these tests are no
/// wider than four such steps.
#[cfg(target_os = "linux")]
pub(crate) fn resident() -> u64 {
    let map = std::fs::read_to_string("/proc/self/smaps_rollup").expect("this is Linux");
    let line = map
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .expect("it tells");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .expect("a number")
        << 10
}
