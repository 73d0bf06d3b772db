//! Words that do not come back: each has a plain one in its place.

use std::collections::BTreeMap;

use crate::reader::{Lines, Source, fail_if_any, is_name, read_all, split, tokens_at};
use crate::rules::{Finding, hold};

/// The target of a search.
enum Pattern {
    /// Any of these words, or of these rows of words: in comments, in literals, and as parts of
    /// names, `snake_case` and `CamelCase` taken apart.
    Words(&'static [&'static str]),
    /// `who` without a noun before it, where no question is asked.
    Who,
}

use Pattern::{Who, Words};

/// Name of the row, what it looks for, and what to write in its place.
const WORDS: &[(&str, Pattern, &str)] = &[
    (
        "allowance",
        Words(&["allowance", "allowances"]),
        "barging budget",
    ),
    (
        "birth",
        Words(&["birth", "births", "born", "bear", "bears", "bore"]),
        "init, create; a number is carried",
    ),
    (
        "bury",
        Words(&["bury", "buries", "buried", "burying", "burial", "burials"]),
        "release, release queue",
    ),
    (
        "death",
        Words(&["death", "deaths"]),
        "pending close; the exit of a thread",
    ),
    ("ear", Words(&["ear", "ears"]), "listener"),
    (
        "funeral",
        Words(&["funeral", "funerals", "grave", "graves"]),
        "release, release queue",
    ),
    (
        "gate",
        Words(&["gate", "gates"]),
        "the counter's hot header",
    ),
    (
        "he",
        Words(&["he", "him", "himself", "his", "she"]),
        "the subject: the thread, the group, the charge",
    ),
    (
        "hear",
        Words(&["hear", "hears", "heard", "hearing", "hearings"]),
        "wait, collect; a listener is notified",
    ),
    ("heir", Words(&["heir", "heirs"]), "nearest live ancestor"),
    ("keeper", Words(&["keeper", "keepers"]), "first"),
    ("knob", Words(&["knob", "knobs"]), "LimitKind, limit"),
    (
        "letter",
        Words(&[
            "the letter",
            "a letter",
            "this letter",
            "that letter",
            "limit letter",
        ]),
        "the patch series, by author and year",
    ),
    (
        "nobody",
        Words(&[
            "nobody",
            "somebody",
            "anybody",
            "everybody",
            "someone",
            "anyone",
            "everyone",
        ]),
        "the subject: no thread, another thread, each group",
    ),
    ("seat", Words(&["seat", "seats", "seated"]), "waiter"),
    ("spine", Words(&["spine", "spines"]), "StatScope"),
    (
        "stand in line",
        Words(&["stand in line", "stands in line", "stood in line"]),
        "enqueue, wait in line",
    ),
    ("unmet", Words(&["unmet"]), "ChargeFailure"),
    (
        "who",
        Who,
        "the subject: the thread that waits, the group that charges",
    ),
    (
        "whoever",
        Words(&["whoever", "whomever"]),
        "the subject: the thread that, each group that",
    ),
];

/// Before an honest `who` stands what it is about. After these it is about nothing that the
/// sentence has named.
const BEFORE_BARE_WHO: &[&str] = &[
    "a", "above", "after", "also", "and", "are", "as", "at", "because", "before", "below",
    "beside", "beyond", "but", "by", "each", "else", "except", "for", "from", "he", "if", "in",
    "into", "is", "it", "keeps", "like", "not", "of", "on", "one", "only", "or", "over", "she",
    "since", "so", "than", "that", "the", "then", "through", "till", "to", "under", "unless",
    "until", "was", "what", "when", "where", "which", "while", "with", "without", "yet",
];

/// A text taken apart: words in lower case, with the line of each.
fn words(text: &str) -> Vec<(usize, String)> {
    let lines = Lines::of(text);
    let mut words = Vec::new();
    for (at, token) in tokens_at(text)
        .into_iter()
        .filter(|(_, token)| is_name(token))
    {
        let line = lines.number(at);
        for part in token.split('_') {
            let mut word = String::new();
            let mut lower = false;
            for char in part.chars() {
                if lower && char.is_uppercase() {
                    words.push((line, std::mem::take(&mut word)));
                }
                lower = char.is_lowercase();
                word.extend(char.to_lowercase());
            }
            if !word.is_empty() {
                words.push((line, word));
            }
        }
    }
    words
}

