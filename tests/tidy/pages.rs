//! Pages of text: the files, models, mutations, edges and tests that they name exist, and their
//! links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::edges::{edge_table, edges, is_model, models_written};
use crate::graph::{self, LAYERS};
use crate::mutations::mutations_of;
use crate::reader::{CONTAINERS, Source, is_name, pages, read, read_all, root, tokens};
use crate::rules::Rule;

/// A code span of a page.
struct Span<'a> {
    /// From 1 on.
    line: usize,
    text: &'a str,
    /// The text between the span before and this one, on one line.
    before: String,
}

/// The code spans of a page, blocks of code aside.
fn spans(page: &str) -> Vec<Span<'_>> {
    let mut spans = Vec::new();
    let mut in_block = false;
    let mut before = String::new();
    for (number, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            for (at, part) in line.trim_start().split('`').enumerate() {
                if at % 2 == 0 {
                    before.push_str(part);
                } else {
                    spans.push(Span {
                        line: number + 1,
                        text: part,
                        before: std::mem::take(&mut before),
                    });
                }
            }
            before = before.trim_end().to_owned() + " ";
        }
    }
    spans
}

/// True for a span that is meant as a file or folder of the project.
fn is_path(span: &str) -> bool {
    let plain = span
        .chars()
        .all(|char| char.is_ascii_alphanumeric() || "_-./".contains(char));
    let known = [".rs", ".md", ".toml", ".txt"]
        .iter()
        .any(|end| span.len() > end.len() && span.ends_with(end));
    // Not an address: its first part has a dot.
    let folder = span.ends_with('/') && !span.starts_with('/');
    plain && (known || folder)
}

/// The place of a span's file: beside the page, below the root or below `src`.
fn find(page: &str, span: &str) -> Option<PathBuf> {
    let beside = Path::new(page).parent().unwrap_or(Path::new(""));
    let folders = [beside, Path::new(""), Path::new("src")];
    folders
        .iter()
        .map(|folder| root().join(folder).join(span))
        .find(|path| path.exists())
}

/// The files that a page names, and what it names in them: `` `file.rs` (`name`) `` and ``
/// `file.rs`: `name`, `name` ``.
pub(crate) fn missing_files(page: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let mut file: Option<(&str, String)> = None;
    for Span { line, text, before } in spans(&page.text) {
        if is_path(text) {
            let found = find(&page.path, text);
            if found.is_none() {
                faults.push(format!(
                    "{}:{line}: no file `{text}`, beside the page, in the project or in src",
                    page.path
                ));
            }
            let read = found
                .filter(|path| path.is_file())
                .and_then(|path| std::fs::read_to_string(path).ok());
            file = read
                .filter(|_| text.ends_with(".rs"))
                .map(|read| (text, read));
            continue;
        }
        let joined = matches!(before.as_str(), " (" | ": " | ", ");
        file = file.filter(|_| joined);
        let name = text.rsplit("::").next().unwrap_or_default();
        if let Some((path, read)) = &file
            && is_name(name)
            && tokens(name).len() == 1
            && !tokens(read).contains(&name)
        {
            faults.push(format!("{}:{line}: `{path}` has no `{text}`", page.path));
        }
    }
    faults
}

/// Models and edges that a page names and that do not exist.
pub(crate) fn missing_models(
    page: &Source,
    models: &BTreeSet<String>,
    table: &BTreeMap<u32, String>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for Span { line, text, .. } in spans(&page.text) {
        let word = tokens(text).len() == 1;
        if word && is_model(text) && !models.contains(text) && !text.ends_with('_') {
            faults.push(format!(
                "{}:{line}: no model `{text}` in src/tests",
                page.path
            ));
        }
    }
    for (number, line) in page.text.lines().enumerate() {
        let unknown = edges(line)
            .into_iter()
            .filter(|edge| !table.contains_key(edge));
        faults.extend(unknown.map(|edge| format!("{}:{}: no edge E{edge}", page.path, number + 1)));
    }
    faults
}

/// The models that a mutation names and no page does.
pub(crate) fn unnamed_models(
    pages: &[Source],
    mutations: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let spans: BTreeSet<&str> = pages
        .iter()
        .flat_map(|page| spans(&page.text))
        .map(|span| span.text)
        .collect();
    let unnamed = mutations
        .keys()
        .filter(|model| !spans.contains(model.as_str()));
    unnamed
        .map(|model| format!("no page names {model}: in a row of its races, or of its edge"))
        .collect()
}

