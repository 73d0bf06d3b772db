//! The chapters of the five patch series: no patch, no table and no claim is left out, and what
//! they name exists. `benches/series/chapter.rs` explains how a chapter is written; `.ci/series`
//! runs what it names.
//!
//! To add a chapter: write `docs/src/series/NAME.md`, name it in `SUMMARY.md`, and add its constant
//! to [`SERIES`](expected::SERIES).

#[path = "../../benches/series/chapter.rs"]
mod chapter;
#[path = "series/expected.rs"]
mod expected;
#[path = "series/made_up.rs"]
pub(crate) mod made_up;
#[path = "../../benches/series/outcome.rs"]
mod outcome;
#[path = "series/outcomes.rs"]
mod outcomes;

use std::collections::{BTreeMap, BTreeSet};

use self::chapter::{Chapter, Holder, Section, Verdict};
use self::expected::{Expected, SERIES};
use crate::edges::models_written;
use crate::mutations::mutations_named;
use crate::reader::{read, read_all, root};
use crate::rules::Rule;

/// Things that chapters can name.
pub(crate) struct Tree {
    /// Files by path; with the text of those that are sources.
    files: BTreeMap<String, String>,
    models: BTreeSet<String>,
    mutations: BTreeSet<String>,
    /// Programs under `benches/`.
    benches: BTreeSet<String>,
}

impl Tree {
    fn of_the_project() -> Tree {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for folder in [
            "src", "tests", "benches", "crates", "examples", "docs", "fuzz",
        ] {
            files.extend(
                read_all(folder, &["rs", "md"])
                    .into_iter()
                    .map(|source| (source.path, source.text)),
            );
        }
        for path in [
            ".ci/run",
            ".ci/series",
            ".ci/loom",
            ".ci/shuttle",
            ".ci/hot-path",
            ".ci/mutations.txt",
        ] {
            files.insert(path.to_owned(), read(path));
        }
        let manifest = read("benches/Cargo.toml");
        let names = manifest
            .split("[[bench]]")
            .skip(1)
            .filter_map(|entry| entry.split('"').nth(1));
        Tree {
            mutations: mutations_named(),
            models: models_written(),
            benches: names.map(str::to_owned).collect(),
            files,
        }
    }

    fn missing(&self, holder: &Holder) -> Option<String> {
        match holder {
            Holder::File(path) => {
                let folder = format!("{}/", path.trim_end_matches('/'));
                let exists = self
                    .files
                    .keys()
                    .any(|file| file == path || file.starts_with(&folder));
                (!exists).then(|| format!("there is no file {path}"))
            }
            Holder::Test { file, name } => match self.files.get(file) {
                None => Some(format!("there is no file {file}")),
                Some(text) => (!is_test(text, name)).then(|| format!("{file} has no test {name}")),
            },
            Holder::Model(name) => {
                (!self.models.contains(name)).then(|| format!("src/tests has no model {name}"))
            }
            Holder::Mutation(name) => (!self.mutations.contains(name))
                .then(|| format!(".ci/mutations.txt has no row {name}")),
            Holder::Command(command) => {
                let mut words = command
                    .split_whitespace()
                    .skip_while(|word| *word != "--bench");
                let bench = words.nth(1)?;
                (!self.benches.contains(bench))
                    .then(|| format!("benches/Cargo.toml has no bench {bench}"))
            }
        }
    }

    /// The ids that programs under `benches/` judge: literals of the form `"NAME-1"`.
    fn judged(&self, name: &str) -> BTreeSet<String> {
        let start = format!("\"{name}-");
        let sources = self
            .files
            .iter()
            .filter(|(path, _)| path.starts_with("benches/") && path.ends_with(".rs"));
        let ids = sources
            .flat_map(|(_, text)| text.split(&start).skip(1))
            .filter_map(|rest| rest.split('"').next());
        let is_number = |id: &&str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        ids.filter(is_number)
            .map(|number| format!("{name}-{number}"))
            .collect()
    }
}

/// A function with the attribute of a test above it, or one that the macro `twins!` makes one.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let function = |line: &&str| {
        let rest = line
            .trim_start_matches("async ")
            .strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let above = |at: usize| {
        let attributes = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        attributes
            .clone()
            .any(|line| line.ends_with("test]") || line.starts_with("#[tokio::test"))
            && !attributes.clone().any(|line| line.starts_with("#[ignore"))
    };
    let by_function = (0..lines.len()).any(|at| function(&lines[at]) && above(at));
    let twins = text
        .split("twins! {")
        .skip(1)
        .filter_map(|rest| rest.split("\n}").next());
    let twin = |line: &str| {
        line.trim()
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('('))
    };
    by_function || twins.flat_map(str::lines).any(twin)
}

fn plain(text: &str) -> String {
    text.replace(['*', '`'], "")
}

