//! One door to concurrency, and to its checkers.

use crate::names::Crate;
use crate::reader::{
    Lines, Source, UNIT_TESTS, sources, split, starts_with_path, tokens, tokens_at,
};
use crate::rules::Rule;

/// Paths that enter through `src/sync` alone: what a checker has to see, or is one.
const DOOR: &[&str] = &[
    "std::sync::atomic",
    "core::sync::atomic",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::thread_local",
    "parking_lot",
    "thread_local",
    "loom",
    "shuttle",
];

/// The lines above `mod tests` in the root.
const MODELS: &[&str] = &[
    "#[cfg(all(test, any(loom, miri)))]",
    "#[cfg(all(test, shuttle))]",
    "#[cfg(all(test, not(any(loom, shuttle, miri))))]",
];

/// Folders that name checkers: the two sides of the door, and the models.
const CHECKED: &[&str] = &["sync", "tests"];

/// Paths through the door, and those beside it.
pub(crate) fn through_and_beside(of: &Crate) -> (usize, Vec<String>) {
    let mut through = 0;
    let mut beside = Vec::new();
    let mut found = |source: &Source, line: usize, path: &str| {
        if source.is_in("sync") {
            through += 1;
        } else {
            beside.push(format!("{}:{line}: `{path}`", source.path));
        }
    };
    for written in &of.written {
        let path = written.path.join("::");
        if DOOR.iter().any(|door| starts_with_path(&path, door)) {
            found(&of.sources[written.source], written.line, &path);
        }
    }
    // The prelude has the macro, too.
    for source in of.sources.iter().filter(|source| !source.is_in("tests")) {
        let (code, _) = split(source.production());
        let tokens = tokens_at(&code);
        let lines = Lines::of(&code);
        for words in tokens
            .windows(2)
            .filter(|words| (words[0].1, words[1].1) == ("thread_local", "!"))
        {
            if !code[..words[0].0].trim_end().ends_with("::") {
                found(source, lines.number(words[0].0), "thread_local!");
            }
        }
    }
    (through, beside)
}

/// Lines that name a checker outside of [`CHECKED`].
pub(crate) fn checkers(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources
        .iter()
        .filter(|source| CHECKED.iter().all(|folder| !source.is_in(folder)))
    {
        let (code, _) = split(&source.text);
        let lines: Vec<&str> = code.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !tokens(line)
                .iter()
                .any(|token| matches!(*token, "loom" | "shuttle"))
            {
                continue;
            }
            let next = lines.get(number + 1).map_or("", |line| line.trim());
            // Unit tests step aside in a model; the root takes the tests of all three kinds in.
            let unit_tests = UNIT_TESTS.contains(&line.trim()) && next.starts_with("mod ");
            let models = source.module.is_empty() && MODELS.contains(&line.trim());
            if !unit_tests && !models {
                faults.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    faults
}

#[test]
fn concurrency_has_one_door() {
    let sources = sources();
    let (through, beside) = through_and_beside(&Crate::read(&sources));
    assert!(
        through > 0,
        "src/sync imports nothing: is this still the door?"
    );
    Rule::OneDoor.hold(&beside);
}

#[test]
fn checkers_are_named_in_sync_and_models_only() {
    Rule::Checkers.hold(&checkers(&sources()));
}

// === the checks themselves ===

#[test]
fn what_enters_beside_the_door_is_found() {
    let of = |group: &str| {
        let sources = [
            Source::new("src/lib.rs", "mod group;\nmod sync;\n"),
            Source::new(
                "src/sync.rs",
                "pub(crate) use std::sync::atomic::{AtomicU64, fence};\nuse parking_lot as lot;\n",
            ),
            Source::new("src/group.rs", group),
        ];
        let (through, beside) = through_and_beside(&Crate::read(&sources));
        assert_eq!(through, 3);
        beside
    };
    for (bad, path) in [
        (
            "use std::sync::atomic::AtomicU64;",
            "std::sync::atomic::AtomicU64",
        ),
        (
            "use std::{fmt, sync::{Arc, Mutex as Lock}};",
            "std::sync::Mutex",
        ),
        (
            "fn f(lock: &parking_lot::Mutex<u8>) {}",
            "parking_lot::Mutex",
        ),
        ("std::thread_local! {}", "std::thread_local"),
        ("thread_local! {}", "thread_local!"),
        ("use loom;", "loom"),
    ] {
        assert_eq!(of(bad), [format!("src/group.rs:1: `{path}`")], "{bad}");
    }
    for good in [
        "use std::sync::{Arc, Weak};",
        "// use loom;",
        "f(my::loom::x, \"loom::x\")",
        "mod tests { }",
    ] {
        assert_eq!(of(good), [""; 0], "{good}");
    }
}

#[test]
fn a_checker_outside_of_sync_is_found() {
    let of = |path: &str, text: &str| checkers(&[Source::new(path, text)]);
    assert_eq!(
        of("src/group/mod.rs", "\n#[cfg(not(loom))]\nfn f() {}\n"),
        ["src/group/mod.rs:2: #[cfg(not(loom))]"]
    );
    assert_eq!(
        of("src/group/mod.rs", "fn f() { if cfg!(shuttle) {} }\n").len(),
        1
    );
    assert_eq!(
        of(
            "src/group/mod.rs",
            &format!("{}\nmod tests {{}}\n// loom\n", UNIT_TESTS[0])
        ),
        [""; 0]
    );
    assert_eq!(of("src/sync/mod.rs", "#[cfg(loom)]\nmod model;\n"), [""; 0]);
}