/// Lines where one of the rows of words stands.
fn rows(words: &[(usize, String)], rows: &[&str]) -> Vec<usize> {
    let starts = |at: &usize| {
        rows.iter().any(|row| {
            let mut here = words[*at..].iter().map(|(_, word)| word.as_str());
            row.split(' ').all(|wanted| here.next() == Some(wanted))
        })
    };
    (0..words.len())
        .filter(starts)
        .map(|at| words[at].0)
        .collect()
}

/// Lines where `who` begins a sentence or follows a word that it cannot be about, and the sentence
/// is no question.
fn bare_who(comments: &str) -> Vec<usize> {
    let lines = Lines::of(comments);
    // The slashes before each line are no part of the sentence.
    let tokens: Vec<(usize, &str)> = tokens_at(comments)
        .into_iter()
        .filter(|(_, token)| !matches!(*token, "/" | "!" | "*" | "`" | "|"))
        .collect();
    let is_bare = |at: &usize| {
        let (offset, token) = tokens[*at];
        let before = at.checked_sub(1).map_or(".", |before| tokens[before].1);
        // A dot ends a sentence where a space follows it, and an empty line of a comment ends one
        // as well.
        let gap = at
            .checked_sub(1)
            .map_or("", |before| &comments[tokens[before].0..offset]);
        let begins = token == "Who" || gap.matches('\n').count() > 1;
        let bare = matches!(before, "." | ";" | ":" | "?" | "(")
            || begins
            || BEFORE_BARE_WHO.contains(&before.to_lowercase().as_str());
        token.eq_ignore_ascii_case("who") && bare && {
            let end = tokens[*at..]
                .iter()
                .find(|(_, token)| matches!(*token, "." | ";" | "?"));
            end.is_none_or(|(_, end)| *end != "?")
        }
    };
    (0..tokens.len())
        .filter(is_bare)
        .map(|at| lines.number(tokens[at].0))
        .collect()
}

/// A file, read once for all patterns.
struct Text<'a> {
    source: &'a Source,
    words: Vec<(usize, String)>,
    bare_who: Vec<usize>,
}

impl Text<'_> {
    fn of(source: &Source) -> Text<'_> {
        let words = words(&source.text);
        // A page of text is all comment.
        let comments = if source.path.ends_with(".rs") {
            split(&source.text).1
        } else {
            source.text.clone()
        };
        Text {
            source,
            words,
            bare_who: bare_who(&comments),
        }
    }

    /// Lines where a pattern is found.
    fn found(&self, pattern: &Pattern) -> Vec<usize> {
        match pattern {
            Words(wanted) => rows(&self.words, wanted),
            Who => self.bare_who.clone(),
        }
    }
}

pub(crate) fn findings(sources: &[Source]) -> Vec<Finding> {
    let texts: Vec<Text> = sources.iter().map(Text::of).collect();
    let mut findings = Vec::new();
    for (name, pattern, instead) in WORDS {
        let mut lines = Vec::new();
        let mut files: BTreeMap<&str, usize> = BTreeMap::new();
        for text in &texts {
            for line in text.found(pattern) {
                lines.push(format!("{}:{line}", text.source.path));
                *files.entry(&text.source.path).or_default() += 1;
            }
        }
        if lines.is_empty() {
            continue;
        }
        let count = lines.len();
        if count > PLACES {
            lines = files
                .into_iter()
                .map(|(path, count)| format!("{path} ({count})"))
                .collect();
        }
        let why = format!("say: {instead}\n    {}", lines.join("\n    "));
        findings.push(Finding {
            kind: "word",
            key: (*name).to_owned(),
            count,
            why,
        });
    }
    findings
}

/// Of more places than these the files are told.
const PLACES: usize = 40;

/// A comment begins with a subject and not with one of these.
const QUESTIONS: &[&str] = &["What", "Whether", "Where", "How"];

