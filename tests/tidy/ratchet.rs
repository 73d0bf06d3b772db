//! What breaks a rule today, and may do so until it is mended: `tests/tidy/exceptions.txt`.
//!
//! A test fails for what is not in the list, and for a line of the list that holds no more. `TIDY_BLESS=1` writes the
//! list anew if no kind of fault has become more frequent: a file may be renamed, a fault may not be added.
//! `TIDY_BLESS=grow` writes whatever there is. `TIDY_SHOW=1` shows each fault that is left, with its reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::sync::OnceLock;

use crate::names::Crate;
use crate::reader::{root, sources, sources_and_pages};
use crate::{graph, parts, types, words};

const LIST: &str = "tests/tidy/exceptions.txt";

/// Kinds that are counted: their lines end in a number.
const COUNTED: &[&str] = &["type", "word"];

/// Kinds whose lines are compared one by one when the list is written anew: a word is not renamed.
const NAMED: &[&str] = &["word"];

/// A rule that is broken, once or several times.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Which rule.
    pub(crate) kind: &'static str,
    /// Where.
    pub(crate) key: String,
    /// How often.
    pub(crate) count: usize,
    /// For the reader: what leads to it, and what to do.
    pub(crate) why: String,
}

/// How often each rule may be broken, by kind and place.
type List = BTreeMap<(String, String), usize>;

fn parse(text: &str) -> List {
    let mut list = List::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (kind, key) = line.split_once(' ').unwrap_or((line, ""));
        let (key, count) = if COUNTED.contains(&kind) {
            let (key, count) = key.rsplit_once(' ').unwrap_or((key, ""));
            (key, count.parse().unwrap_or_else(|error| panic!("{LIST}: `{line}`: {error}")))
        } else {
            (key, 1)
        };
        // A merge may keep two lines for one word.
        let listed = list.entry((kind.to_owned(), key.to_owned())).or_default();
        *listed = count.max(*listed);
    }
    list
}

fn text(list: &List) -> String {
    let mut text = String::new();
    for ((kind, key), count) in list {
        let counted = COUNTED.contains(&kind.as_str());
        let count = if counted { format!(" {count}") } else { String::new() };
        writeln!(text, "{kind} {key}{count}").expect("a String takes all");
    }
    text
}

fn list_of(findings: &[Finding]) -> List {
    findings.iter().map(|finding| ((finding.kind.to_owned(), finding.key.clone()), finding.count)).collect()
}

/// Faults of `kind` that are not listed, and lines of the list that hold no more.
fn differences(kind: &str, listed: &List, findings: &[Finding]) -> Vec<String> {
    let mut faults = Vec::new();
    let of_kind = findings.iter().filter(|finding| finding.kind == kind);
    let mut left: List = listed.iter().filter(|((of, _), _)| of == kind).map(|(key, n)| (key.clone(), *n)).collect();
    for Finding { key, count, why, .. } in of_kind {
        let allowed = left.remove(&(kind.to_owned(), key.clone())).unwrap_or(0);
        if *count > allowed {
            let excepted = if allowed > 0 { format!(" ({count}, {LIST} allows {allowed})") } else { String::new() };
            faults.push(format!("{key}{excepted}: {why}"));
        } else if *count < allowed {
            faults.push(format!("{key}: {count} are left of {allowed}: TIDY_BLESS=1 makes {LIST} shorter"));
        }
    }
    let mended = left.into_keys().map(|(_, key)| format!("{key}: mended: TIDY_BLESS=1 makes {LIST} shorter"));
    faults.extend(mended);
    faults
}

/// The list to write: what there is, where no kind has become more frequent, and otherwise what both have.
fn shortened(listed: &List, found: &List) -> List {
    let total = |list: &List, kind: &str| list.iter().filter(|((of, _), _)| of == kind).map(|(_, n)| n).sum::<usize>();
    let mut list = List::new();
    for ((kind, key), &count) in found {
        let place = (kind.clone(), key.clone());
        let may_move = !NAMED.contains(&kind.as_str()) && total(found, kind) <= total(listed, kind);
        let allowed = if may_move { count } else { listed.get(&place).copied().unwrap_or(0).min(count) };
        if allowed > 0 {
            list.insert(place, allowed);
        }
    }
    list
}

