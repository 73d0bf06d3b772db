//! Every ordering beyond Relaxed is explained where it stands, and no statistic has one.

use std::collections::{BTreeMap, BTreeSet};

use crate::edges::{edge_table, edges, models_named};
use crate::reader::{Source, read, sources, split, tokens};
use crate::rules::Rule;

/// Edges that rest on the barrier pair.
const PAIRED: &[u32] = &[2, 3, 5, 17];

const STRONG: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// Lines of `text`, from 1 on, with an ordering beyond Relaxed and without a comment above that
/// names its edge or says `No edge:`. An empty line ends the search.
pub(crate) fn unexplained(text: &str) -> Vec<usize> {
    let (code, comments) = split(text);
    let (lines, comments): (Vec<&str>, Vec<&str>) =
        (text.lines().collect(), comments.lines().collect());
    let explains = |at: usize| !edges(comments[at]).is_empty() || comments[at].contains("No edge:");
    let is_explained = |from: usize| {
        (0..=from)
            .rev()
            .take_while(|&at| !lines[at].trim().is_empty())
            .any(explains)
    };
    let strong = code
        .lines()
        .enumerate()
        .filter(|(_, line)| names_strong(&tokens(line)));
    strong
        .filter(|&(at, _)| !is_explained(at))
        .map(|(at, _)| at + 1)
        .collect()
}

fn names_strong(tokens: &[&str]) -> bool {
    tokens
        .windows(3)
        .any(|path| path[..2] == ["Ordering", "::"] && STRONG.contains(&path[2]))
}

/// Names of a file's atomics, each with whether it is a statistic: fields, statics and parameters.
/// That of a field without a name is its number.
fn declared(tokens: &[&str]) -> BTreeMap<String, bool> {
    let statistics = imported(tokens);
    let mut names = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_statistic = statistics.contains(token);
        if !is_statistic && !token.starts_with("Atomic") {
            continue;
        }
        let stops =
            |at: &usize| matches!(tokens[*at], ":" | "(" | "," | ";" | "{" | "}" | "=" | "::");
        match (0..at).rev().find(stops) {
            Some(colon) if tokens[colon] == ":" && colon > 0 => {
                names.insert(tokens[colon - 1].to_owned(), is_statistic);
            }
            Some(open) if tokens[open] == "(" && open > 1 && tokens[open - 2] == "struct" => {
                names.insert("0".to_owned(), is_statistic);
            }
            _ => {}
        }
    }
    names
}

/// A file's names for the types of `stat_atomic`.
fn imported<'a>(tokens: &[&'a str]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for at in 0..tokens.len().saturating_sub(1) {
        if tokens[at] == "stat_atomic" && tokens[at + 1] == "::" {
            let names_here = tokens[at + 2..]
                .split(|token| *token == ";")
                .next()
                .unwrap_or_default();
            let each = names_here.split(|token| matches!(*token, "," | "{" | "}"));
            names.extend(each.filter_map(|import| import.last().copied()));
        }
    }
    names
}

/// Atomics that are used with an ordering beyond Relaxed, by the names they have there.
fn strongly_used<'a>(tokens: &[&'a str]) -> BTreeSet<&'a str> {
    let is_operation = |name: &str| {
        matches!(name, "load" | "store" | "swap")
            || name.starts_with("fetch_")
            || name.starts_with("compare_exchange")
    };
    let calls = (2..tokens.len().saturating_sub(1))
        .filter(|&at| tokens[at - 1] == "." && tokens[at + 1] == "(" && is_operation(tokens[at]));
    calls
        .filter(|&at| names_strong(&arguments(&tokens[at + 1..])))
        .filter_map(|at| receiver(&tokens[..at - 1]))
        .collect()
}

/// Those of a call, and nothing of the calls within. From its parenthesis on.
fn arguments<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut depth = 0;
    let mut own = Vec::new();
    for &token in tokens {
        depth += i32::from(token == "(") - i32::from(token == ")");
        match depth {
            0 => break,
            1 => own.push(token),
            _ => {}
        }
    }
    own
}

