//! The hosted runs, `.github/workflows`: every step of `.ci/run` belongs to exactly one job, and a
//! job is one call of that script. The files are read as text: `.ci/workflows` holds their layout
//! and that they mean something.

use std::collections::BTreeMap;

use crate::reader::read;
use crate::rules::Rule;

const FILES: [&str; 2] = [".github/workflows/check.yml", ".github/workflows/night.yml"];

/// The words of `name=(...)` in a script.
fn list<'a>(script: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("{name}=(");
    let line = script
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.strip_suffix(')'));
    line.unwrap_or_else(|| panic!(".ci/run has no line {start}...)"))
        .split_whitespace()
        .collect()
}

/// The lines of each job, without their indentation and the mark of a list.
fn jobs(workflow: &str) -> Vec<(&str, Vec<&str>)> {
    let mut jobs: Vec<(&str, Vec<&str>)> = Vec::new();
    let lines = workflow.lines().skip_while(|line| *line != "jobs:").skip(1);
    for line in lines.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    {
        let name = line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '));
        match (name, jobs.last_mut()) {
            (Some(name), _) => jobs.push((name.trim_end_matches(':'), Vec::new())),
            (None, Some((_, lines))) => lines.push(line.trim().trim_start_matches("- ")),
            (None, None) => panic!("a line before the first job: {line}"),
        }
    }
    jobs
}

fn values<'a>(lines: &[&'a str], key: &str) -> Vec<&'a str> {
    let start = format!("{key}:");
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(&start))
        .map(str::trim)
        .collect()
}

/// An action of a commit, with the version that a reader knows it by.
fn is_pinned(action: &str) -> bool {
    let commit = action
        .split_once('@')
        .and_then(|(_, rest)| rest.split_once("  # v"))
        .map(|(commit, _)| commit);
    commit.is_some_and(|commit| {
        commit.len() == 40 && commit.chars().all(|char| char.is_ascii_hexdigit())
    })
}

fn faults_of_job(lines: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    let runs = values(lines, "run");
    if runs.len() != 1 {
        faults.push(format!("has {} commands, not one", runs.len()));
    }
    let others = runs.iter().filter(|run| {
        let steps = run.strip_prefix("bash .ci/run ");
        !steps.is_some_and(|steps| {
            steps
                .chars()
                .all(|char| char.is_ascii_lowercase() || "_ ".contains(char))
        })
    });
    faults.extend(others.map(|run| format!("runs `{run}`, not `bash .ci/run STEP...`")));
    let loose = values(lines, "uses")
        .into_iter()
        .filter(|action| !is_pinned(action));
    faults.extend(loose.map(|action| format!("uses {action}, not ACTION@COMMIT  # vVERSION")));
    if values(lines, "timeout-minutes").len() != 1 {
        faults.push("has no timeout-minutes".to_owned());
    }
    for key in ["if", "continue-on-error", "permissions", "shell"] {
        if !values(lines, key).is_empty() {
            faults.push(format!(
                "has `{key}`: what it calls may be left out, or may do more than the others"
            ));
        }
    }
    faults
}

pub(crate) fn faults(run: &str, workflows: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut called: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, workflow) in workflows {
        for must in [
            "\npermissions:\n  contents: read\n\n",
            "\nconcurrency:\n",
            "\ndefaults:\n  run:\n    shell: bash\n",
        ] {
            if !workflow.contains(must) {
                faults.push(format!("{path} lacks {:?}", must.trim()));
            }
        }
        for (name, lines) in jobs(workflow) {
            let place = format!("{path}: {name}");
            faults.extend(
                faults_of_job(&lines)
                    .into_iter()
                    .map(|fault| format!("{place} {fault}")),
            );
            let steps = values(&lines, "run")
                .into_iter()
                .flat_map(|run| run.split_whitespace().skip(2));
            steps.for_each(|step| called.entry(step).or_default().push(place.clone()));
        }
    }
    let listed = [list(run, "steps"), list(run, "apart")].concat();
    for step in &listed {
        match called.get(step).map_or(0, Vec::len) {
            1 => {}
            0 => faults.push(format!("no job runs the step {step}")),
            _ => faults.push(format!(
                "the step {step} runs in {}",
                called[step].join(" and in ")
            )),
        }
    }
    let unknown = called.iter().filter(|(step, _)| !listed.contains(step));
    faults.extend(
        unknown.map(|(step, places)| {
            format!("{} calls {step}, which .ci/run does not list", places[0])
        }),
    );
    let functions = run
        .lines()
        .filter_map(|line| line.strip_prefix("step_")?.strip_suffix("() {"));
    let unlisted = functions.filter(|step| !listed.contains(step));
    faults.extend(unlisted.map(|step| format!(".ci/run has step_{step} and lists no such step")));
    faults
}