/// The folders of the table of layers in a page, from top to bottom, as `LAYERS` names them.
fn layers_told(page: &str) -> Vec<String> {
    let table = page
        .split("| folder | what it is for |\n")
        .nth(1)
        .unwrap_or_default();
    let rows = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(1));
    let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let plain = |name: &str| {
        name.trim_end_matches('/')
            .trim_end_matches(".rs")
            .replace("lib", "")
    };
    names.map(plain).collect()
}

/// Nothing where a page has the folders of `LAYERS` in their order.
pub(crate) fn other_layers(page: &str) -> Vec<String> {
    let (told, layers) = (layers_told(page), LAYERS.concat());
    let differs = told != layers;
    let fault = || format!("docs/src/architecture.md has {told:?}, LAYERS has {layers:?}");
    differs.then(fault).into_iter().collect()
}

#[test]
fn the_architecture_tells_the_layers() {
    Rule::Layers.hold(&other_layers(&read("docs/src/architecture.md")));
    assert_eq!(
        layers_told(
            "| folder | what it is for |\n|---|---|\n| `lib.rs` | x |\n| `b/`, `c.rs` | y |\n\n| `d/` |"
        ),
        ["", "b", "c"]
    );
}

/// The rows of the table of paths in a page: what is called, and the files that it passes through.
fn paths_told(page: &str) -> Vec<(&str, Vec<String>)> {
    let table = page
        .split("| call | files in order |\n|---|---|\n")
        .nth(1)
        .unwrap_or_default();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_matches('|').split_once('|'));
    cells
        .map(|(call, files)| {
            let spans = files.split('`').skip(1).step_by(2);
            let files = spans.filter(|span| span.ends_with(".rs"));
            (
                call.trim(),
                files.map(|file| format!("src/{file}")).collect(),
            )
        })
        .collect()
}

/// The files of such rows that no file before them in their row uses, nor is used by.
pub(crate) fn wrong_paths(page: &str, uses: &BTreeSet<(String, String)>) -> Vec<String> {
    let is_used = |a: &String, b: &String| uses.contains(&(a.clone(), b.clone()));
    let mut faults = Vec::new();
    for (call, files) in paths_told(page) {
        for (number, file) in files.iter().enumerate().skip(1) {
            let before = &files[..number];
            if !before
                .iter()
                .any(|other| is_used(other, file) || is_used(file, other))
            {
                faults.push(format!("the path of {call}: nothing leads to {file}"));
            }
        }
    }
    faults
}

#[test]
fn the_architecture_tells_paths_that_calls_take() {
    let page = read("docs/src/architecture.md");
    assert!(paths_told(&page).len() > 8, "hardly one path was found");
    Rule::Paths.hold(&wrong_paths(&page, graph::uses()));
}

/// The targets of a page's links and pictures, each with its line; blocks and spans of code aside.
fn links(page: &str) -> Vec<(usize, &str)> {
    let (mut links, mut in_block) = (Vec::new(), false);
    for (number, line) in (1..).zip(page.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        // Outside of spans: each second part.
        for text in line.split('`').step_by(2) {
            let inline = text.split("](").skip(1);
            links.extend(
                inline
                    .filter_map(|rest| rest.split(')').next())
                    .map(|target| (number, target)),
            );
        }
        let labelled = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "));
        links.extend(labelled.map(|(_, target)| (number, target.trim())));
    }
    links
}

/// The anchors of a page, as the forges and mdBook make them of its headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let headings = page.lines().filter(|line| {
        in_block ^= line.starts_with("```");
        !in_block && line.starts_with('#')
    });
    let anchor = |heading: &str| -> String {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|&char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char })
            .collect()
    };
    headings.map(anchor).collect()
}

/// Links that lead to no file of the project, or to no heading in it. Those to other sites, and to
/// items by their path in Rust, are for others to check.
pub(crate) fn dead_links(page: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, target) in links(&page.text) {
        let is_ours = !target.contains("::")
            && !target.contains("://")
            && !target.contains(' ')
            && target.contains(['/', '.', '#']);
        if !is_ours {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
        let file = if path.is_empty() {
            root().join(&page.path)
        } else {
            root().join(folder).join(path)
        };
        if !file.exists() {
            faults.push(format!("{}:{line}: `{target}` leads to no file", page.path));
            continue;
        }
        let text = if path.is_empty() {
            page.text.clone()
        } else {
            std::fs::read_to_string(&file).unwrap_or_default()
        };
        if !anchor.is_empty()
            && path.ends_with(".md") | path.is_empty()
            && !anchors(&text).contains(anchor)
        {
            faults.push(format!(
                "{}:{line}: `{target}` leads to no heading",
                page.path
            ));
        }
    }
    faults
}

