//! Reads the chapter of a patch series: what `.ci/series` runs and what `tests/tidy/series.rs`
//! holds.
//!
//! A chapter is a page `docs/src/series/NAME.md` with these headings, in this order:
//!
//! - `# Title`, and below it a paragraph, the source: author, title of the series in quotation
//!   marks, list, date.
//! - `## Patches`, one table: `| patch | mechanism | file | held by | same or departed |`. A row
//!   for each patch, whose title stands between backquotes. The last cell starts with `same` or
//!   with `departed: ` and the reason.
//! - `## Tables`, with `### ` headings: one for each table of the series, its figures beside ours.
//! - `## Claims`, one table or several: `| id | claim | verdict | by |`. An id is the name of the
//!   chapter and a number without gaps (`stock-1`). The verdict is `confirmed`, `refuted` or
//!   `not applicable`. *by* names what holds it, or says why the claim does not apply.
//! - `## How to run it`, one table: `| command | quick | quick takes | full takes |`. The full run
//!   is the command as it stands, the quick one adds what *quick* has between backquotes, behind
//!   `--`.
//!
//! The holder of a claim or a patch is written between backquotes and known by its form:
//!
//! | form | is |
//! |---|---|
//! | `tests/kernel/conformance/stock.rs::s017_local` | a test, which `.ci/series` runs |
//! | `loom_two_drainers`, `shuttle_storm` | a model; `.ci/series --full` runs those of loom |
//! | mutation `drain-loser-skips` | a row of `.ci/mutations.txt`, with the word before it |
//! | bench `fault` | `cargo bench --bench fault`, a command of the last table, which prints a line for each of its claims |
//! | `src/counter/drain.rs` | a file |

//! To add a chapter: write the page; name it in `docs/src/SUMMARY.md` as `(series/NAME.md)`; add a
//! constant to `SERIES` in `tests/tidy/series/expected.rs`, whose headings the page has to have;
//! list its commands in `.ci/readme.txt` as `COMMAND | series |`; have its programs print the
//! claims (`benches/common/claims.rs`). Then `cargo test --test tidy series` says what is missing,
//! and `.ci/series --series NAME` runs it.

#![allow(dead_code, reason = "two programs use this module, each its own part")]

use std::fmt;

/// The thing that a cell names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Test { file: String, name: String },
    Model(String),
    Mutation(String),
    Command(String),
    File(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Confirmed,
    Refuted,
    NotApplicable,
}

impl Verdict {
    pub(crate) fn parse(text: &str) -> Option<Verdict> {
        [Verdict::Confirmed, Verdict::Refuted, Verdict::NotApplicable]
            .into_iter()
            .find(|verdict| verdict.to_string() == text.trim_matches(['*', ' ']))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::NotApplicable => "not applicable",
        })
    }
}

pub(crate) struct Patch {
    pub(crate) title: String,
    pub(crate) holders: Vec<Holder>,
}

/// One heading under `## Tables`, with all that stands below it.
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) tables: Vec<Table>,
}

pub(crate) struct Claim {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) verdict: Verdict,
    pub(crate) holders: Vec<Holder>,
    /// Why the claim does not apply, where it does not.
    pub(crate) by: String,
}

pub(crate) struct Run {
    pub(crate) command: String,
    pub(crate) quick: String,
    pub(crate) quick_seconds: u64,
    pub(crate) full_seconds: u64,
}

impl Run {
    /// As a shell would take it.
    pub(crate) fn words(&self, full: bool) -> Vec<String> {
        let mut words: Vec<String> = self.command.split_whitespace().map(str::to_owned).collect();
        if !full && !self.quick.is_empty() {
            if !words.iter().any(|word| word == "--") {
                words.push("--".to_owned());
            }
            words.extend(self.quick.split_whitespace().map(str::to_owned));
        }
        words
    }

    pub(crate) fn seconds(&self, full: bool) -> u64 {
        if full {
            self.full_seconds
        } else {
            self.quick_seconds
        }
    }
}