#[test]
fn every_step_has_one_job() {
    let texts = FILES.map(read);
    let workflows: Vec<(&str, &str)> = FILES
        .into_iter()
        .zip(texts.iter().map(String::as_str))
        .collect();
    Rule::Jobs.hold(&faults(&read(".ci/run"), &workflows));
}

pub(crate) const RUN: &str =
    "steps=(one two)\napart=(three)\nstep_one() {\n}\nstep_two() {\n}\nstep_three() {\n}\n";

const WORKFLOW: &str = "name: a

permissions:
  contents: read

concurrency:
  group: a

defaults:
  run:
    shell: bash

jobs:
  # Two steps.
  first:
    runs-on: b
    timeout-minutes: 3
    steps:
      - uses: c/d@0123456789012345678901234567890123456789  # v1
      - run: bash .ci/run one two

  second:
    timeout-minutes: 3
    steps:
      - run: bash .ci/run three
";

#[test]
fn a_job_that_is_not_one_call_is_found() {
    let of = |from: &str, to: &str| {
        assert!(WORKFLOW.contains(from), "{from}");
        faults(RUN, &[("w", &WORKFLOW.replacen(from, to, 1))])
    };
    assert_eq!(of("b", "b"), [""; 0]);
    assert_eq!(of(" two", ""), ["no job runs the step two"]);
    assert_eq!(
        of("three", "three two"),
        ["the step two runs in w: first and in w: second"]
    );
    assert_eq!(
        of("three", "three four"),
        ["w: second calls four, which .ci/run does not list"]
    );
    assert_eq!(
        of("      - run: bash .ci/run three\n", ""),
        [
            "w: second has 0 commands, not one",
            "no job runs the step three"
        ]
    );
    let faults = of("bash .ci/run three", "cargo test");
    assert_eq!(
        faults[0],
        "w: second runs `cargo test`, not `bash .ci/run STEP...`"
    );
    assert!(of("three", "three || true")[0].starts_with("w: second runs "));
    assert!(
        of("bash .ci/run three", "|\n          bash .ci/run three")[0]
            .starts_with("w: second runs `|`")
    );
    assert_eq!(
        of("@0", "@")[0].split(',').next(),
        Some("w: first uses c/d@123456789012345678901234567890123456789  # v1")
    );
    assert_eq!(
        of("    timeout-minutes: 3\n", ""),
        ["w: first has no timeout-minutes"]
    );
    assert!(of("runs-on: b", "if: false")[0].starts_with("w: first has `if`"));
    assert!(
        of(
            "- run: bash",
            "- continue-on-error: true\n        run: bash"
        )[0]
        .contains("continue-on-error")
    );
    assert_eq!(
        of("contents: read", "contents: write"),
        ["w lacks \"permissions:\\n  contents: read\""]
    );
}

#[test]
fn a_step_that_no_list_has_is_found() {
    let run = RUN.replacen("steps=(one two)", "steps=(one)", 1);
    let expected = [
        "w: first calls two, which .ci/run does not list",
        ".ci/run has step_two and lists no such step",
    ];
    assert_eq!(faults(&run, &[("w", WORKFLOW)]), expected);
}

/// The names in the first column of a page's tables.
fn rows(page: &str) -> Vec<&str> {
    let first = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    first
        .flat_map(|names| names.split(", ").map(|name| name.trim_matches('`')))
        .collect()
}

/// The rows of a page that are not the steps of `.ci/run`, in their order.
pub(crate) fn steps_untold(page: &str, run: &str) -> Vec<String> {
    let (told, steps) = (
        rows(page),
        [list(run, "steps"), list(run, "apart")].concat(),
    );
    if told == steps {
        return Vec::new();
    }
    let missing = steps.iter().filter(|step| !told.contains(step));
    let unknown = told.iter().filter(|step| !steps.contains(step));
    let mut faults: Vec<String> = missing
        .map(|step| format!("no row for {step}"))
        .chain(unknown.map(|step| format!("a row for {step}, which .ci/run does not list")))
        .collect();
    if faults.is_empty() {
        faults.push(format!("the rows are {told:?}, the steps {steps:?}"));
    }
    faults
}

#[test]
fn the_book_says_what_each_step_holds() {
    assert_eq!(rows("| step |\n|---|\n| `a`, `b` | c, `d` |\n"), ["a", "b"]);
    Rule::Steps.hold(&steps_untold(&read("docs/src/checks.md"), &read(".ci/run")));
}

/// A third file would escape the checks above.
#[test]
fn every_workflow_is_read() {
    let folder = crate::reader::root().join(".github/workflows");
    let found =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let name = |entry: std::fs::DirEntry| {
        format!(".github/workflows/{}", entry.file_name().to_string_lossy())
    };
    let mut names: Vec<String> = found
        .map(|entry| name(entry.expect("a readable folder")))
        .collect();
    names.sort();
    assert_eq!(names, FILES);
}
