//! The rows that a bench runs, lists, or does not find.

use std::collections::BTreeMap;
use std::process::exit;

use clap::Args;

use crate::filter::{Filter, closest};

/// Every row of the benches of this package, as `BENCH ID`. `.ci/run rows` holds it against what
/// the benches list.
const ROWS: &str = include_str!("../rows.txt");

/// The exit code for arguments that cannot be followed, as clap has it.
const USAGE: i32 = 2;

/// The arguments that every bench has.
#[derive(Args, Clone, Debug, Default)]
pub struct Choice {
    /// Rows to run: those whose ids match this regular expression [default: all]
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    /// Take FILTER as the whole id of a row
    #[arg(long)]
    exact: bool,
    /// Print the ids of the rows, and run none
    #[arg(long)]
    list: bool,
    /// Show that it works, in seconds; goals are not judged
    #[arg(long)]
    quick: bool,
    /// Given by test runners
    #[arg(long, hide = true)]
    format: Option<String>,
    /// Given by `cargo bench`; without it everything is tried once
    #[arg(long, hide = true)]
    bench: bool,
    /// Given to try everything once
    #[arg(long, hide = true)]
    test: bool,
}

/// The rows that a bench runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen(Vec<String>);

impl Chosen {
    /// True if the row of this id is to run.
    #[must_use]
    pub fn wants(&self, id: &str) -> bool {
        self.0.iter().any(|chosen| chosen == id)
    }

    /// The ids, in the order of the bench.
    #[must_use]
    pub fn ids(&self) -> &[String] {
        &self.0
    }
}

/// The outcome of the arguments.
#[derive(Debug, PartialEq)]
enum Outcome {
    Run(Chosen),
    List(Vec<String>),
    /// Nothing to do here, for the filter is meant for another bench: what to say.
    Elsewhere(String),
    /// The filter is wrong: what to say.
    Refuse(String),
}

impl Choice {
    /// True if the run is to show that it works rather than to measure.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.quick || self.is_trial()
    }

    /// True if everything is tried once, as `cargo test --benches` does.
    #[must_use]
    pub fn is_trial(&self) -> bool {
        self.test || !self.bench
    }

    /// True if there is a filter.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// The rows of `bench` to run, out of all that it has. Ends the program where there is nothing
    /// to run: after the list, where the filter is meant for another bench, and with an error where
    /// it matches nothing.
    #[must_use]
    pub fn choose(&self, bench: &str, ids: Vec<String>) -> Chosen {
        match self.outcome(bench, ids, started_alone()) {
            Outcome::Run(chosen) => chosen,
            Outcome::List(ids) => {
                // As libtest and criterion print it, for programs that read it.
                ids.iter().for_each(|id| println!("{id}: benchmark"));
                exit(0);
            }
            Outcome::Elsewhere(words) => {
                eprintln!("{words}");
                exit(0);
            }
            Outcome::Refuse(words) => {
                eprintln!("{words}");
                exit(USAGE);
            }
        }
    }

    /// `alone`: whether this bench was asked for by name.
    fn outcome(&self, bench: &str, ids: Vec<String>, alone: bool) -> Outcome {
        let filter = match Filter::new(self.filter.as_deref(), self.exact) {
            Ok(filter) => filter,
            Err(error) => return Outcome::Refuse(format!("{bench}: {error}")),
        };
        let (chosen, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| filter.matches(id));
        match &self.filter {
            Some(text) if chosen.is_empty() => self.nothing(bench, text, &filter, &others, alone),
            _ if self.list => Outcome::List(chosen),
            _ => Outcome::Run(Chosen(chosen)),
        }
    }

    /// No row of this bench matches.
    fn nothing(
        &self,
        bench: &str,
        text: &str,
        filter: &Filter,
        ids: &[String],
        alone: bool,
    ) -> Outcome {
        let exact = if self.exact { "--exact " } else { "" };
        let mut words = format!("{bench}: no row matches `{text}`");
        let elsewhere = elsewhere(bench, filter);
        for (other, rows) in &elsewhere {
            let rows = if *rows == 1 {
                "1 row".to_owned()
            } else {
                format!("{rows} rows")
            };
            words +=
                &format!("\n  {rows} of {other}: cargo bench --bench {other} -- {exact}'{text}'");
        }
        if !elsewhere.is_empty() && !alone {
            return Outcome::Elsewhere(words);
        }
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        for id in closest(text, &ids) {
            words += &format!("\n  close: {id}");
        }
        words += &format!(
            "\n  `cargo bench --bench {bench} -- --list` prints all {}",
            ids.len()
        );
        Outcome::Refuse(words)
    }
}

/// The number of rows of other benches that a filter matches.
fn elsewhere(bench: &str, filter: &Filter) -> BTreeMap<&'static str, usize> {
    let mut others = BTreeMap::new();
    for (other, id) in ROWS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
    {
        if other != bench && filter.matches(id) {
            *others.entry(other).or_default() += 1;
        }
    }
    others
}

