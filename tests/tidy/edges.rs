//! Every ordering edge that the code names is explained, has its two ends, and is modelled.

use std::collections::{BTreeMap, BTreeSet};

use crate::reader::{CONTAINERS, Source, read, read_all, sources, split, tokens};
use crate::rules::Rule;

/// The numbers of the edges that a text names: the words E1, E2, ...
pub(crate) fn edges(text: &str) -> BTreeSet<u32> {
    let number = |word: &str| word.strip_prefix('E')?.parse().ok();
    tokens(text).into_iter().filter_map(number).collect()
}

pub(crate) fn models_named(text: &str) -> BTreeSet<String> {
    tokens(text)
        .into_iter()
        .filter(|word| word.starts_with("loom_"))
        .map(str::to_owned)
        .collect()
}

pub(crate) fn is_model(name: &str) -> bool {
    name.starts_with("loom_") || name.starts_with("shuttle_")
}

/// The models and scenarios that exist: functions of src/tests, here and in the crate of the
/// containers.
pub(crate) fn models_written() -> BTreeSet<String> {
    let mut models = BTreeSet::new();
    let of_containers = read_all(CONTAINERS, &["rs"])
        .into_iter()
        .filter(|source| source.path.contains("/src/tests/"));
    for source in sources()
        .into_iter()
        .filter(|source| source.is_in("tests"))
        .chain(of_containers)
    {
        let (code, _) = split(&source.text);
        let tokens = tokens(&code);
        let functions = tokens
            .windows(2)
            .filter(|pair| pair[0] == "fn" && is_model(pair[1]));
        models.extend(functions.map(|pair| pair[1].to_owned()));
    }
    models
}

/// The table of src/docs/orderings.md: a row starts with the edge's id in a cell of its own.
pub(crate) fn edge_table() -> BTreeMap<u32, String> {
    let text = read("src/docs/orderings.md");
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let Some(row) = line.trim_start_matches(['/', '!', ' ']).strip_prefix('|') else {
            continue;
        };
        let id = row.split('|').next().unwrap_or("").trim();
        let Some(edge) = id.strip_prefix('E').and_then(|number| number.parse().ok()) else {
            continue;
        };
        assert!(
            table.insert(edge, line.to_owned()).is_none(),
            "E{edge} has two rows in src/docs/orderings.md"
        );
    }
    assert!(
        !table.is_empty(),
        "src/docs/orderings.md has no row `| E1 | ... |`"
    );
    table
}

/// Edges that lack a row, a model or an end: `table` has the rows, `written` the models.
pub(crate) fn faults(
    sources: &[Source],
    table: &BTreeMap<u32, String>,
    written: &BTreeSet<String>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut named: BTreeMap<u32, usize> = BTreeMap::new();
    for source in sources
        .iter()
        .filter(|source| !source.is_in("docs") && !source.is_in("tests"))
    {
        for (number, line) in split(&source.text).1.lines().enumerate() {
            for edge in edges(line) {
                // A list in a file's head is no end of an edge.
                *named.entry(edge).or_default() +=
                    usize::from(!line.trim_start().starts_with("//!"));
                if !table.contains_key(&edge) {
                    faults.push(format!(
                        "{}:{}: E{edge} has no row in src/docs/orderings.md",
                        source.path,
                        number + 1
                    ));
                }
            }
        }
    }
    for (edge, row) in table {
        let models = models_named(row);
        if models.is_empty() {
            faults.push(format!("src/docs/orderings.md: E{edge} names no model"));
        }
        for model in models.difference(written) {
            faults.push(format!(
                "src/docs/orderings.md: E{edge} names {model}, which is not in src/tests"
            ));
        }
        let places = named.get(edge).copied().unwrap_or(0);
        if places < 2 {
            faults.push(format!(
                "E{edge} is named at {places} place(s) in src, not at both its ends"
            ));
        }
    }
    faults
}

#[test]
pub(crate) fn every_edge_is_explained_and_modelled() {
    Rule::Edges.hold(&faults(&sources(), &edge_table(), &models_written()));
}

#[test]
fn edges_are_read_from_comments() {
    let (_, comments) = split("a(\"E3\") // E1 (crate::x)\n/* E2 */ fn f()");
    assert_eq!(edges(&comments), BTreeSet::from([1, 2]));
}
