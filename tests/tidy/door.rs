//! One door to concurrency, and to its checkers.

use std::collections::BTreeSet;

use crate::reader::{UNIT_TESTS, fail_if_any, sources, split, starts_with_path, tokens};

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

/// What stands above `mod tests` in the root.
const MODELS: &[&str] =
    &["#[cfg(all(test, loom))]", "#[cfg(all(test, shuttle))]", "#[cfg(all(test, not(any(loom, shuttle))))]"];

/// Every path in the code that starts with a word of `starts`, groups spelled out: `crate::{a, b::c}` gives two.
fn paths(code: &str, starts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut tokens = tokens(code);
    tokens.push("");
    for at in 0..tokens.len() {
        let within_path = at > 0 && tokens[at - 1] == "::";
        if starts.contains(&tokens[at]) && !within_path && matches!(tokens[at + 1], "::" | "!" | ";" | "as") {
            path_at(&tokens, at, "", &mut found);
        }
    }
    found
}

/// Reads one path from the token at `at` on and returns where it ends.
fn path_at(tokens: &[&str], mut at: usize, prefix: &str, found: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    loop {
        let token = tokens.get(at).copied().unwrap_or("");
        if token == "{" {
            at += 1;
            while !matches!(tokens.get(at), Some(&"}") | None) {
                at = path_at(tokens, at, &path, found);
                if tokens.get(at) == Some(&"as") {
                    at += 2;
                }
                if tokens.get(at) == Some(&",") {
                    at += 1;
                }
            }
            return at + 1;
        }
        if !path.is_empty() {
            path.push_str("::");
        }
        path.push_str(token);
        at += 1;
        if tokens.get(at) != Some(&"::") || tokens.get(at + 1) == Some(&"<") {
            found.push(path);
            return at;
        }
        at += 1;
    }
}

#[test]
fn concurrency_has_one_door() {
    let starts: BTreeSet<&str> = DOOR.iter().map(|path| path.split("::").next().unwrap_or(path)).collect();
    let starts: Vec<&str> = starts.into_iter().collect();
    let mut faults = Vec::new();
    let mut through_the_door = 0;
    for source in sources() {
        let (code, _) = split(source.production());
        let found =
            paths(&code, &starts).into_iter().filter(|path| DOOR.iter().any(|door| starts_with_path(path, door)));
        if source.is_in("sync") {
            through_the_door += found.count();
        } else if !source.is_in("tests") {
            faults.extend(found.map(|path| format!("{}: `{path}`", source.path)));
        }
    }
    assert!(through_the_door > 0, "src/sync imports nothing: is this still the door?");
    fail_if_any("atomics, locks, thread-locals, loom and shuttle enter through src/sync", &faults);
}

#[test]
fn checkers_are_named_in_sync_and_models_only() {
    let mut faults = Vec::new();
    for source in sources() {
        if source.is_in("sync") || source.is_in("thread") || source.is_in("tests") {
            continue;
        }
        let (code, _) = split(&source.text);
        let lines: Vec<&str> = code.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !tokens(line).iter().any(|token| matches!(*token, "loom" | "shuttle")) {
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
    fail_if_any("`cfg(loom)` and `cfg(shuttle)` belong in src/sync and src/tests", &faults);
}

// === the checks themselves ===

#[test]
fn the_reader_spells_groups_out() {
    let (code, _) = split("use crate::{a, b::{c as d, e}, f::*};\nlet x = crate::g::<u8>();");
    assert_eq!(paths(&code, &["crate"]), ["crate::a", "crate::b::c", "crate::b::e", "crate::f::*", "crate::g"]);
    let (code, _) = split("std::thread_local! {}\nuse loom;\nmy::loom::x();");
    assert_eq!(paths(&code, &["std", "loom"]), ["std::thread_local", "loom"]);
}