/// True if this program was started for itself: by hand, or by a cargo that was told to run this
/// one bench. A bench gets the same arguments either way, so only the command line of its parent
/// says. Where the system does not show that, the answer is no.
#[cfg(target_os = "linux")]
fn started_alone() -> bool {
    let parent = std::os::unix::process::parent_id();
    let Ok(line) = std::fs::read(format!("/proc/{parent}/cmdline")) else {
        return false;
    };
    let args: Vec<String> = line
        .split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect();
    names_one_bench(&args)
}

#[cfg(not(target_os = "linux"))]
fn started_alone() -> bool {
    false
}

/// True if a command line is no cargo's, or a cargo's with one bench by name.
#[cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "the command line of the parent is Linux's to show"
    )
)]
fn names_one_bench(args: &[String]) -> bool {
    let is_cargo = args.first().is_some_and(|program| {
        let name = program.rsplit(['/', '\\']).next().unwrap_or(program);
        name == "cargo" || name.starts_with("cargo-") || name.starts_with("cargo.")
    });
    if !is_cargo {
        return true;
    }
    let own = args.iter().take_while(|arg| *arg != "--");
    let pairs = own.clone().zip(own.skip(1).map(Some).chain([None]));
    let names: Vec<&str> = pairs
        .filter_map(|(arg, next)| match arg.strip_prefix("--bench=") {
            Some(name) => Some(name),
            None if arg == "--bench" => next.map(String::as_str),
            None => None,
        })
        .collect();
    matches!(names[..], [name] if !name.contains(['*', '?', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(filter: Option<&str>, list: bool, alone: bool) -> Outcome {
        let choice = Choice {
            filter: filter.map(str::to_owned),
            list,
            ..Choice::default()
        };
        let ids = [
            "charge/stock/depth1",
            "charge/stock/depth4",
            "counter/atomic/threads1",
        ]
        .map(str::to_owned)
        .into();
        choice.outcome("charge", ids, alone)
    }

    fn refused(outcome: &Outcome) -> &str {
        match outcome {
            Outcome::Refuse(words) => words,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_filter_chooses_rows() {
        let Outcome::Run(all) = outcome(None, false, true) else {
            panic!("no filter: all run")
        };
        assert_eq!(all.ids().len(), 3);
        let Outcome::Run(some) = outcome(Some("depth"), false, true) else {
            panic!("two match")
        };
        assert!(some.wants("charge/stock/depth4") && !some.wants("counter/atomic/threads1"));
        assert_eq!(
            outcome(Some("atomic"), true, true),
            Outcome::List(vec!["counter/atomic/threads1".to_owned()])
        );
    }

    #[test]
    fn a_filter_that_matches_nothing_is_refused() {
        for (list, alone) in [(false, false), (false, true), (true, true)] {
            let outcome = outcome(Some("counter/atomik"), list, alone);
            let words = refused(&outcome);
            assert!(
                words.starts_with("charge: no row matches `counter/atomik`\n"),
                "{words}"
            );
            assert!(words.contains("close: counter/atomic/threads1"), "{words}");
            assert!(
                words.contains("--bench charge -- --list` prints all 3"),
                "{words}"
            );
        }
        assert!(refused(&outcome(Some("depth["), false, false)).contains("no regular expression"));
    }

    #[test]
    fn a_filter_for_another_bench_is_passed_over_unless_this_one_was_named() {
        let Outcome::Elsewhere(words) = outcome(Some("^reclaim/"), false, false) else {
            panic!("reclaim has rows")
        };
        assert!(
            words.contains(" of reclaim: cargo bench --bench reclaim -- '^reclaim/'"),
            "{words}"
        );
        assert!(
            refused(&outcome(Some("^reclaim/"), false, true)).contains(" of reclaim: cargo bench")
        );
    }

    #[test]
    fn a_command_line_names_one_bench() {
        let of =
            |line: &str| names_one_bench(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in [
            "cargo bench --bench charge x",
            "/bin/cargo bench --bench=charge -- x",
            "bash",
            "./charge x",
        ] {
            assert!(of(line), "{line}");
        }
        for line in [
            "cargo bench x",
            "cargo bench -- --bench charge",
            "cargo bench --bench a --bench b",
            "cargo bench --bench *",
        ] {
            assert!(!of(line), "{line}");
        }
    }

    #[test]
    fn the_list_of_rows_has_one_bench_and_one_id_a_line() {
        let mut seen = std::collections::BTreeSet::new();
        for line in ROWS.lines().filter(|line| !line.starts_with('#')) {
            assert_eq!(line.split(' ').count(), 2, "{line}");
            assert!(seen.insert(line), "{line} stands there twice");
        }
    }
}
