//! From what programs and tests said to one outcome for each claim.

#![allow(dead_code, reason = "two programs use this module, each its own part")]

use std::collections::BTreeMap;

use super::chapter::{Chapter, Claim, Holder, Verdict};

/// The faults that fail the run.
#[derive(Default)]
pub(crate) struct Findings(Vec<String>);

impl Findings {
    pub(crate) fn fault(&mut self, what: String) {
        if !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn list(&self) -> &[String] {
        &self.0
    }
}

/// One line `claim ID VERDICT: TEXT` of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    /// `None`: open.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) timed: bool,
    pub(crate) text: String,
    pub(crate) machine: Option<String>,
}

/// The lines of one program's output.
pub(crate) fn collect(output: &str, said: &mut BTreeMap<String, Said>, findings: &mut Findings) {
    let machine = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("machine: "))
        .map(str::to_owned);
    for line in output.lines() {
        let Some(rest) = line.strip_prefix("claim ") else {
            continue;
        };
        match read(rest) {
            Some((id, mut line)) => {
                line.machine.clone_from(&machine);
                if said.insert(id.to_owned(), line).is_some() {
                    findings.fault(format!("two lines of programs judge `{id}`"));
                }
            }
            None => findings.fault(format!("not `claim ID VERDICT: TEXT`: {line}")),
        }
    }
}

fn read(rest: &str) -> Option<(&str, Said)> {
    let (head, text) = rest.split_once(": ")?;
    let (id, verdict) = head.split_once(' ')?;
    let (verdict, timed) = verdict
        .strip_suffix(" (timed)")
        .map_or((verdict, false), |verdict| (verdict, true));
    let verdict = match verdict {
        "open" => None,
        verdict => Some(Verdict::parse(verdict)?),
    };
    Some((
        id,
        Said {
            verdict,
            timed,
            text: text.to_owned(),
            machine: None,
        },
    ))
}

/// The place where a test runs: the adapter that has it, its program, empty for the library's own
/// tests, and the module of its file.
pub(crate) struct Place {
    /// Empty for the crate itself.
    pub(crate) adapter: String,
    pub(crate) program: String,
    module: Vec<String>,
}

impl Place {
    /// Its name as the test runner has it; of the library's own the module of tests stands between.
    pub(crate) fn path(&self, name: &str) -> String {
        self.module
            .iter()
            .map(String::as_str)
            .chain([name])
            .collect::<Vec<_>>()
            .join("::")
    }
}

pub(crate) fn place(file: &str) -> Option<Place> {
    let (adapter, file) = match file.strip_prefix("crates/") {
        Some(rest) => rest.split_once('/')?,
        None => ("", file),
    };
    let (folder, rest) = file.strip_suffix(".rs")?.split_once('/')?;
    let mut words: Vec<String> = rest.split('/').map(str::to_owned).collect();
    let program = match folder {
        "tests" => words.remove(0),
        "src" => String::new(),
        _ => return None,
    };
    if words
        .last()
        .is_some_and(|word| matches!(word.as_str(), "mod" | "main" | "lib"))
    {
        words.pop();
    }
    Some(Place {
        adapter: adapter.to_owned(),
        program,
        module: words,
    })
}

/// The results of `cargo test`, by the runner's names.
#[derive(Default)]
pub(crate) struct Tests(Vec<(String, bool)>);

impl Tests {
    pub(crate) fn read(output: &str) -> Tests {
        let result = |line: &str| {
            let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
            Some((
                name.trim_end_matches(" - should panic").to_owned(),
                result == "ok",
            ))
        };
        Tests(output.lines().filter_map(result).collect())
    }

    /// True if all tests of this name held; `None` where none ran.
    fn held(&self, file: &str, name: &str) -> Option<bool> {
        let place = place(file)?;
        let is_it = |ran: &str| {
            if place.program.is_empty() {
                ran.starts_with(&place.module.join("::")) && ran.ends_with(&format!("::{name}"))
            } else {
                ran == place.path(name)
            }
        };
        let results: Vec<bool> = self
            .0
            .iter()
            .filter(|(ran, _)| is_it(ran))
            .map(|(_, ok)| *ok)
            .collect();
        (!results.is_empty()).then(|| results.iter().all(|ok| *ok))
    }
}

