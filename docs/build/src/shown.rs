//! The code that a page shows is the code that tests run. The line `<!-- FILE:ANCHOR -->` above a
//! block names it: the lines between `ANCHOR: NAME` and `ANCHOR_END: NAME` of that file, or the
//! whole file. A forge shows such a page as it is, which it does not with a directive of mdBook.

use std::fs;
use std::path::Path;

/// What is wrong with the code of a page, each with its line.
pub(crate) fn faults(root: &Path, page: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = page.lines().collect();
    let mut faults = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.contains("{{#") {
            let fault = "a directive of mdBook, which a forge does not read: copy the code, below `<!-- FILE:ANCHOR -->`";
            faults.push((at + 1, fault.to_owned()));
        }
        let comment = line
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(name) = comment.filter(|name| !name.contains(' '))
            && let Err(fault) = compare(root, name, &lines[at + 1..])
        {
            faults.push((at + 1, fault));
        }
    }
    faults
}

/// Compares the block of code that follows with what the name stands for.
fn compare(root: &Path, name: &str, follows: &[&str]) -> Result<(), String> {
    let block = follows
        .iter()
        .skip(1)
        .take_while(|line| !line.starts_with("```"));
    if !follows.first().is_some_and(|line| line.starts_with("```")) {
        return Err(format!("no block of code stands below `{name}`"));
    }
    let (file, anchor) = name.split_once(':').unwrap_or((name, ""));
    let text = fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
    let code = if anchor.is_empty() {
        text.lines().collect()
    } else {
        between(&text, anchor)
    };
    if code.is_empty() {
        return Err(format!("{file} has no anchor `{anchor}`"));
    }
    let shown: Vec<&str> = block.copied().collect();
    if shown == code {
        return Ok(());
    }
    let same = shown
        .iter()
        .zip(&code)
        .take_while(|(shown, code)| shown == code)
        .count();
    let line = |lines: &[&str]| {
        lines
            .get(same)
            .map_or_else(|| "its end".to_owned(), |line| format!("`{}`", line.trim()))
    };
    Err(format!(
        "`{name}` has {}, this page {}: copy it again",
        line(&code),
        line(&shown)
    ))
}

/// The lines between the marks of an anchor, without marks of others.
fn between<'a>(text: &'a str, anchor: &str) -> Vec<&'a str> {
    let marks = |line: &str, mark: &str| line.trim_end().ends_with(&format!("{mark}: {anchor}"));
    let lines = text
        .lines()
        .skip_while(|line| !marks(line, "ANCHOR"))
        .skip(1);
    lines
        .take_while(|line| !marks(line, "ANCHOR_END"))
        .filter(|line| !line.contains("ANCHOR"))
        .collect()
}
