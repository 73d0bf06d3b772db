//! A type is implemented in few files: its parts are types of their own, and what uses it takes it as an argument. A
//! name stands for one type.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::Crate;
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
        let key = if named(name) > 1 { format!("{name} of {}", path(defined)) } else { name.clone() };
        let within: Vec<&str> = within.iter().map(|&source| path(source)).collect();
        let why = format!("{} has `impl` blocks in {} files:\n    {}", key, within.len(), within.join("\n    "));
        findings.push(Finding { kind: "type", key, count: within.len(), why });
    }
    findings
}

/// A user's value that names what the engine's type is.
const OF_USERS: &[&str] = &["Counter"];

/// Names of types that stand in more than one file. `sync` has one name for what each checker defines in its own file.
pub(crate) fn twins(of: &Crate) -> Vec<Finding> {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, source) in &of.types {
        let source = &of.sources[*source];
        let place = if source.folder() == "sync" { "src/sync" } else { &source.path };
        places.entry(name).or_default().insert(place);
    }
    let twins = places.into_iter().filter(|(name, places)| places.len() > 1 && !OF_USERS.contains(name));
    let finding = |(name, places): (&str, BTreeSet<&str>)| {
        let why = format!("types of this name in\n    {}", places.iter().copied().collect::<Vec<_>>().join("\n    "));
        Finding { kind: "twin", key: name.to_owned(), count: places.len(), why }
    };
    twins.map(finding).collect()
}

#[test]
fn a_name_stands_for_one_type() {
    hold("twin", "no two types of the crate have one name");
}

#[test]
fn types_are_implemented_in_few_files() {
    hold("type", "a type of the engine has `impl` blocks in four files at most");
}