/// The printed line of a claim.
pub(crate) struct Outcome {
    pub(crate) id: String,
    /// `confirmed`, `refuted`, `not applicable`, `open`, `FAILED`, `MISSING`.
    pub(crate) word: String,
    pub(crate) text: String,
    /// The chapter's verdict, where the run says something else.
    pub(crate) instead: Option<Verdict>,
}

pub(crate) fn judge(
    chapter: &Chapter,
    said: &BTreeMap<String, Said>,
    tests: &Tests,
    full: bool,
    findings: &mut Findings,
) -> Vec<Outcome> {
    for patch in &chapter.patches {
        for (file, name) in named_tests(&patch.holders) {
            if tests.held(file, name) != Some(true) {
                findings.fault(format!(
                    "`{file}::{name}`, which holds a patch of {}, did not run or failed",
                    chapter.name
                ));
            }
        }
    }
    chapter
        .claims
        .iter()
        .map(|claim| outcome(claim, said.get(&claim.id), tests, full, findings))
        .collect()
}

fn named_tests(holders: &[Holder]) -> impl Iterator<Item = (&str, &str)> {
    holders.iter().filter_map(|holder| match holder {
        Holder::Test { file, name } => Some((file.as_str(), name.as_str())),
        _ => None,
    })
}

fn outcome(
    claim: &Claim,
    said: Option<&Said>,
    tests: &Tests,
    full: bool,
    findings: &mut Findings,
) -> Outcome {
    let of = |word: &str, text: String, instead| Outcome {
        id: claim.id.clone(),
        word: word.to_owned(),
        text,
        instead,
    };
    let mut ran = Vec::new();
    for (file, name) in named_tests(&claim.holders) {
        let what = match tests.held(file, name) {
            Some(true) => {
                ran.push(format!("test {name}"));
                continue;
            }
            Some(false) => "failed",
            None => "did not run",
        };
        findings.fault(format!("{}: test `{name}` of {file} {what}", claim.id));
        return of("FAILED", format!("test {name} {what}"), None);
    }
    let by_command = claim
        .holders
        .iter()
        .any(|holder| matches!(holder, Holder::Command(_)));
    let Some(said) = said else {
        if by_command {
            findings.fault(format!("{}: no program printed a line for it", claim.id));
            return of(
                "MISSING",
                "no program printed a line for it".to_owned(),
                None,
            );
        }
        let models = claim.holders.iter().filter_map(|holder| match holder {
            Holder::Model(name) if full && name.starts_with("loom_") => {
                Some(format!("model {name}"))
            }
            Holder::Model(name) => Some(format!("model {name} (.ci/run runs it)")),
            _ => None,
        });
        ran.extend(models);
        let text = if claim.verdict == Verdict::NotApplicable {
            claim.by.replace('`', "")
        } else {
            ran.join(", ")
        };
        return of(&claim.verdict.to_string(), text, None);
    };
    let text = [vec![said.text.clone()], ran].concat().join("; ");
    match said.verdict {
        None => of("open", text, None),
        Some(verdict) if verdict == claim.verdict => of(&verdict.to_string(), text, None),
        Some(verdict) => {
            if full || !said.timed {
                findings.fault(format!(
                    "{}: this run says {verdict}, the chapter {}",
                    claim.id, claim.verdict
                ));
            }
            of(&verdict.to_string(), text, Some(claim.verdict))
        }
    }
}

/// Lines that no chapter has asked for. Where not all chapters are read, of those that are alone.
pub(crate) fn strangers(
    chapters: &[Chapter],
    said: &BTreeMap<String, Said>,
    all: bool,
    findings: &mut Findings,
) {
    for id in said.keys() {
        let of = |chapter: &&Chapter| {
            id.rsplit_once('-')
                .is_some_and(|(name, _)| name == chapter.name)
        };
        let chapter = chapters.iter().find(of);
        let known =
            chapter.is_some_and(|chapter| chapter.claims.iter().any(|claim| claim.id == *id));
        if !known && (all || chapter.is_some()) {
            findings.fault(format!("a program judges `{id}`, which is in no chapter"));
        }
    }
}
