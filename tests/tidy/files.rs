//! Rules for files: their length, their gates, the version that they state.

use std::fs;
use std::process::Command;

use crate::reader::{Source, fail_if_any, read, read_all, root, split, tokens};

const LINES_MAX: usize = 800;

const FUNCTION_MAX: usize = 120;

/// The functions of a file that are longer than [`FUNCTION_MAX`], as `name: lines`. In formatted
/// code a function ends where a brace stands as far right as it began.
fn long_functions(text: &str) -> Vec<String> {
    let (code, _) = split(text);
    let lines: Vec<&str> = code.lines().collect();
    let mut long = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(words) = tokens(line)
            .windows(2)
            .find(|words| words[0] == "fn")
            .map(|words| words[1].to_owned())
        else {
            continue;
        };
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let begins = line.trim_end().ends_with(['{', '(', '>', ',']) || !line.contains(['{', ';']);
        let length = lines[at..]
            .iter()
            .position(|line| line.trim_end() == end)
            .map_or(0, |length| length + 1);
        if begins && length > FUNCTION_MAX {
            long.push(format!("{words}: {length} lines"));
        }
    }
    long
}

/// True for files that are built for users and not for tests and benches alone.
fn is_production(path: &str) -> bool {
    let mut folders = path.split('/');
    match folders.next() {
        Some("crates") => folders.nth(1) == Some("src"),
        folder => folder == Some("src"),
    }
}

/// Files and functions that are too long. A test may be a long function.
fn too_long(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    let file = (lines > LINES_MAX).then(|| format!("{}: {lines} lines", source.path));
    let functions = if is_production(&source.path) {
        long_functions(&source.text)
    } else {
        Vec::new()
    };
    let functions = functions
        .into_iter()
        .map(|function| format!("{}: {function}", source.path));
    file.into_iter().chain(functions).collect()
}

#[test]
fn files_and_functions_fit_a_reader() {
    let files = ["src", "crates", "tests"].map(|folder| read_all(folder, &["rs"]));
    let faults: Vec<String> = files.iter().flatten().flat_map(too_long).collect();
    fail_if_any(
        "no file is longer than 800 lines, no function of a src longer than 120",
        &faults,
    );
}

#[test]
fn tests_and_benches_step_aside_under_loom() {
    let mut faults = Vec::new();
    for folder in ["tests", "benches"] {
        for program in programs(folder)
            .iter()
            .map(|program| format!("{folder}/{program}"))
        {
            let (code, _) = split(&read(&program));
            if !code
                .lines()
                .any(|line| line.contains("cfg(") && tokens(line).contains(&"loom"))
            {
                faults.push(program);
            }
        }
    }
    fail_if_any(
        "loom's types panic outside a model: start the file with `#![cfg(not(loom))]`",
        &faults,
    );
}

/// The programs of a folder of tests or benches: files, and folders with a `main.rs`.
fn programs(folder: &str) -> Vec<String> {
    let entries =
        fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let names = entries.map(|entry| {
        entry
            .expect("a readable folder")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let program = |name: String| {
        if root().join(folder).join(&name).join("main.rs").exists() {
            Some(format!("{name}/main.rs"))
        } else {
            name.ends_with(".rs").then_some(name)
        }
    };
    names.filter_map(program).collect()
}

/// The programs that no entry of a manifest starts: cargo passes over them without a word.
fn not_listed(manifest: &str, programs: &[String]) -> Vec<String> {
    let listed = |program: &String| {
        manifest
            .lines()
            .any(|line| line == format!("path = \"{program}\""))
    };
    programs
        .iter()
        .filter(|program| !listed(program))
        .cloned()
        .collect()
}

#[test]
fn every_program_of_tests_and_benches_is_listed() {
    let manifest = "[[test]]\nname = \"api\"\npath = \"api/main.rs\"\n";
    assert_eq!(
        not_listed(manifest, &["api/main.rs".to_owned(), "new.rs".to_owned()]),
        ["new.rs"]
    );
    for folder in ["tests", "benches"] {
        let missing = not_listed(&read(format!("{folder}/Cargo.toml")), &programs(folder));
        fail_if_any(
            &format!("{folder}/Cargo.toml lists every program"),
            &missing,
        );
    }
}

/// Entries at the top of the project, folders that start with a dot aside.
const TOP: &[&str] = &[
    "CHANGELOG.md",
    "COMPARE.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "DESIGN.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "examples",
    "fuzz",
    "rustfmt.toml",
    "src",
    "tests",
];

/// The first parts of paths that belong to no entry of [`TOP`], each once.
fn strays(paths: &str) -> Vec<String> {
    let first = paths
        .lines()
        .map(|path| path.split('/').next().unwrap_or(path));
    let mut strays: Vec<String> = first
        .filter(|name| !name.starts_with('.') && !TOP.contains(name))
        .map(str::to_owned)
        .collect();
    strays.dedup();
    strays
}

#[test]
fn only_what_belongs_to_the_project_is_committed() {
    assert_eq!(
        strays("README.md\nsrc/lib.rs\n.ci/run\ngroups-1/a.o\ngroups-1/b.o\n"),
        ["groups-1"]
    );
    let listed = Command::new("git")
        .arg("-C")
        .arg(root())
        .arg("ls-files")
        .output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
        println!("no git repository here: skipped");
        return;
    };
    fail_if_any(
        "a file at the top is listed in TOP",
        &strays(&String::from_utf8_lossy(&listed.stdout)),
    );
}

#[test]
fn the_readme_states_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let readme = read("README.md");
    let lines: Vec<&str> = readme
        .lines()
        .filter(|line| line.trim_start().starts_with("memcg = "))
        .collect();
    assert!(
        !lines.is_empty(),
        "README.md does not say how to depend on memcg"
    );
    for line in lines {
        let stated = line.split('"').nth(1).unwrap_or("");
        let fits =
            !stated.is_empty() && (version == stated || version.starts_with(&format!("{stated}.")));
        assert!(fits, "README.md says `{}`, this is {version}", line.trim());
    }
    assert!(
        read("CHANGELOG.md").contains(&format!("## {version}")),
        "CHANGELOG.md has no heading for {version}"
    );
}

#[test]
fn what_is_too_long_is_found() {
    let of = |lines: usize| too_long(&Source::new("src/a.rs", &"// a\n".repeat(lines)));
    assert_eq!(
        (of(800), of(801)),
        (vec![], vec!["src/a.rs: 801 lines".to_owned()])
    );
    let function = |lines: usize| {
        let body = "        a();\n".repeat(lines - 2);
        let text = format!(
            "    fn short(&self);\n\n    pub(crate) fn f<T>(\n{body}    }}\n\n    fn g() {{}}\n"
        );
        too_long(&Source::new("src/a.rs", &text))
    };
    assert_eq!(
        (function(120), function(121)),
        (vec![], vec!["src/a.rs: f: 121 lines".to_owned()])
    );
    let is_production = [
        "src/a/b.rs",
        "crates/a/src/b.rs",
        "crates/a/tests/src/b.rs",
        "tests/a.rs",
    ]
    .map(is_production);
    assert_eq!(is_production, [true, true, false, false]);
}