fn has_spread(section: &Section) -> bool {
    let head_has = |head: &[String], word: &str| {
        head.iter()
            .any(|cell| plain(cell).split([' ', ',']).any(|of| of == word))
    };
    section.tables.iter().any(|table| {
        ["runs", "min", "max", "std"]
            .iter()
            .all(|word| head_has(&table.head, word))
    })
}

fn rows_of(section: &Section, name: &str) -> usize {
    let rows = section.tables.iter().flat_map(|table| &table.rows);
    rows.filter(|(_, cells)| cells.first().is_some_and(|cell| cell.starts_with(name)))
        .count()
}

fn faults(expected: &Expected, text: Option<&str>, tree: &Tree) -> Vec<String> {
    let page = format!("docs/src/series/{}.md", expected.name);
    let Some(text) = text else {
        return vec![format!("{page}: there is no such chapter")];
    };
    let (chapter, mut faults) = Chapter::read(expected.name, text);
    let mut fault = |what: String| faults.push(format!("{page}: {what}"));
    for part in expected
        .source
        .iter()
        .filter(|part| !chapter.source.contains(**part))
    {
        fault(format!("the source does not name {part}"));
    }
    for title in expected.patches {
        match chapter
            .patches
            .iter()
            .filter(|patch| patch.title == *title)
            .count()
        {
            0 => fault(format!("there is no row for the patch `{title}`")),
            1 => {}
            rows => fault(format!("{rows} rows are for the patch `{title}`")),
        }
    }
    for patch in chapter
        .patches
        .iter()
        .filter(|patch| !expected.patches.contains(&&*patch.title))
    {
        fault(format!("the series has no patch `{}`", patch.title));
    }
    for (heading, rows, spread) in expected.tables {
        let section = chapter
            .sections
            .iter()
            .find(|section| section.heading.starts_with(heading));
        for row in rows
            .iter()
            .filter(|row| section.is_some_and(|section| rows_of(section, row) != 2))
        {
            fault(format!("`### {heading}` has no two rows of {row}"));
        }
        match section {
            None => fault(format!("there is no table `### {heading}`")),
            Some(section) if *spread && !has_spread(section) => {
                fault(format!(
                    "`### {heading}` has no table of ours with runs, min, max and std"
                ));
            }
            Some(_) => {}
        }
    }
    let patches = chapter.patches.iter().flat_map(|patch| &patch.holders);
    let holders: BTreeSet<&Holder> = patches
        .chain(chapter.claims.iter().flat_map(|claim| &claim.holders))
        .collect();
    holders
        .iter()
        .filter_map(|holder| tree.missing(holder))
        .for_each(&mut fault);
    for run in &chapter.runs {
        tree.missing(&Holder::Command(run.command.clone()))
            .into_iter()
            .for_each(&mut fault);
    }
    claims(&chapter, tree).into_iter().for_each(&mut fault);
    faults
}

/// Each claim that a command judges has a line in a program, and each line is in the chapter.
fn claims(chapter: &Chapter, tree: &Tree) -> Vec<String> {
    let judged = tree.judged(&chapter.name);
    let mut faults = Vec::new();
    if chapter.claims.is_empty() {
        faults.push("there is no claim".to_owned());
    }
    for claim in &chapter.claims {
        let by_command = claim
            .holders
            .iter()
            .any(|holder| matches!(holder, Holder::Command(_)));
        if by_command && !judged.contains(&claim.id) {
            faults.push(format!("no program under benches/ judges `{}`", claim.id));
        }
        if !by_command && judged.contains(&claim.id) {
            faults.push(format!(
                "a program judges `{}`; its row names no command",
                claim.id
            ));
        }
        if claim.verdict == Verdict::NotApplicable && by_command {
            faults.push(format!(
                "`{}` does not apply, and a command judges it",
                claim.id
            ));
        }
    }
    let known = |id: &&String| chapter.claims.iter().any(|claim| claim.id == **id);
    faults.extend(
        judged
            .iter()
            .filter(|id| !known(id))
            .map(|id| format!("a program judges `{id}`, which has no row")),
    );
    faults
}

#[test]
fn no_patch_no_table_and_no_claim_of_the_series_is_left_out() {
    let tree = Tree::of_the_project();
    let summary = read("docs/src/SUMMARY.md");
    let mut found = Vec::new();
    for expected in SERIES {
        let path = format!("docs/src/series/{}.md", expected.name);
        let text = root().join(&path).exists().then(|| read(&path));
        found.extend(faults(expected, text.as_deref(), &tree));
        if !summary.contains(&format!("](series/{}.md)", expected.name)) {
            found.push(format!("docs/src/SUMMARY.md does not name {path}"));
        }
    }
    Rule::Series.hold(&found);
}
