//! The models, the rows of the tables of mutations and the marks in the sources: each model fails
//! for one mutation at least, each row names a model, each mutation has its mark. An edge names a
//! model, so each edge has a mutation.

use std::collections::{BTreeMap, BTreeSet};

use crate::edges::models_written;
use crate::reader::{CONTAINERS, read, read_all, sources};
use crate::rules::Rule;

/// The mutation and the model of each row of a table, in its order.
fn rows(table: &str) -> Vec<(&str, &str)> {
    let rows = table
        .lines()
        .filter(|line| line.starts_with(|char: char| char.is_ascii_lowercase()));
    rows.map(|row| row.split_once(' ').unwrap_or((row, "")))
        .map(|(name, rest)| (name, first_word(rest)))
        .collect()
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// The tables of mutations: that of the crate, that of the containers, and that of the adapters without
/// models.
const TABLES: [&str; 3] = [
    ".ci/mutations.txt",
    "crates/memcg-kmem/mutations.txt",
    "crates/mutations.txt",
];

/// The sources of the adapters without models that the simulator lives.
const SIMULATED: [&str; 5] = [
    "crates/memcg-alloc/src",
    "crates/memcg-host/src",
    "crates/memcg-observe/src",
    "crates/memcg-tokio/src",
    "crates/memcg-tower/src",
];

/// In the place of a model: the lives of `tests/simulator` notice.
const SIMULATOR: &str = "simulator";

/// Each model that a table names, with its mutations.
pub(crate) fn mutations_of() -> BTreeMap<String, Vec<String>> {
    let mut models: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for table in TABLES.map(read) {
        for (name, model) in rows(&table) {
            if model == SIMULATOR {
                continue;
            }
            models
                .entry(model.to_owned())
                .or_default()
                .push(name.to_owned());
        }
    }
    models
}

/// The mutations of all tables, those of the simulator with them.
pub(crate) fn mutations_named() -> BTreeSet<String> {
    let named = |table: String| {
        rows(&table)
            .into_iter()
            .map(|(name, _)| name.to_owned())
            .collect()
    };
    TABLES
        .map(read)
        .into_iter()
        .flat_map::<Vec<String>, _>(named)
        .collect()
}

/// The mutations that the marks of a source name.
fn marks(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("// Mutation: "))
}

pub(crate) fn faults(
    table: &str,
    marked: &BTreeSet<&str>,
    written: &BTreeSet<String>,
) -> Vec<String> {
    let rows = rows(table);
    let named: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
    let mutated: BTreeSet<&str> = rows.iter().map(|(_, model)| *model).collect();
    let unordered = rows.windows(2).filter(|pair| pair[0].0 > pair[1].0);
    let unordered = unordered.map(|pair| {
        format!(
            "{} stands below {}: rows are in the order of names",
            pair[1].0, pair[0].0
        )
    });
    let unmarked = named
        .difference(marked)
        .map(|name| format!("no mark in src for {name}"));
    let unnamed = marked
        .difference(&named)
        .map(|name| format!("no row for the mark {name}"));
    let is_known = |model: &str| model == SIMULATOR || written.contains(model);
    let unknown = mutated.iter().filter(|model| !is_known(model));
    let unknown = unknown.map(|model| format!("a row names {model}, which is not in src/tests"));
    // A scenario of shuttle is broad, and for no edge: it may have none.
    let models = written.iter().filter(|model| model.starts_with("loom_"));
    let without = models.filter(|model| !mutated.contains(model.as_str()));
    let without = without.map(|model| format!("no row names {model}"));
    unordered
        .chain(unmarked)
        .chain(unnamed)
        .chain(unknown)
        .chain(without)
        .collect()
}

#[test]
fn every_model_has_a_mutation_and_every_mutation_its_mark() {
    let of_containers = read_all(CONTAINERS, &["rs"]);
    let all = models_written();
    let is_theirs = |model: &String| {
        of_containers
            .iter()
            .any(|source| source.text.contains(&format!("fn {model}()")))
    };
    let (theirs, ours) = all.into_iter().partition(is_theirs);
    let simulated = SIMULATED
        .iter()
        .flat_map(|folder| read_all(folder, &["rs"]));
    let mut found = Vec::new();
    for (table, sources, models) in [
        (TABLES[0], sources(), ours),
        (TABLES[1], of_containers.clone(), theirs),
        (TABLES[2], simulated.collect(), BTreeSet::new()),
    ] {
        let marked = sources
            .iter()
            .flat_map(|source| marks(&source.text))
            .collect();
        found.extend(faults(&read(table), &marked, &models));
    }
    Rule::Mutations.hold(&found);
}

#[test]
fn what_lacks_its_mutation_row_or_mark_is_found() {
    let written = ["loom_a_vs_b", "loom_c_vs_d"].map(str::to_owned).into();
    let code = "fn f() {\n    // Mutation: a\n    g();\n    // Mutation: b-c\n    h();\n}\n";
    let marked = marks(code).collect();
    let a = "# loom_e\na loom_a_vs_b preemptions 3\n    put loom_e\n";
    assert_eq!(
        faults(
            &format!("{a}b-c loom_c_vs_d\n    delete\n"),
            &marked,
            &written
        ),
        [""; 0]
    );
    assert_eq!(
        faults(a, &marked, &written),
        ["no row for the mark b-c", "no row names loom_c_vs_d"]
    );
    assert_eq!(
        faults(
            &format!("b-c loom_c_vs_d\n    delete\n{a}d loom_e\n    delete\n"),
            &marked,
            &written
        ),
        [
            "a stands below b-c: rows are in the order of names",
            "no mark in src for d",
            "a row names loom_e, which is not in src/tests"
        ]
    );
}
