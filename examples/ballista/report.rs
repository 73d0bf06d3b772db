//! The comparison, in 80 columns.

use std::fmt::Write;
use std::time::Duration;

use memcg::Bytes;

use crate::load::{Answers, HEAVY, Outcome};
use crate::{Options, Sharing};

pub(crate) fn name(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::Pools => "a pool for each task",
        Sharing::Groups => "groups",
    }
}

pub(crate) fn table(options: &Options, outcomes: &[(Sharing, Outcome)]) -> String {
    let mut text = String::new();
    let unlimited = outcomes
        .iter()
        .find_map(|(_, outcome)| outcome.unlimited.as_ref());
    let _ = writeln!(
        text,
        "Two executors of two slots, TPC-H at scale {}.",
        options.scale()
    );
    let _ = match unlimited {
        None => writeln!(
            text,
            "Each executor is in a control group with a limit of {}.",
            options.limit
        ),
        Some(_) => writeln!(
            text,
            "The executors are in no control group: the kernel kills none. They share {}.",
            options.limit
        ),
    };
    row(&mut text, "", outcomes, |sharing, _| {
        name(sharing).to_string()
    });
    row(
        &mut text,
        "executors gone (exit code)",
        outcomes,
        |_, outcome| match &outcome.gone[..] {
            [] => "0".to_string(),
            gone => format!(
                "{} ({})",
                gone.len(),
                gone.iter()
                    .map(i32::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        },
    );
    row(
        &mut text,
        "gold: queries answered",
        outcomes,
        |_, outcome| format!("{} of {}", outcome.gold.times.len(), outcome.of_gold),
    );
    row(&mut text, "gold: median time", outcomes, |_, outcome| {
        median(&outcome.gold)
    });
    for (at, (job, _)) in HEAVY.iter().enumerate() {
        let answered = |answers: &Answers| {
            format!(
                "{} of {}",
                answers.times.len(),
                answers.times.len() + answers.errors.len()
            )
        };
        row(
            &mut text,
            &format!("heavy, {job}: jobs finished"),
            outcomes,
            |_, outcome| answered(&outcome.heavy[at]),
        );
    }
    row(
        &mut text,
        "most anonymous memory",
        outcomes,
        |_, outcome| Bytes(outcome.peak).to_string(),
    );
    for (sharing, outcome) in outcomes {
        let [first, second] = &outcome.heavy;
        for (tenant, answers) in [("gold", &outcome.gold), ("heavy", first), ("heavy", second)] {
            for (error, count) in counted(answers) {
                let _ = writeln!(
                    text,
                    "{}, {tenant}, {count} times:\n  {error}",
                    name(*sharing)
                );
            }
        }
    }
    let is_fine = |outcome: &Outcome| outcome.is_as_it_should_be();
    if outcomes.len() > 1 && outcomes.iter().all(|(_, outcome)| is_fine(outcome)) {
        text.push_str("Nothing bad has happened under either: this load fits.\n");
    }
    text
}

fn row(
    text: &mut String,
    what: &str,
    outcomes: &[(Sharing, Outcome)],
    cell: impl Fn(Sharing, &Outcome) -> String,
) {
    let _ = write!(text, "{what:<32}");
    for (sharing, outcome) in outcomes {
        let _ = write!(text, "{:>24}", cell(*sharing, outcome));
    }
    text.push('\n');
}

fn median(answers: &Answers) -> String {
    let mut times = answers.times.clone();
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or("-".to_string(), |time: &Duration| {
            format!("{:.1} s", time.as_secs_f64())
        })
}

/// The reasons, without the names of jobs and tasks, each with how often it was given; the first
/// words tell them apart.
fn counted(answers: &Answers) -> Vec<(&str, usize)> {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for error in answers.errors.iter().map(|error| reason(error)) {
        let begin = |error: &str| {
            error
                .split_whitespace()
                .take(3)
                .map(str::to_string)
                .collect::<Vec<_>>()
        };
        match seen
            .iter_mut()
            .find(|(other, _)| begin(other) == begin(error))
        {
            Some((_, count)) => *count += 1,
            None => seen.push((error, 1)),
        }
    }
    seen
}

/// The part of an error that says why.
fn reason(error: &str) -> &str {
    let signs = [
        "Resources exhausted",
        "ResourcesExhausted",
        "Ended {",
        "no answer",
    ];
    let from = signs.iter().filter_map(|sign| error.find(sign)).min();
    &error[from.unwrap_or(0)..]
}
