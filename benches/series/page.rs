//! The page that a person reads, at 80 columns.

use std::path::Path;
use std::time::Duration;

use crate::chapter::{Chapter, Run};
use crate::outcome::{Findings, Outcome};

const COLUMNS: usize = 80;

/// Before the text of a claim: its id and its verdict.
const INDENT: usize = 30;

/// Words on lines of at most 80 columns, all but the first indented.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

fn time(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

/// Said first: what runs, and how long it takes.
pub(crate) fn plan(chapters: &[Chapter], full: bool) {
    let seconds = |chapter: &Chapter| {
        chapter
            .runs
            .iter()
            .map(|run| run.seconds(full))
            .sum::<u64>()
    };
    let total = chapters.iter().map(seconds).sum();
    let (kind, other) = if full {
        ("full", ", and the models")
    } else {
        ("quick", "; --full measures")
    };
    println!(
        "{} series, a {kind} run: about {} once all is built{other}\n",
        chapters.len(),
        time(total)
    );
    for chapter in chapters {
        let patches = chapter.patches.len();
        let claims = chapter.claims.len();
        let runs = chapter.runs.len();
        let row = format!(
            "{:<10} {}, {}, {}, about {}",
            chapter.name,
            count(patches, "patch", "patches"),
            count(claims, "claim", "claims"),
            count(runs, "command", "commands"),
            time(seconds(chapter))
        );
        println!("{}", wrap_keeping_head(&row, 11));
    }
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// As `wrap`, for a line whose head has blanks of its own.
fn wrap_keeping_head(row: &str, head: usize) -> String {
    let (head_text, rest) = row.split_at(head);
    format!("{head_text}{}", wrap(rest, head))
}

pub(crate) fn step(number: &str, run: &Run, full: bool) {
    let words = run.words(full).join(" ");
    println!(
        "\n{}",
        wrap(
            &format!("[{number}] {words} (about {})", time(run.seconds(full))),
            4
        )
    );
}

pub(crate) fn took(time: Duration) {
    println!("    took {:.0} s", time.as_secs_f64());
}

pub(crate) fn chapter(chapter: &Chapter, outcomes: &[Outcome]) {
    println!(
        "\n== {}\n{}\n",
        wrap(&chapter.title, 3),
        wrap(&chapter.source.replace('*', ""), 0)
    );
    for Outcome {
        id,
        word,
        text,
        instead,
    } in outcomes
    {
        println!("{id:<14}{word:<16}{}", wrap(text, INDENT));
        if let Some(verdict) = instead {
            println!("{:INDENT$}the chapter says {verdict}", "");
        }
    }
    let words = [
        "confirmed",
        "refuted",
        "not applicable",
        "open",
        "FAILED",
        "MISSING",
    ];
    let count = |word: &str| {
        outcomes
            .iter()
            .filter(|outcome| outcome.word == word)
            .count()
    };
    let counts = words
        .into_iter()
        .filter(|word| count(word) > 0)
        .map(|word| format!("{} {word}", count(word)));
    let against = outcomes
        .iter()
        .filter(|outcome| outcome.instead.is_some())
        .count();
    let chapter_too = match against {
        0 => "none contradicts the chapter".to_owned(),
        against => format!("{against} other than in the chapter"),
    };
    println!(
        "\n{}",
        wrap(
            &format!(
                "{}: {}; {chapter_too}",
                chapter.name,
                counts.collect::<Vec<_>>().join(", ")
            ),
            4
        )
    );
}

pub(crate) fn end(chapters: &[Chapter], folder: &Path, time: Duration, findings: &Findings) {
    println!("\ntables: {}", folder.display());
    for fault in findings.list() {
        println!("{}", wrap(&format!("FAULT: {fault}"), 7));
    }
    let claims: usize = chapters.iter().map(|chapter| chapter.claims.len()).sum();
    let verdict = match findings.list().len() {
        0 => "every chapter holds".to_owned(),
        faults => count(faults, "fault", "faults"),
    };
    println!(
        "series: {verdict}: {} series, {claims} claims, {:.0} s",
        chapters.len(),
        time.as_secs_f64()
    );
}
