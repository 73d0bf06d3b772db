//! The commands that README and the book print, and `.ci/readme.txt`, which says what runs each.

use std::collections::BTreeSet;

use crate::reader::{chapters, read};
use crate::rules::Rule;

/// The commands of a page: the lines of its blocks of shell, and what its text has between
/// backquotes and starts as a command does.
fn commands(page: &str) -> BTreeSet<String> {
    let mut commands = BTreeSet::new();
    let mut text = String::new();
    let mut block: Option<&str> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("sh")) if !line.trim().is_empty() => {
                commands.insert(line.trim().to_owned());
            }
            (None, Some(_)) => {}
            (None, None) => text.extend([line, " "]),
        }
    }
    let spans = text.split('`').skip(1).step_by(2);
    commands.extend(spans.filter(|span| is_command(span)).map(str::to_owned));
    commands
}

fn is_command(span: &str) -> bool {
    let sets_variable = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            name.chars()
                .all(|char| char.is_ascii_uppercase() || char == '_')
        })
    };
    let mut words = span
        .split_whitespace()
        .skip_while(|word| sets_variable(word));
    let first = words.next().unwrap_or_default().trim_start_matches('(');
    // The whole check runs itself.
    first.starts_with(".ci/") && first != ".ci/run"
        || matches!(first, "cargo" | "cd") && words.next().is_some()
}

/// The lines of the list: a command, and the step that runs it.
fn listed(list: &str) -> Vec<(String, String)> {
    let lines = list
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let parts = |line: &str| {
        line.split('|')
            .map(|part| part.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let entry = |parts: Vec<String>| match &parts[..] {
        [command, step, _more] => (command.clone(), step.clone()),
        other => panic!("not COMMAND | STEP | MORE: {other:?}"),
    };
    lines.map(|line| entry(parts(line))).collect()
}

/// True if the function of a step in `.ci/run` has the command as a line, whatever it says of lock
/// files.
fn runs(run: &str, step: &str, command: &str) -> bool {
    let body = run
        .split(&format!("\nstep_{step}() {{\n"))
        .nth(1)
        .and_then(|rest| rest.split("\n}\n").next());
    body.is_some_and(|body| {
        body.lines()
            .any(|line| line.trim().replace(" --locked", "") == command)
    })
}

pub(crate) fn faults(readme: &str, list: &str, run: &str) -> Vec<String> {
    let (printed, listed) = (commands(readme), listed(list));
    let names: BTreeSet<String> = listed.iter().map(|(command, _)| command.clone()).collect();
    let mut faults = Vec::new();
    if !readme.contains(&format!("```sh\n{}\n```\n", TRY.join("\n"))) {
        faults.push(format!("README.md does not print {TRY:?} in one block"));
    }
    faults.extend(
        printed
            .difference(&names)
            .map(|command| format!("no step runs `{command}`: .ci/readme.txt does not list it")),
    );
    faults.extend(
        names
            .difference(&printed)
            .map(|command| format!("no page prints `{command}`, which .ci/readme.txt lists")),
    );
    for (command, step) in &listed {
        let runs = match &step[..] {
            "readme" => runs(run, step, ".ci/readme"),
            "night_readme" => runs(run, step, ".ci/readme --night"),
            "series" if command != ".ci/series" => {
                runs(run, step, ".ci/series")
                    && readme
                        .lines()
                        .any(|line| line.starts_with(&format!("| `{command}` |")))
            }
            _ => runs(run, step, command),
        };
        if !runs {
            faults.push(format!("step {step} of .ci/run does not run `{command}`"));
        }
    }
    faults
}

/// What README has a newcomer run: the main job, and the tests.
const TRY: [&str; 2] = ["cargo run --release --example tenants", "cargo test"];

/// README and the chapters of the book, one after the other.
fn pages() -> String {
    std::iter::once(read("README.md"))
        .chain(chapters().into_iter().map(|chapter| chapter.text))
        .collect()
}

#[test]
fn each_command_of_the_pages_is_run() {
    let faults = faults(&pages(), &read(".ci/readme.txt"), &read(".ci/run"));
    Rule::Commands.hold(&faults);
}

#[test]
fn a_command_that_nothing_runs_is_found() {
    let readme = "Run `cargo a` or\n`cargo b --x\n-- y`, not `cargo`, `src/a` or `A=1`.\n```sh\n.ci/c\n```\n\
                  ```text\ncargo d\n```\n`N=1 cargo e`, `(cd f && cargo g)`, `cargo i`\n\n| `cargo j` |\n";
    let printed: Vec<String> = commands(readme).into_iter().collect();
    assert_eq!(
        printed,
        [
            "(cd f && cargo g)",
            ".ci/c",
            "N=1 cargo e",
            "cargo a",
            "cargo b --x -- y",
            "cargo i",
            "cargo j"
        ]
    );
    let run = "\nstep_one() {\n    cargo a --locked\n}\n\nstep_readme() {\n    .ci/readme\n}\n\nstep_series() {\n    .ci/series\n}\n";
    let list = "# of these\n\ncargo a | one |\ncargo b --x -- y | readme | --z\n.ci/c | one |\ncargo h | two |\n\
                cargo i | series |\ncargo j | series |\n";
    let found = [
        "README.md does not print [\"cargo run --release --example tenants\", \"cargo test\"] in one block",
        "no step runs `(cd f && cargo g)`: .ci/readme.txt does not list it",
        "no step runs `N=1 cargo e`: .ci/readme.txt does not list it",
        "no page prints `cargo h`, which .ci/readme.txt lists",
        "step one of .ci/run does not run `.ci/c`",
        "step two of .ci/run does not run `cargo h`",
        "step series of .ci/run does not run `cargo i`",
    ];
    assert_eq!(faults(readme, list, run), found);
}