/// A table of a page: the cells of its head and of its rows, and the line that each row stands on.
pub(crate) struct Table {
    pub(crate) line: usize,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<(usize, Vec<String>)>,
}

#[derive(Default)]
pub(crate) struct Chapter {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) patches: Vec<Patch>,
    pub(crate) sections: Vec<Section>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) runs: Vec<Run>,
}

impl Chapter {
    /// The chapter, and what is wrong with it: each fault with the page and the line.
    pub(crate) fn read(name: &str, text: &str) -> (Chapter, Vec<String>) {
        let mut reader = Reader {
            page: format!("docs/src/series/{name}.md"),
            faults: Vec::new(),
        };
        let mut chapter = Chapter {
            name: name.to_owned(),
            ..Chapter::default()
        };
        let parts = parts(text);
        let wanted = ["", "Patches", "Tables", "Claims", "How to run it"];
        for heading in &wanted[1..] {
            if !parts.iter().any(|part| part.heading == *heading) {
                reader.fault(1, &format!("there is no heading `## {heading}`"));
            }
        }
        for part in &parts {
            match part.heading {
                "" => chapter.source(part, &mut reader),
                "Patches" => chapter.patches = reader.patches(part),
                "Tables" => chapter.sections = reader.sections(part),
                "Claims" => chapter.claims = reader.claims(part, name),
                "How to run it" => chapter.runs = reader.runs(part),
                _ => {}
            }
        }
        reader.commands_are_runs(&chapter);
        (chapter, reader.faults)
    }

    fn source(&mut self, part: &Part<'_>, reader: &mut Reader) {
        let mut lines = part.lines.iter().map(|(_, line)| line.trim());
        match lines.next().and_then(|line| line.strip_prefix("# ")) {
            Some(title) => self.title = title.trim().to_owned(),
            None => reader.fault(1, "the first line is `# ` and a title"),
        }
        let paragraph = lines
            .skip_while(|line| line.is_empty())
            .take_while(|line| !line.is_empty());
        self.source = paragraph.collect::<Vec<_>>().join(" ");
        if !self.source.contains('"') {
            reader.fault(
                1,
                "below the title: author, \"title of the series\", list, date",
            );
        }
    }
}

/// A heading of the second level and what stands below it.
struct Part<'a> {
    heading: &'a str,
    line: usize,
    lines: Vec<(usize, &'a str)>,
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = vec![Part {
        heading: "",
        line: 1,
        lines: Vec::new(),
    }];
    for (at, line) in text.lines().enumerate() {
        match line.strip_prefix("## ") {
            Some(heading) => parts.push(Part {
                heading: heading.trim(),
                line: at + 1,
                lines: Vec::new(),
            }),
            None => parts
                .last_mut()
                .expect("there is one")
                .lines
                .push((at + 1, line)),
        }
    }
    parts
}

fn tables(lines: &[(usize, &str)]) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut within = false;
    for &(number, line) in lines {
        if !line.starts_with('|') {
            within = false;
            continue;
        }
        let cells = cells(line);
        let is_rule = cells
            .iter()
            .all(|cell| !cell.is_empty() && cell.chars().all(|char| matches!(char, '-' | ':')));
        match tables.last_mut().filter(|_| within) {
            None => tables.push(Table {
                line: number,
                head: cells,
                rows: Vec::new(),
            }),
            Some(_) if is_rule => {}
            Some(table) => table.rows.push((number, cells)),
        }
        within = true;
    }
    tables
}

/// `\|` is no border.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').replace("\\|", "\u{1}");
    let line = line.strip_suffix('|').unwrap_or(&line);
    line.split('|')
        .map(|cell| cell.trim().replace('\u{1}', "|"))
        .collect()
}