fn findings() -> &'static [Finding] {
    static FOUND: OnceLock<Vec<Finding>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let sources = sources();
        let of = Crate::read(&sources);
        assert!(of.written.len() > 1000, "hardly one path was found");
        let mut findings = graph::findings(&of);
        findings.extend(parts::findings(&of));
        findings.extend(types::findings(&of));
        findings.extend(types::twins(&of));
        findings.extend(words::findings(&sources_and_pages()));
        if std::env::var_os("TIDY_SHOW").is_some() {
            show(&findings);
        }
        findings
    })
}

/// Writes all faults with their reasons, past the capture of the test's output.
fn show(findings: &[Finding]) {
    for Finding { kind, key, count, why } in findings {
        writeln!(std::io::stderr(), "{kind} {key} {count}: {why}").expect("a standard error");
    }
}

/// The list as it is, or as it is written now.
fn listed() -> &'static List {
    static LISTED: OnceLock<List> = OnceLock::new();
    LISTED.get_or_init(|| {
        let path = root().join(LIST);
        let listed = parse(&fs::read_to_string(&path).unwrap_or_default());
        let list = match std::env::var("TIDY_BLESS").as_deref() {
            Ok("grow") => list_of(findings()),
            Ok(_) => shortened(&listed, &list_of(findings())),
            Err(_) => return listed,
        };
        if list.is_empty() {
            // Nothing to remove where there is no list.
            drop(fs::remove_file(&path));
        } else {
            fs::write(&path, text(&list)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        list
    })
}

/// Fails where `kind` is broken beyond the list.
pub(crate) fn hold(kind: &str, rule: &str) {
    crate::reader::fail_if_any(rule, &differences(kind, listed(), findings()));
}

// === the ratchet itself ===

fn fault(kind: &'static str, key: &str, count: usize) -> Finding {
    Finding { kind, key: key.to_owned(), count, why: "why".to_owned() }
}

#[test]
fn a_list_is_written_as_it_is_read() {
    let list = "back a.rs -> b.rs\ntype Node 5\nword heir 7\n";
    assert_eq!(text(&parse(list)), list);
    assert_eq!(text(&parse("word heir 7\nword heir 5\n")), "word heir 7\n");
}

#[test]
fn new_faults_and_mended_ones_are_told() {
    let listed = parse("back a -> b\nback c -> d\nword heir 7\n");
    let found = [fault("back", "a -> b", 1), fault("back", "e -> f", 1), fault("word", "heir", 8)];
    let faults = differences("back", &listed, &found);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with("e -> f: why") && faults[1].starts_with("c -> d: mended"), "{faults:?}");
    let faults = differences("word", &listed, &found);
    assert!(faults.len() == 1 && faults[0].contains("allows 7"), "{faults:?}");
    let faults = differences("word", &listed, &[fault("word", "heir", 6)]);
    assert!(faults.len() == 1 && faults[0].contains("6 are left of 7"), "{faults:?}");
}

#[test]
fn the_list_is_renamed_but_never_longer() {
    let listed = parse("back a -> b\nback c -> d\nword heir 7\nword seat 1\n");
    let shortened = |found: &[Finding]| text(&shortened(&listed, &list_of(found)));
    assert_eq!(shortened(&[fault("back", "a -> b", 1), fault("back", "e -> f", 1)]), "back a -> b\nback e -> f\n");
    let three = [fault("back", "a -> b", 1), fault("back", "e -> f", 1), fault("back", "g -> h", 1)];
    assert_eq!(shortened(&three), "back a -> b\n");
    assert_eq!(shortened(&[fault("word", "heir", 8), fault("word", "bury", 1)]), "word heir 7\n");
}
