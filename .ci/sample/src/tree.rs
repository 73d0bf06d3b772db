//! Writes mutants into a copy of the tree, all at once: a function that one of them breaks gets a
//! body for each, and the environment says which one runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Failure;
use crate::list::{Mutant, Place, Span};

/// The module that a crate with mutants asks. No allocation: an allocator may ask. In evaluation at
/// compile time the answer is no. Under `record` it writes down each number that is asked for,
/// once.
pub(crate) const SWITCH: &str = r##"//! Which mutant of this program is on.
#![allow(unsafe_code, missing_docs, dead_code)]

use core::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, mode: u32) -> c_int;
    fn write(file: c_int, bytes: *const c_void, count: usize) -> isize;
    fn close(file: c_int) -> c_int;
}

const UNREAD: u32 = u32::MAX;
const RECORD: u32 = u32::MAX - 1;

static ON: AtomicU32 = AtomicU32::new(UNREAD);
static SEEN: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];

pub(crate) const fn is(number: u32) -> bool {
    core::intrinsics::const_eval_select((number,), never, now)
}

const fn never(_: u32) -> bool {
    false
}

#[inline(never)]
fn now(number: u32) -> bool {
    let mut on = ON.load(Relaxed);
    if on == UNREAD {
        on = read();
        ON.store(on, Relaxed);
    }
    if on == RECORD && !SEEN[number as usize].swap(true, Relaxed) {
        record(number);
    }
    on == number
}

fn read() -> u32 {
    let mut text = unsafe { getenv(c"MEMCG_MUTANT".as_ptr()) }.cast::<u8>();
    if text.is_null() {
        return 0;
    }
    let mut number = 0;
    loop {
        match unsafe { *text } {
            digit @ b'0'..=b'9' => number = number * 10 + u32::from(digit - b'0'),
            0 => return number,
            _ => return RECORD,
        }
        text = unsafe { text.add(1) };
    }
}

fn record(number: u32) {
    let line = [
        b'0' + (number / 1000) as u8,
        b'0' + (number / 100 % 10) as u8,
        b'0' + (number / 10 % 10) as u8,
        b'0' + (number % 10) as u8,
        b'\n',
    ];
    unsafe {
        let path = getenv(c"MEMCG_MUTANT_REACHED".as_ptr());
        if path.is_null() {
            return;
        }
        // To write only, at the end, and made where it is missing.
        let file = open(path, 0o1 | 0o2000 | 0o100, 0o644);
        if file >= 0 {
            write(file, line.as_ptr().cast(), line.len());
            close(file);
        }
    }
}
"##;

/// The lines of a file that belong to one mutant alone.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) file: String,
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) number: usize,
}

fn offset(text: &str, place: Place) -> Option<usize> {
    let line = text
        .split_inclusive('\n')
        .take(place.line - 1)
        .map(str::len)
        .sum::<usize>();
    let rest = text.get(line..)?;
    let column = rest
        .char_indices()
        .map(|(at, _)| at)
        .chain([rest.len()])
        .nth(place.column - 1)?;
    Some(line + column)
}

fn range(text: &str, span: Span) -> Option<(usize, usize)> {
    Some((offset(text, span.start)?, offset(text, span.end)?))
}

/// The body of the function that takes up `function` of a formatted text, without its braces.
fn body(text: &str, function: (usize, usize), name: &str) -> Option<(usize, usize)> {
    let name = name.rsplit("::").next()?;
    let mut at = function.0;
    let mut is_inside = false;
    for line in text[function.0..function.1].split_inclusive('\n') {
        let words = line.trim_start();
        is_inside |= !words.starts_with("//")
            && !words.starts_with("#[")
            && line.contains(&format!("fn {name}"));
        if is_inside && line.trim_end().ends_with('{') {
            let begins = at + line.trim_end().len();
            return text[..function.1]
                .ends_with('}')
                .then_some((begins, function.1 - 1));
        }
        at += line.len();
    }
    None
}

