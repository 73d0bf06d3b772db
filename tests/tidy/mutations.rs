//! The models and the blocks of `.ci/mutations.txt`: each model fails for one block at least, and each block names a
//! model. An edge names a model, so each edge has a mutation.

use std::collections::{BTreeMap, BTreeSet};

use crate::edges::models_written;
use crate::reader::{fail_if_any, read};

/// The models that the blocks of a table name, each with its mutations. What a block finds and replaces is code,
/// whatever it looks like.
fn models_mutated(table: &str) -> BTreeMap<&str, Vec<&str>> {
    let (mut in_code, mut name) = (false, "");
    let mut models: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in table.lines() {
        match line {
            "find" => in_code = true,
            "end" => in_code = false,
            _ if in_code => {}
            _ => {
                name = line.strip_prefix("mutation ").unwrap_or(name);
                if let Some(model) = line.strip_prefix("model ") {
                    models.entry(model).or_default().push(name);
                }
            }
        }
    }
    models
}

/// Each model that `.ci/mutations.txt` names, with its mutations.
pub(crate) fn mutations_of() -> BTreeMap<String, Vec<String>> {
    let table = read(".ci/mutations.txt");
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    models_mutated(&table).into_iter().map(|(model, names)| (model.to_owned(), owned(names))).collect()
}

/// Blocks that a merge of two tables has mixed: one begins within another, or does not end.
fn mixed(table: &str) -> Vec<String> {
    let mut open: Option<&str> = None;
    let mut faults = Vec::new();
    for line in table.lines() {
        match (line.strip_prefix("mutation "), open) {
            (Some(name), None) => open = Some(name),
            (Some(name), Some(around)) => faults.push(format!("{name} begins within {around}")),
            (None, _) if line == "end" => open = None,
            _ => {}
        }
    }
    faults.extend(open.map(|name| format!("{name} has no end")));
    faults
}

fn faults(table: &str, written: &BTreeSet<String>) -> Vec<String> {
    let mutated = models_mutated(table);
    let unknown = mutated.keys().filter(|&&model| !written.contains(model));
    let unknown = unknown.map(|model| format!("a block names {model}, which is not in src/tests"));
    // A scenario of shuttle is broad, and for no edge: it may have one.
    let models = written.iter().filter(|model| model.starts_with("loom_"));
    let without = models.filter(|model| !mutated.contains_key(model.as_str()));
    unknown.chain(without.map(|model| format!("no block names {model}"))).collect()
}

#[test]
fn every_model_has_a_mutation() {
    let table = read(".ci/mutations.txt");
    fail_if_any("each model fails for a mutation", &faults(&table, &models_written()));
    fail_if_any("each block of mutations is whole", &mixed(&table));
}

#[test]
fn a_model_without_a_mutation_is_found() {
    let written = ["loom_a_vs_b", "loom_c_vs_d"].map(str::to_owned).into();
    let block =
        |model: &str| format!("mutation name\nmodel {model}\nfile src/x.rs\nfind\nmodel loom_code\nreplace\nend\n");
    let table = |models: &[&str]| models.iter().map(|model| block(model)).collect::<String>();
    assert_eq!(faults(&table(&["loom_a_vs_b", "loom_c_vs_d"]), &written), [""; 0]);
    assert_eq!(faults(&table(&["loom_a_vs_b"]), &written), ["no block names loom_c_vs_d"]);
    assert_eq!(
        faults(&table(&["loom_a_vs_b", "loom_c_vs_d", "loom_e"]), &written),
        ["a block names loom_e, which is not in src/tests"]
    );
}

#[test]
fn a_mixed_block_is_found() {
    let block = |name: &str| format!("mutation {name}\nmodel loom_a\nfile src/x.rs\nfind\na\nreplace\nend\n");
    assert_eq!(mixed(&(block("a") + &block("b"))), [""; 0]);
    assert_eq!(mixed(&("mutation a\nmodel loom_a\n".to_owned() + &block("b"))), ["b begins within a"]);
    assert_eq!(mixed("mutation a\nfind\n"), ["a has no end"]);
}