/// The last name before a dot, whatever it is indexed with.
fn receiver<'a>(tokens: &[&'a str]) -> Option<&'a str> {
    let mut depth = 0;
    tokens.iter().rev().copied().find(|&token| {
        depth += i32::from(token == "]") - i32::from(token == "[");
        depth == 0 && token != "["
    })
}

/// Statistics with an ordering beyond Relaxed, as `file: name`. A file that does not declare a name
/// uses another's.
pub(crate) fn ordered_statistics(files: &[(&str, &str)]) -> Vec<String> {
    let codes: Vec<(&str, String)> = files
        .iter()
        .map(|(path, text)| (*path, split(text).0))
        .collect();
    let all: Vec<(&str, Vec<&str>)> = codes
        .iter()
        .map(|(path, code)| (*path, tokens(code)))
        .collect();
    let own: Vec<BTreeMap<String, bool>> = all.iter().map(|(_, tokens)| declared(tokens)).collect();
    let anywhere: BTreeSet<&String> = own
        .iter()
        .flatten()
        .filter(|(name, statistic)| **statistic && *name != "0")
        .map(|(name, _)| name)
        .collect();
    let mut faults = Vec::new();
    for ((path, tokens), own) in all.iter().zip(&own) {
        for name in strongly_used(tokens) {
            let is_statistic = own
                .get(name)
                .copied()
                .unwrap_or_else(|| anywhere.contains(&name.to_owned()));
            faults.extend(is_statistic.then(|| format!("{path}: {name}")));
        }
    }
    faults
}

/// Neither documentation nor models, nor the checkers' own side of the door.
fn is_production(source: &Source) -> bool {
    !["docs", "tests", "sync::model"]
        .iter()
        .any(|module| source.is_in(module))
}

#[test]
fn every_ordering_names_its_edge() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| is_production(source)) {
        let lines = unexplained(source.production());
        faults.extend(
            lines
                .into_iter()
                .map(|line| format!("{}:{line}", source.path)),
        );
    }
    Rule::Orderings.hold(&faults);
}

#[test]
fn statistics_are_relaxed() {
    let sources = sources();
    let production = sources.iter().filter(|source| is_production(source));
    let files: Vec<(&str, &str)> = production
        .map(|source| (source.path.as_str(), source.production()))
        .collect();
    let statistics = files
        .iter()
        .filter(|(_, text)| !imported(&tokens(&split(text).0)).is_empty())
        .count();
    assert!(
        statistics > 0,
        "no file uses stat_atomic: is this still its name?"
    );
    Rule::Statistics.hold(&ordered_statistics(&files));
}

/// Functions that start a model with `model` or `model_of_exchanges`: with the barrier pair.
fn run_with_pair(code: &str) -> BTreeSet<String> {
    let tokens = tokens(code);
    let mut function = "";
    let mut with_pair = BTreeSet::new();
    for words in tokens.windows(3) {
        match words {
            ["fn", name, _] => function = name,
            [before, "model" | "model_of_exchanges", "("] if *before != "fn" => {
                with_pair.insert(function.to_owned());
            }
            _ => {}
        }
    }
    with_pair
}

/// Models with the barrier pair, of `with_pair`, whose edges in `table` hold without it.
pub(crate) fn needless_pairs(
    table: &BTreeMap<u32, String>,
    with_pair: &BTreeSet<String>,
    excepted: &BTreeSet<String>,
) -> Vec<String> {
    let mut of: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (edge, row) in table {
        for model in models_named(row) {
            of.entry(model).or_default().insert(*edge);
        }
    }
    let rests_on_it = |model: &String| of[model].iter().any(|edge| PAIRED.contains(edge));
    let wrong = of.keys().filter(|model| {
        with_pair.contains(*model) && !rests_on_it(model) && !excepted.contains(*model)
    });
    wrong.cloned().collect()
}