/// All pages, those of the adapters and the changelog too.
#[test]
fn each_link_leads_somewhere() {
    let mut all: BTreeMap<String, Source> = BTreeMap::new();
    let further = ["crates", ".ci"].map(|folder| read_all(folder, &["md"]));
    let changelog = Source::new("CHANGELOG.md", &read("CHANGELOG.md"));
    for page in pages()
        .into_iter()
        .chain(further.into_iter().flatten())
        .chain([changelog])
    {
        all.insert(page.path.clone(), page);
    }
    let count: usize = all.values().map(|page| links(&page.text).len()).sum();
    assert!(count > 100, "hardly one link was found");
    let faults: Vec<String> = all.values().flat_map(dead_links).collect();
    Rule::Links.hold(&faults);
}

#[test]
fn each_file_that_a_page_names_exists() {
    let faults: Vec<String> = pages().iter().flat_map(missing_files).collect();
    Rule::NamesOfPages.hold(&faults);
}

#[test]
fn each_model_and_edge_that_a_page_names_exists() {
    let models = models_written();
    let table = edge_table();
    let faults: Vec<String> = pages()
        .iter()
        .flat_map(|page| missing_models(page, &models, &table))
        .collect();
    Rule::ModelsOfPages.hold(&faults);
}

#[test]
fn the_protocol_pages_name_each_model_and_explain_each_edge() {
    let protocols: Vec<Source> = {
        let is_protocol = |page: &Source| {
            ["src/", CONTAINERS]
                .iter()
                .any(|folder| page.path.starts_with(folder))
        };
        pages().into_iter().filter(is_protocol).collect()
    };
    let mut faults = unnamed_models(&protocols, &mutations_of());
    let told: BTreeSet<u32> = protocols
        .iter()
        .filter(|page| !page.path.starts_with("src/docs/"))
        .flat_map(|page| edges(&page.text))
        .collect();
    let untold = edge_table().into_keys().filter(|edge| !told.contains(edge));
    faults.extend(untold.map(|edge| format!("no page explains E{edge}")));
    Rule::ProtocolPages.hold(&faults);
}

// === the checks themselves ===

#[test]
fn what_a_page_names_in_vain_is_found() {
    let page = |text: &str| Source::new("docs/src/page.md", text);
    let good = "`src/lib.rs`, `lib.rs`, `counter/`, `.ci/loom`, `a.b.c/d` and `tests/tidy.rs`: `pages`, `rules`.\n\
                `counter/uncharge.rs` (`Header::put`) and `x.rs` in\n```sh\n`none.rs`\n```\n";
    assert_eq!(
        missing_files(&page(good)),
        ["docs/src/page.md:2: no file `x.rs`, beside the page, in the project or in src"]
    );
    let faults = missing_files(&page(
        "`tests/tidy.rs`: `pages`, `no_such`; `tests/tidy.rs` and `other`",
    ));
    assert_eq!(
        faults,
        ["docs/src/page.md:1: `tests/tidy.rs` has no `no_such`"]
    );
    let faults = missing_models(
        &page("a\n`loom_a` `loom_b` E1, E2"),
        &["loom_a".to_owned()].into(),
        &[(1, String::new())].into(),
    );
    assert_eq!(
        faults,
        [
            "docs/src/page.md:2: no model `loom_b` in src/tests",
            "docs/src/page.md:2: no edge E2"
        ]
    );
}

#[test]
fn a_model_that_no_page_names_is_found() {
    let mutations: BTreeMap<String, Vec<String>> = ["loom_a", "loom_b"]
        .map(|model| (model.to_owned(), vec!["x".to_owned()]))
        .into();
    let page = |text: &str| Source::new("src/a.md", text);
    assert_eq!(
        unnamed_models(
            &[page("| race | `loom_a` |\n"), page("`loom_b`, loom_a")],
            &mutations
        ),
        [""; 0]
    );
    let faults = unnamed_models(&[page("| race | E1 | `loom_a` |\n\nloom_b\n")], &mutations);
    assert_eq!(
        faults,
        ["no page names loom_b: in a row of its races, or of its edge"]
    );
}
