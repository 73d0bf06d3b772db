//! What holds for files: their length, their gates, the version that they state.

use std::fs;

use crate::reader::{fail_if_any, read, root, sources, split, tokens};

const LINES_MAX: usize = 500;

#[test]
fn files_fit_a_reader() {
    let long = sources().into_iter().filter(|source| source.text.lines().count() > LINES_MAX);
    let faults: Vec<String> =
        long.map(|source| format!("{}: {} lines", source.path, source.text.lines().count())).collect();
    fail_if_any("no file in src is longer than 500 lines", &faults);
}

#[test]
fn tests_and_benches_step_aside_under_loom() {
    let mut faults = Vec::new();
    for folder in ["tests", "benches"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for path in entries.map(|entry| entry.expect("a readable folder").path()) {
            let file = if path.is_dir() { path.join("main.rs") } else { path };
            if file.extension().is_some_and(|extension| extension == "rs") && file.exists() {
                let (code, _) = split(&read(&file));
                let gate = code.lines().find(|line| line.contains("cfg(") && tokens(line).contains(&"loom"));
                if gate.is_none() {
                    faults.push(file.display().to_string());
                }
            }
        }
    }
    fail_if_any("loom's types panic outside a model: start the file with `#![cfg(not(loom))]`", &faults);
}

#[test]
fn the_readme_states_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let readme = read("README.md");
    let lines: Vec<&str> = readme.lines().filter(|line| line.trim_start().starts_with("memcg = ")).collect();
    assert!(!lines.is_empty(), "README.md does not say how to depend on memcg");
    for line in lines {
        let stated = line.split('"').nth(1).unwrap_or("");
        let fits = !stated.is_empty() && (version == stated || version.starts_with(&format!("{stated}.")));
        assert!(fits, "README.md says `{}`, this is {version}", line.trim());
    }
    assert!(read("CHANGELOG.md").contains(&format!("## {version}")), "CHANGELOG.md has no heading for {version}");
}