/// Lines of comments that begin with one of [`QUESTIONS`].
fn questions(text: &str) -> Vec<usize> {
    let asks = |line: &str| {
        let comment = line
            .trim_start()
            .strip_prefix("//")?
            .trim_start_matches(['/', '!'])
            .strip_prefix(' ')?;
        QUESTIONS
            .contains(&comment.split(|char: char| !char.is_alphanumeric()).next()?)
            .then_some(())
    };
    text.lines()
        .enumerate()
        .filter_map(|(at, line)| asks(line).map(|()| at + 1))
        .collect()
}

#[test]
fn comments_have_a_subject() {
    let folders =
        ["src", "tests", "benches", "examples", "crates"].map(|folder| read_all(folder, &["rs"]));
    let lines = |source: &Source| -> Vec<String> {
        questions(&source.text)
            .into_iter()
            .map(|line| format!("{}:{line}", source.path))
            .collect()
    };
    fail_if_any(
        "a comment names its subject: `Result of a charge`, not `What a charge leaves`",
        &folders.iter().flatten().flat_map(lines).collect::<Vec<_>>(),
    );
    let text =
        "/// What it is.\n    // Where it lies\n//! How\n/// Whatever\n// A thread. What it has.\n";
    assert_eq!(questions(text), [1, 2, 3]);
}

#[test]
fn words_do_not_come_back() {
    hold(
        "word",
        "src, README and the book say it in plain words: see WORDS in tests/tidy/words.rs",
    );
}

// === the patterns themselves ===

#[test]
fn names_are_taken_apart() {
    let all: Vec<(usize, String)> = words("bury_all BuryAll\nBURY_ALL \"an heir\"");
    let expected = [
        (1, "bury"),
        (1, "all"),
        (1, "bury"),
        (1, "all"),
        (2, "bury"),
        (2, "all"),
        (2, "an"),
        (2, "heir"),
    ];
    assert_eq!(all, expected.map(|(line, word)| (line, word.to_owned())));
    assert_eq!(
        rows(
            &words("/// the\n/// letter, the letters, theletter"),
            &["the letter"]
        ),
        [1]
    );
}

/// A file with each word of a row, and the row's name.
#[test]
fn each_word_is_found_and_nothing_else() {
    let in_stat = |text: &str| Source::new("src/stat/x.rs", text);
    for (name, pattern, _) in WORDS {
        let planted: Vec<Source> = match pattern {
            Words(all) => {
                let each = all.iter().flat_map(|word| {
                    let name = word.replace(' ', "_");
                    [
                        format!("// The {word}."),
                        format!("fn of_{name}() {{}}"),
                        format!("f(\"{}\")", word.to_uppercase()),
                    ]
                });
                each.map(|text| in_stat(&text)).collect()
            }
            Who => vec![in_stat("/// Who charges waits.")],
        };
        let found = findings(&planted);
        let told: Vec<(&str, usize)> = found
            .iter()
            .map(|found| (found.key.as_str(), found.count))
            .collect();
        assert_eq!(told, [(*name, planted.len())]);
    }
    let good = [
        in_stat(
            "// The letters of a name, a bearing, nobody_s. The node keeps a list.\nf(Node, Part)",
        ),
        Source::new(
            "src/stat/README.md",
            "A word says who owns a page; struct Node.",
        ),
    ];
    let found = findings(&good);
    assert!(found.len() == 1 && found[0].key == "nobody", "{found:?}");
}

#[test]
fn a_bare_who_is_found() {
    for bare in [
        "// Who waits is served.",
        "//! Who is above its soft limit: known at each crossing.",
        "// The page is kept; who drops it frees it.",
        "// It stands until the next flush, for who has no\n// lock.",
        "// An observer of\n// who charges.",
        "// he who frees bytes",
        "// For who needs the tree.",
        "// Edge: E20 (who looks).",
        "// Is it full? Who charges waits.",
        "/// a line\n///\n/// who waits",
    ] {
        assert_eq!(bare_who(bare).len(), 1, "{bare}");
    }
    for honest in [
        "// Who frees this?",
        "// The thread who waits is served.",
        "// The mark tells the drainer who holds the slot.",
        "// A word says who owns the page.",
        "// for the waiter, who is delayed",
        "// whose group it is",
    ] {
        assert_eq!(bare_who(honest), [0; 0], "{honest}");
    }
}
