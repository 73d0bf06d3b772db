//! The results that `.ci/series` reads from the lines of programs and of tests, on a made-up
//! chapter.

use std::collections::BTreeMap;

use super::chapter::Chapter;
use super::made_up::GOOD;
use super::outcome::{Findings, Tests, collect, judge, place, strangers};

const TESTS: &str =
    "running 3 tests\ntest scale::weighs ... ok\ntest scale::twin ... ok\ntest other ... FAILED\n";

/// The words printed of each claim, and what fails the run.
fn run(output: &str, tests: &str, full: bool) -> (Vec<String>, Vec<String>) {
    let (chapter, faults) = Chapter::read("cake", GOOD);
    assert_eq!(faults, [""; 0]);
    let mut said = BTreeMap::new();
    let mut findings = Findings::default();
    collect(output, &mut said, &mut findings);
    let outcomes = judge(&chapter, &said, &Tests::read(tests), full, &mut findings);
    strangers(&[chapter], &said, true, &mut findings);
    (
        outcomes.into_iter().map(|outcome| outcome.word).collect(),
        findings.list().to_vec(),
    )
}

#[test]
fn a_chapter_that_holds_has_no_faults() {
    let words = ["confirmed", "refuted", "not applicable"];
    for full in [false, true] {
        let (found, faults) = run("table\nclaim cake-1 confirmed: 3 of 3\n", TESTS, full);
        assert_eq!(
            (&found[..], &faults[..]),
            (&words.map(str::to_owned)[..], &[][..])
        );
    }
}

#[test]
fn a_claim_that_does_not_hold_fails_the_run() {
    let wrong = "cake-1: this run says refuted, the chapter confirmed";
    assert_eq!(run("claim cake-1 refuted: 1 of 3", TESTS, false).1, [wrong]);
    assert_eq!(
        run("claim cake-1 refuted (timed): 1.2 +-0.1", TESTS, true).1,
        [wrong]
    );
    // Few rounds say little of times.
    assert_eq!(
        run("claim cake-1 refuted (timed): 1.2 +-0.1", TESTS, false),
        (words("refuted"), vec![])
    );
    assert_eq!(
        run("claim cake-1 open: too noisy", TESTS, true),
        (words("open"), vec![])
    );
}

fn words(first: &str) -> Vec<String> {
    [first, "refuted", "not applicable"]
        .map(str::to_owned)
        .into()
}

#[test]
fn what_is_missing_or_unknown_fails_the_run() {
    let (found, faults) = run("", TESTS, false);
    assert_eq!(
        (&found[0][..], &faults[..]),
        (
            "MISSING",
            &["cake-1: no program printed a line for it".to_owned()][..]
        )
    );
    let good = "claim cake-1 confirmed: 3 of 3\n";
    for (line, fault) in [
        (
            "claim cake-7 confirmed: 1\n",
            "a program judges `cake-7`, which is in no chapter",
        ),
        (
            "claim bread-1 confirmed: 1\n",
            "a program judges `bread-1`, which is in no chapter",
        ),
        (
            "claim cake-1 confirmed: 1\n",
            "two lines of programs judge `cake-1`",
        ),
        (
            "claim cake-1 perhaps: 1\n",
            "not `claim ID VERDICT: TEXT`: claim cake-1 perhaps: 1",
        ),
    ] {
        assert_eq!(run(&format!("{good}{line}"), TESTS, false).1, [fault]);
    }
}

#[test]
fn a_test_that_failed_or_did_not_run_fails_the_run() {
    let good = "claim cake-1 confirmed: 3 of 3\n";
    let (found, faults) = run(
        good,
        &TESTS.replace("weighs ... ok", "weighs ... FAILED"),
        false,
    );
    assert_eq!(found[0], "FAILED");
    assert!(
        faults
            .iter()
            .any(|fault| fault == "cake-1: test `weighs` of tests/cake/scale.rs failed"),
        "{faults:?}"
    );
    let (found, faults) = run(good, "", true);
    assert_eq!(found[0], "FAILED");
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("`weighs` of tests/cake/scale.rs did not run")),
        "{faults:?}"
    );
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("scale.rs::twin`, which holds a patch")),
        "{faults:?}"
    );
}

#[test]
fn a_file_is_a_module_of_a_program() {
    let path = |file: &str| place(file).map(|place| (place.program.clone(), place.path("x")));
    let of = |program: &str, name: &str| Some((program.to_owned(), name.to_owned()));
    assert_eq!(
        path("tests/kernel/conformance/stock.rs"),
        of("kernel", "conformance::stock::x")
    );
    assert_eq!(path("tests/pressure/oom/mod.rs"), of("pressure", "oom::x"));
    assert_eq!(path("tests/api/main.rs"), of("api", "x"));
    assert_eq!(path("tests/allocator.rs"), of("allocator", "x"));
    assert_eq!(path("src/counter/drain.rs"), of("", "counter::drain::x"));
    assert_eq!(path("examples/table.rs"), None);
}