/// The texts between backquotes, each with the word before it.
fn spans(cell: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = cell.split('`').collect();
    let spans = parts
        .iter()
        .enumerate()
        .filter(|(at, _)| at % 2 == 1 && at + 1 < parts.len());
    spans
        .map(|(at, span)| {
            (
                parts[at - 1]
                    .split_whitespace()
                    .next_back()
                    .unwrap_or_default(),
                *span,
            )
        })
        .collect()
}

const FOLDERS: &[&str] = &[
    "src/",
    "tests/",
    "benches/",
    "examples/",
    "crates/",
    "fuzz/",
    "docs/",
    ".ci/",
];

pub(crate) fn holders(cell: &str) -> Vec<Holder> {
    spans(cell)
        .into_iter()
        .filter_map(|(before, span)| holder(before, span))
        .collect()
}

fn holder(before: &str, span: &str) -> Option<Holder> {
    let is_path = FOLDERS.iter().any(|folder| span.starts_with(folder));
    if before.trim_start_matches('(').starts_with("mutation") {
        return Some(Holder::Mutation(span.to_owned()));
    }
    if before.trim_start_matches('(') == "bench" {
        return Some(Holder::Command(format!("cargo bench --bench {span}")));
    }
    if span.starts_with("cargo ") {
        return Some(Holder::Command(span.to_owned()));
    }
    if span.starts_with("loom_") || span.starts_with("shuttle_") {
        return Some(Holder::Model(span.to_owned()));
    }
    match span.split_once(".rs::") {
        Some((file, name)) if is_path => Some(Holder::Test {
            file: format!("{file}.rs"),
            name: name.to_owned(),
        }),
        _ => is_path.then(|| Holder::File(span.to_owned())),
    }
}

/// `25 s`, `3 min`, `1.5 min`.
fn seconds(cell: &str) -> Option<u64> {
    let (number, unit) = cell.split_once(' ')?;
    let number: f64 = number
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    match unit {
        "s" => Some(number.ceil() as u64),
        "min" => Some((number * 60.0).ceil() as u64),
        _ => None,
    }
}

struct Reader {
    page: String,
    faults: Vec<String>,
}

impl Reader {
    fn fault(&mut self, line: usize, what: &str) {
        self.faults.push(format!("{}:{line}: {what}", self.page));
    }

    /// The rows of all tables of a part, whose heads have to be this one.
    fn rows(&mut self, part: &Part<'_>, head: &[&str]) -> Vec<(usize, Vec<String>)> {
        let tables = tables(&part.lines);
        if tables.is_empty() {
            self.fault(
                part.line,
                &format!("there is no table `| {} |`", head.join(" | ")),
            );
        }
        let mut rows = Vec::new();
        for table in tables {
            if table.head != head {
                self.fault(
                    table.line,
                    &format!("the head of this table is `| {} |`", head.join(" | ")),
                );
                continue;
            }
            for (line, cells) in table.rows {
                if cells.len() == head.len() {
                    rows.push((line, cells));
                } else {
                    self.fault(
                        line,
                        &format!(
                            "{} cells in place of {}; write `\\|` inside a cell",
                            cells.len(),
                            head.len()
                        ),
                    );
                }
            }
        }
        rows
    }

    fn patches(&mut self, part: &Part<'_>) -> Vec<Patch> {
        let mut patches = Vec::new();
        for (line, cells) in self.rows(
            part,
            &["patch", "mechanism", "file", "held by", "same or departed"],
        ) {
            let [title, mechanism, file, held, same] = &cells[..] else {
                continue;
            };
            if mechanism.is_empty() {
                self.fault(line, "say what the mechanism is");
            }
            if !holders(file)
                .iter()
                .any(|holder| matches!(holder, Holder::File(_)))
            {
                self.fault(line, "name our file between backquotes");
            }
            if !holders(held)
                .iter()
                .any(|holder| !matches!(holder, Holder::File(_)))
            {
                self.fault(
                    line,
                    "name a test, a model, a bench or a mutation that holds it",
                );
            }
            let reason = same
                .strip_prefix("departed: ")
                .map(|reason| reason.split_whitespace().count());
            if !(same.starts_with("same") || reason.is_some_and(|words| words >= 3)) {
                self.fault(
                    line,
                    "the last cell starts with `same`, or with `departed: ` and the reason",
                );
            }
            let holders = [file, held, same]
                .into_iter()
                .flat_map(|cell| holders(cell))
                .collect();
            patches.push(Patch {
                title: title.replace('`', ""),
                holders,
            });
        }
        patches
    }

