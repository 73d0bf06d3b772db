//! Programs of tests and benches, and what manifest, README and the root page say alike: features,
//! crates, the version.

use std::collections::BTreeSet;
use std::fs;

use crate::reader::{Source, read, read_all, root, split, tokens};
use crate::rules::Rule;

/// True if a program of tests or benches has a condition on loom.
pub(crate) fn steps_aside(program: &str) -> bool {
    let (code, _) = split(program);
    code.lines()
        .any(|line| line.contains("cfg(") && tokens(line).contains(&"loom"))
}

#[test]
fn tests_and_benches_step_aside_under_loom() {
    let all = ["tests", "benches"].into_iter().flat_map(|folder| {
        programs(folder)
            .into_iter()
            .map(move |program| format!("{folder}/{program}"))
    });
    let faults: Vec<String> = all.filter(|program| !steps_aside(&read(program))).collect();
    Rule::AsideUnderLoom.hold(&faults);
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
pub(crate) fn not_listed(manifest: &str, programs: &[String]) -> Vec<String> {
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
    let mut faults = Vec::new();
    for folder in ["tests", "benches"] {
        let missing = not_listed(&read(format!("{folder}/Cargo.toml")), &programs(folder));
        faults.extend(
            missing
                .iter()
                .map(|program| format!("{folder}/Cargo.toml: no entry for {program}")),
        );
    }
    Rule::ProgramsListed.hold(&faults);
}

/// The sources with unit tests that the manifest in their folder leaves out.
pub(crate) fn left_out<'a>(manifest: &str, sources: &'a [Source]) -> Vec<&'a str> {
    let is_left_out = manifest.lines().any(|line| line == "test = false");
    let is_test = |line: &str| {
        ["#[test]", "#[tokio::test"]
            .iter()
            .any(|word| line.trim().starts_with(word))
    };
    let has_tests = |source: &&Source| source.text.lines().any(is_test);
    sources
        .iter()
        .filter(|source| is_left_out && has_tests(source))
        .map(|source| source.path.as_str())
        .collect()
}

#[test]
fn unit_tests_are_compiled() {
    let crates = crates().into_iter().map(|name| format!("crates/{name}"));
    let others = [
        "crates/memcg-derive",
        "tests/simulator",
        "docs/build",
        "examples/caches",
    ];
    let mut faults = Vec::new();
    for folder in crates.chain(others.map(str::to_owned)) {
        let manifest = read(format!("{folder}/Cargo.toml"));
        let sources = read_all(&format!("{folder}/src"), &["rs"]);
        let left_out = left_out(&manifest, &sources);
        faults.extend(left_out.iter().map(|path| (*path).to_owned()));
    }
    Rule::UnitTestsCompiled.hold(&faults);
}

/// The features of a manifest, but for those of the crate's own tests.
fn features(manifest: &str) -> BTreeSet<&str> {
    let section = manifest.split("\n[features]\n").nth(1).unwrap_or_default();
    section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| *name != "default" && !name.starts_with(['#', '_']))
        .collect()
}

/// Features of the manifest that README or the root page does not name, and crates that README does
/// not.
pub(crate) fn untold(manifest: &str, crates: &[String], readme: &str, lib: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for feature in features(manifest) {
        let is_told =
            |line: &str| line.starts_with("| `") && line.contains(&format!("`{feature}`"));
        if !readme.lines().any(is_told) {
            faults.push(format!("README.md has no row for the feature `{feature}`"));
        }
        if !lib.contains(&format!("//! * `{feature}`:")) {
            faults.push(format!(
                "src/lib.rs has no line for the feature `{feature}`"
            ));
        }
    }
    for name in crates {
        if !readme.contains(&format!("`{name}`")) {
            faults.push(format!("README.md does not name the crate `{name}`"));
        }
    }
    faults
}

/// The adapters that are for users. The derive macro comes with a feature.
fn crates() -> Vec<String> {
    let folder = root().join("crates");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("crates: {error}"));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("a readable folder").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("memcg-") && name != "memcg-derive")
        .collect();
    names.sort();
    names
}

#[test]
fn features_and_crates_are_told() {
    let manifest = read("Cargo.toml");
    assert!(
        !features(&manifest).is_empty() && !crates().is_empty(),
        "no feature, or no crate, was found"
    );
    Rule::FeaturesListed.hold(&untold(
        &manifest,
        &crates(),
        &read("README.md"),
        &read("src/lib.rs"),
    ));
}

/// Lines of README, and the changelog, that state another version.
pub(crate) fn other_versions(version: &str, readme: &str, changelog: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines: Vec<&str> = readme
        .lines()
        .filter(|line| line.trim_start().starts_with("memcg = "))
        .collect();
    if lines.is_empty() {
        faults.push("README.md does not say how to depend on memcg".to_owned());
    }
    for line in lines {
        let stated = line.split('"').nth(1).unwrap_or("");
        let fits =
            !stated.is_empty() && (version == stated || version.starts_with(&format!("{stated}.")));
        if !fits {
            faults.push(format!(
                "README.md says `{}`, this is {version}",
                line.trim()
            ));
        }
    }
    if !changelog.contains(&format!("## {version}")) {
        faults.push(format!("CHANGELOG.md has no heading for {version}"));
    }
    faults
}

#[test]
fn the_readme_states_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    Rule::Version.hold(&other_versions(
        version,
        &read("README.md"),
        &read("CHANGELOG.md"),
    ));
}