#[test]
fn edges_without_the_pair_are_modelled_without_it() {
    let page = read("src/docs/orderings.md");
    let excepted = page
        .split("These models keep the pair.")
        .nth(1)
        .and_then(|rest| rest.split("//!\n").next());
    let excepted = models_named(excepted.expect("the paragraph about models that keep the pair"));
    let with_pair: BTreeSet<String> = sources()
        .iter()
        .filter(|source| source.is_in("tests"))
        .flat_map(|source| run_with_pair(&split(&source.text).0))
        .collect();
    assert!(
        !with_pair.is_empty(),
        "no model has the pair: are these still the names?"
    );
    Rule::WithoutPair.hold(&needless_pairs(&edge_table(), &with_pair, &excepted));
}

// === the checks themselves ===

#[test]
fn a_model_with_the_pair_is_found() {
    let code = "fn model(f: F) { g() }\nfn a() { model(|| x); }\nfn b() { model_without_pair(|| x); }\nfn c() {\n for i in 0..2 {\nmodel(move || x) } }";
    assert_eq!(
        run_with_pair(code),
        BTreeSet::from(["a", "c"].map(str::to_owned))
    );
}

#[test]
fn an_ordering_without_an_edge_is_found() {
    let bare = "fn f() {\n    a.load(Ordering::Acquire);\n}\n";
    assert_eq!(unexplained(bare), [2]);
    assert_eq!(
        unexplained("fn f() {\n    a.load(Ordering::Relaxed);\n}\n"),
        [0; 0]
    );
    for above in [
        "// Acquire (E2): pairs with `g`.",
        "// No edge: a hint.",
        "// Acquire (E2): a long reason\n    // of two lines.",
    ] {
        let text =
            format!("fn f() {{\n    {above}\n    a\n        .load(Ordering::Acquire);\n}}\n");
        assert_eq!(unexplained(&text), [0; 0], "{above}");
    }
    for above in ["// Acquire: it must.", "\"E2\";", "// E2: too far.\n\n"] {
        let text = format!("fn f() {{\n    {above}\n    a.load(Ordering::Acquire);\n}}\n");
        assert_eq!(unexplained(&text).len(), 1, "{above}");
    }
}

#[test]
fn a_statistic_with_an_ordering_is_found() {
    const IMPORT: &str = "use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU64 as StatU64};\nuse crate::sync::AtomicU64;\n";
    let alone = |body: &str| ordered_statistics(&[("a.rs", &format!("{IMPORT}{body}"))]);
    for bad in [
        "struct S { n: StatU64 }\nfn f(s: &S) { s.n.load(Ordering::Acquire); }",
        "struct S { n: [StatU64; 2] }\nfn f(s: &S) { s.n[s.at(1)].fetch_add(g(1), Ordering::SeqCst); }",
        "struct S { n: StatPtr<T> }\nfn f(s: &S) { s.n\n.compare_exchange(a, b, Ordering::Relaxed, Ordering::Acquire); }",
    ] {
        assert_eq!(alone(bad), ["a.rs: n"], "{bad}");
    }
    assert_eq!(
        alone("struct P(StatPtr<T>);\nfn f(p: &P) { p.0.store(a, Ordering::Release); }"),
        ["a.rs: 0"]
    );
    for good in [
        "struct S { n: StatU64 }\nfn f(s: &S) { s.n.load(Ordering::Relaxed); }",
        "struct S { n: AtomicU64 }\nfn f(s: &S) { s.n.load(Ordering::Acquire); }",
        "struct S { n: StatU64, m: AtomicU64 }\nfn f(s: &S) { s.n.store(s.m.load(Ordering::Acquire), Ordering::Relaxed); }",
    ] {
        assert_eq!(alone(good), [""; 0], "{good}");
    }
    let other = "fn g(s: &S) { s.n.swap(1, Ordering::AcqRel); }";
    let declares = format!("{IMPORT}struct S {{ n: StatU64 }}");
    assert_eq!(
        ordered_statistics(&[("a.rs", &declares), ("b.rs", other)]),
        ["b.rs: n"]
    );
}