    fn sections(&mut self, part: &Part<'_>) -> Vec<Section> {
        let starts: Vec<usize> = (0..part.lines.len())
            .filter(|&at| part.lines[at].1.starts_with("### "))
            .collect();
        let mut sections = Vec::new();
        for (nth, &start) in starts.iter().enumerate() {
            let end = starts.get(nth + 1).copied().unwrap_or(part.lines.len());
            let (line, heading) = part.lines[start];
            let tables = tables(&part.lines[start..end]);
            if tables.iter().all(|table| table.rows.is_empty()) {
                self.fault(line, "there is no table below this heading");
            }
            sections.push(Section {
                heading: heading[4..].trim().to_owned(),
                tables,
            });
        }
        sections
    }

    fn claims(&mut self, part: &Part<'_>, name: &str) -> Vec<Claim> {
        let mut claims: Vec<Claim> = Vec::new();
        for (nth, (line, cells)) in self
            .rows(part, &["id", "claim", "verdict", "by"])
            .into_iter()
            .enumerate()
        {
            let [id, text, verdict, by] = &cells[..] else {
                continue;
            };
            let id = id.replace('`', "");
            let next = format!("{name}-{}", nth + 1);
            if id != next {
                self.fault(line, &format!("the id is `{id}`, the next is `{next}`"));
            }
            let holders = holders(by);
            let Some(verdict) = Verdict::parse(verdict) else {
                self.fault(
                    line,
                    &format!("`{id}` has no verdict: write confirmed, refuted or not applicable"),
                );
                continue;
            };
            let judged = holders
                .iter()
                .any(|holder| !matches!(holder, Holder::File(_) | Holder::Mutation(_)));
            match verdict {
                Verdict::NotApplicable if by.split_whitespace().count() < 3 => {
                    self.fault(line, &format!("say why `{id}` does not apply"));
                }
                Verdict::Confirmed | Verdict::Refuted if !judged => {
                    self.fault(line, &format!("no command, test or model judges `{id}`"));
                }
                _ => {}
            }
            claims.push(Claim {
                id,
                text: text.clone(),
                verdict,
                holders,
                by: by.clone(),
            });
        }
        claims
    }

    fn runs(&mut self, part: &Part<'_>) -> Vec<Run> {
        let mut runs = Vec::new();
        for (line, cells) in self.rows(part, &["command", "quick", "quick takes", "full takes"]) {
            let [command, quick, quick_takes, full_takes] = &cells[..] else {
                continue;
            };
            let command = command.replace('`', "");
            let quick = quick.replace('`', "");
            if !command.starts_with("cargo ") {
                self.fault(line, "a command starts with `cargo `");
            }
            let (Some(quick_seconds), Some(full_seconds)) =
                (seconds(quick_takes), seconds(full_takes))
            else {
                self.fault(line, "write a time as `25 s` or `3 min`");
                continue;
            };
            runs.push(Run {
                command,
                quick,
                quick_seconds,
                full_seconds,
            });
        }
        runs
    }

    /// A claim is judged by a command only where the last table says how to run it.
    fn commands_are_runs(&mut self, chapter: &Chapter) {
        for claim in &chapter.claims {
            for holder in &claim.holders {
                if let Holder::Command(command) = holder
                    && !chapter.runs.iter().any(|run| run.command == *command)
                {
                    self.fault(
                        1,
                        &format!(
                            "`## How to run it` does not list `{command}`, which judges {}",
                            claim.id
                        ),
                    );
                }
            }
        }
    }
}