/// The text of the body with one mutant.
fn broken(text: &str, body: (usize, usize), mutant: &Mutant) -> Option<String> {
    let (from, to) = range(text, mutant.span)?;
    let from = from.max(body.0);
    let to = to.min(body.1);
    (from <= to).then(|| {
        format!(
            "{}{}{}",
            &text[body.0..from],
            mutant.replacement,
            &text[to..body.1]
        )
    })
}

/// Why a mutant has no body of its own.
pub(crate) const NO_BODY: &str = "outside of a function's body";

/// Writes the mutants of one file, given with their numbers, and says which lines are whose.
fn write(
    folder: &Path,
    file: &str,
    mutants: &[(usize, &Mutant)],
) -> Result<(Vec<Branch>, Vec<usize>), Failure> {
    let text = fs::read_to_string(folder.join(file))?;
    let mut functions: Vec<((usize, usize), &str)> = Vec::new();
    for (_, mutant) in mutants {
        if let Some(function) = &mutant.function
            && let Some(span) = range(&text, function.span)
        {
            functions.push((span, &function.function_name));
        }
    }
    // The outermost first: a function inside of another is broken in that one's body.
    functions.sort_by_key(|((from, to), _)| (*from, usize::MAX - to));
    functions.dedup_by(|inner, outer| inner.0.1 <= outer.0.1);
    let mut written = String::new();
    let mut branches = Vec::new();
    let mut without = Vec::new();
    let mut done = 0;
    let mut placed = Vec::new();
    for (function, name) in functions {
        let Some(body) = body(&text, function, name) else {
            continue;
        };
        written.push_str(&text[done..body.0]);
        let inside = mutants.iter().filter(|(_, mutant)| {
            range(&text, mutant.span)
                .is_some_and(|(from, to)| function.0 <= from && to <= function.1)
        });
        let original = &text[body.0..body.1];
        let before = placed.len();
        for (number, mutant) in inside {
            let Some(broken) = broken(&text, body, mutant) else {
                continue;
            };
            written.push_str(&format!("\nif crate::mutant::is({number}) {{\n"));
            let first = written.lines().count() + 1;
            written.push_str(&broken);
            branches.push(Branch {
                file: file.to_owned(),
                first,
                last: written.lines().count(),
                number: *number,
            });
            placed.push(*number);
            written.push_str("\n} else ");
        }
        match placed.len() - before {
            0 => written.push_str(original),
            _ => written.push_str(&format!("{{{original}}}\n")),
        }
        done = body.1;
    }
    written.push_str(&text[done..]);
    without.extend(
        mutants
            .iter()
            .map(|(number, _)| *number)
            .filter(|number| !placed.contains(number)),
    );
    fs::write(folder.join(file), written)?;
    Ok((branches, without))
}

/// Writes the mutants into the workspace in `folder`; a mutant's number is its place in the list,
/// from 1. Returns whose lines are where, and which have no body.
pub(crate) fn write_all(
    folder: &Path,
    mutants: &[(usize, Mutant)],
) -> Result<(Vec<Branch>, Vec<usize>), Failure> {
    let mut files: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants {
        files
            .entry(&mutant.file)
            .or_default()
            .push((*number, mutant));
    }
    let mut branches = Vec::new();
    let mut without = Vec::new();
    for (file, mutants) in &files {
        let (lines, no_body) = write(folder, file, mutants)?;
        branches.extend(lines);
        without.extend(no_body);
    }
    Ok((branches, without))
}

/// The switch becomes a module of every root of a crate that has mutants, on the line of the root's
/// first words: the places of errors stay.
pub(crate) fn add_switch(root: &Path, path_of_switch: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(root)?;
    let features = "#![feature(core_intrinsics, const_eval_select)] #![allow(internal_features)] ";
    fs::write(
        root,
        format!("{features}{text}\n#[path = \"{path_of_switch}\"]\nmod mutant;\n"),
    )?;
    Ok(())
}
