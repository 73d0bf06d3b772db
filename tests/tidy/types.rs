//! A type is implemented in few files: its parts are types of their own, and what uses it takes it
//! as an argument. A name stands for one type.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::Crate;
use crate::reader::{read, sources};
use crate::rules::{Finding, hold};

/// Files that may have `impl` blocks of one type, of its own functions or of traits.
const FILES_MAX: usize = 4;

/// The face of the crate, spread by topic.
const SPREAD: &[&str] = &["src/group/handle.rs: Group", "src/group/charge.rs: Charge"];

pub(crate) fn findings(of: &Crate) -> Vec<Finding> {
    let mut files: BTreeMap<(usize, String), BTreeSet<usize>> = BTreeMap::new();
    for implemented in &of.implemented {
        let found = of.find(implemented.module, &implemented.path);
        for defined in found.items {
            files.entry(defined).or_default().insert(implemented.source);
        }
    }
    let path = |source: usize| of.sources[source].path.as_str();
    let named = |name: &str| files.keys().filter(|(_, of)| of == name).count();
    let mut findings = Vec::new();
    for (&(defined, ref name), within) in &files {
        let spread = SPREAD.contains(&format!("{}: {name}", path(defined)).as_str());
        if within.len() <= FILES_MAX || spread {
            continue;
        }
        let key = if named(name) > 1 {
            format!("{name} of {}", path(defined))
        } else {
            name.clone()
        };
        let within: Vec<&str> = within.iter().map(|&source| path(source)).collect();
        let why = format!(
            "{} has `impl` blocks in {} files:\n    {}",
            key,
            within.len(),
            within.join("\n    ")
        );
        findings.push(Finding {
            kind: "type",
            key,
            count: within.len(),
            why,
        });
    }
    findings
}

/// A user's value that names what the engine's type is.
const OF_USERS: &[&str] = &["Counter"];

/// Names of types that stand in more than one file. `sync` has one name for what each checker
/// defines in its own file.
pub(crate) fn twins(of: &Crate) -> Vec<Finding> {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, source) in &of.types {
        let source = &of.sources[*source];
        let place = if source.folder() == "sync" {
            "src/sync"
        } else {
            &source.path
        };
        places.entry(name).or_default().insert(place);
    }
    let twins = places
        .into_iter()
        .filter(|(name, places)| places.len() > 1 && !OF_USERS.contains(name));
    let finding = |(name, places): (&str, BTreeSet<&str>)| {
        let why = format!(
            "types of this name in\n    {}",
            places.iter().copied().collect::<Vec<_>>().join("\n    ")
        );
        Finding {
            kind: "twin",
            key: name.to_owned(),
            count: places.len(),
            why,
        }
    };
    twins.map(finding).collect()
}

#[test]
fn a_name_stands_for_one_type() {
    hold("twin", "no two types of the crate have one name");
}

#[test]
fn types_are_implemented_in_few_files() {
    hold(
        "type",
        "a type of the engine has `impl` blocks in four files at most",
    );
}

/// The face of the crate: public methods of `Group`, and names at the root, modules among them.
#[test]
fn the_face_of_the_crate_fits_a_reader() {
    let sources = sources();
    let blocks = sources
        .iter()
        .flat_map(|source| source.production().split("\nimpl Group {\n").skip(1));
    let lines = blocks.flat_map(|block| block.split("\n}\n").next().unwrap_or_default().lines());
    let methods = lines
        .filter(|line| line.starts_with("    pub fn ") || line.starts_with("    pub async fn "))
        .count();
    assert!(
        (1..=60).contains(&methods),
        "`Group` has {methods} public methods: 60 at most"
    );
    let lib = read("src/lib.rs");
    let exported = lib
        .split("\npub use ")
        .skip(1)
        .filter_map(|used| used.split(';').next());
    let words = exported.flat_map(|used| used.split(|char: char| !char.is_alphanumeric()));
    let types = words
        .filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase()))
        .count();
    let names = types
        + lib
            .lines()
            .filter(|line| line.starts_with("pub mod "))
            .count();
    assert!(
        (1..=60).contains(&names),
        "the root of the crate has {names} names: 60 at most"
    );
}
