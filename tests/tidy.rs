#![cfg(not(loom))]
//! Holds the architecture, and nothing of taste: who imports whom, one door to concurrency, and every ordering edge
//! that the code names explained and modelled. It reads the sources as text, for what it looks for is written, not
//! compiled.

#[path = "tidy/mutations.rs"]
mod mutations;
#[path = "tidy/orderings.rs"]
mod orderings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What a module may import of this crate. The most specific row holds; a module may always import itself and what is
/// below it. Imports go downwards, so a row names modules of lower rank only.
const IMPORTS: &[(&str, &[&str])] = &[
    ("sync", &[""]),
    ("units", &[""]),
    ("numa", &[""]),
    ("pool", &[""]),
    ("error", &[""]),
    ("thread", &[""]),
    ("stat", &[""]),
    ("counter", &[""]),
    ("hierarchy", &[""]),
    ("reclaim", &[""]),
    ("pressure", &[""]),
    ("admission", &[""]),
    ("lifecycle", &[""]),
    ("group", &[""]),
    ("page_counter", &[""]),
    ("kmem", &[""]),
    ("runtime", &[""]),
    ("docs", &[""]),
    ("tests", &[""]),
    ("", &[""]),
];

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

/// What stands above unit tests.
const UNIT_TESTS: &[&str] = &["#[cfg(all(test, not(loom)))]", "#[cfg(all(test, not(any(loom, shuttle))))]"];

/// What stands above `mod tests` in the root.
const MODELS: &[&str] =
    &["#[cfg(all(test, loom))]", "#[cfg(all(test, shuttle))]", "#[cfg(all(test, not(any(loom, shuttle))))]"];

const LINES_MAX: usize = 500;

struct Source {
    /// Path below the root of the package, with slashes.
    path: String,
    /// `charge::stock`; empty for `lib.rs`.
    module: String,
    text: String,
}

impl Source {
    /// The file without its unit tests, which stand last in it.
    fn production(&self) -> &str {
        let ends = UNIT_TESTS.iter().filter_map(|gate| self.text.find(gate));
        let end = ends.min().unwrap_or(self.text.len());
        &self.text[..end]
    }

    fn is_in(&self, module: &str) -> bool {
        starts_with_path(&self.module, module)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    rust_files(&root().join("src"), &mut paths);
    paths.sort();
    assert!(!paths.is_empty());
    let source = |path: PathBuf| {
        let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
        let module =
            path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let module = if module == "lib" { String::new() } else { module };
        Source { module, text: read(&path), path }
    };
    paths.into_iter().map(source).collect()
}

/// `path` is `prefix` or lies below it; everything lies below the empty path.
fn starts_with_path(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Splits Rust text into code and comments: each the same length as the text, the other blanked, literals blanked in
/// both. Lines stay where they are.
fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = vec![b' '; bytes.len()];
    let mut comments = code.clone();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let (len, into) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), Some(&mut comments))
        } else if rest.starts_with("/*") {
            (rest.find("*/").map_or(rest.len(), |end| end + 2), Some(&mut comments))
        } else if let Some(len) = literal(rest, at.checked_sub(1).map(|before| bytes[before])) {
            (len, None)
        } else {
            (rest.chars().next().map_or(1, char::len_utf8), Some(&mut code))
        };
        if let Some(into) = into {
            into[at..at + len].copy_from_slice(&bytes[at..at + len]);
        }
        at += len;
    }
    for (at, _) in text.match_indices('\n') {
        (code[at], comments[at]) = (b'\n', b'\n');
    }
    let string = |bytes| String::from_utf8(bytes).expect("blanks and whole characters");
    (string(code), string(comments))
}

/// Length of the string or character literal that `rest` starts with. A quote before a lifetime starts none.
fn literal(rest: &str, before: Option<u8>) -> Option<usize> {
    let in_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest.len() - body.len() + body.find(&close)? + close.len());
    }
    let quote = rest.chars().next().filter(|&char| char == '"' || char == '\'')?;
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => drop(chars.next()),
            _ if char == quote => return Some(at + 1),
            // 'a is a lifetime unless its second character closes it.
            _ if quote == '\'' && at > 1 && !rest.starts_with("'\\") => return None,
            _ => {}
        }
    }
    None
}

/// Every path in the code that starts with a word of `starts`, groups spelled out: `crate::{a, b::c}` gives two.
fn paths(code: &str, starts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut tokens = tokens(code);
    tokens.push("");
    for at in 0..tokens.len() {
        let within_path = at > 0 && tokens[at - 1] == "::";
        if starts.contains(&tokens[at]) && !within_path && matches!(tokens[at + 1], "::" | "!" | ";" | "as") {
            path(&tokens, at, "", &mut found);
        }
    }
    found
}

/// Words, `::`, and single characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while !rest.is_empty() {
        let word = rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(rest.len());
        let len = match word {
            0 if rest.starts_with("::") => 2,
            0 => rest.chars().next().map_or(1, char::len_utf8),
            _ => word,
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

/// Reads one path from the token at `at` on and returns where it ends.
fn path(tokens: &[&str], mut at: usize, prefix: &str, found: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    loop {
        let token = tokens.get(at).copied().unwrap_or("");
        if token == "{" {
            at += 1;
            while !matches!(tokens.get(at), Some(&"}") | None) {
                at = self::path(tokens, at, &path, found);
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

/// The module of this crate that a path starting with `crate` or `super`, written in `module`, leads to.
fn resolve(path: &str, module: &str, modules: &BTreeSet<&str>) -> String {
    let mut base: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    let mut words = path.split("::").peekable();
    if words.next_if_eq(&"crate").is_some() {
        base.clear();
    }
    while words.next_if_eq(&"super").is_some() {
        base.pop();
    }
    for word in words {
        base.push(word);
        if !modules.contains(base.join("::").as_str()) {
            base.pop();
            break;
        }
    }
    base.join("::")
}

fn fail_if_any(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

#[test]
fn imports_go_downwards() {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.iter().map(|source| source.module.as_str()).collect();
    let mut faults = Vec::new();
    let mut read = 0;
    for source in &sources {
        let rows = IMPORTS.iter().filter(|(module, _)| source.is_in(module));
        let (row, allowed) = rows.max_by_key(|(module, _)| module.len()).expect("the root's row fits all");
        if row.is_empty() && !source.module.is_empty() {
            faults.push(format!("{}: the import table has no row for `{}`", source.path, source.module));
        }
        for path in paths(&split(source.production()).0, &["crate", "super"]) {
            let to = resolve(&path, &source.module, &modules);
            read += 1;
            let own = starts_with_path(&to, &source.module);
            // The root's names are for users: inside, a name is imported from where it is made.
            let good =
                if to.is_empty() { allowed.contains(&"") } else { allowed.iter().any(|at| starts_with_path(&to, at)) };
            if !own && !good {
                faults.push(format!("{}: `{path}`: `{row}` may not import `{to}`", source.path));
            }
        }
    }
    assert!(read > 0, "not one import was found");
    fail_if_any("a module may import what its row of the table lists", &faults);
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

/// The numbers of the edges that a text names: the words E1, E2, ...
fn edges(text: &str) -> BTreeSet<u32> {
    let number = |word: &str| word.strip_prefix('E')?.parse().ok();
    tokens(text).into_iter().filter_map(number).collect()
}

fn models_named(text: &str) -> BTreeSet<String> {
    tokens(text).into_iter().filter(|word| word.starts_with("loom_")).map(str::to_owned).collect()
}

fn is_model(name: &str) -> bool {
    name.starts_with("loom_") || name.starts_with("shuttle_")
}

/// The models and scenarios that exist: functions of src/tests.
fn models_written() -> BTreeSet<String> {
    let mut models = BTreeSet::new();
    for source in sources().iter().filter(|source| source.is_in("tests")) {
        let (code, _) = split(&source.text);
        let tokens = tokens(&code);
        let functions = tokens.windows(2).filter(|pair| pair[0] == "fn" && is_model(pair[1]));
        models.extend(functions.map(|pair| pair[1].to_owned()));
    }
    models
}

/// The table of src/docs/orderings.rs: a row starts with the edge's id in a cell of its own.
fn edge_table() -> BTreeMap<u32, String> {
    let text = read("src/docs/orderings.rs");
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let Some(row) = line.trim_start_matches(['/', '!', ' ']).strip_prefix('|') else { continue };
        let id = row.split('|').next().unwrap_or("").trim();
        let Some(edge) = id.strip_prefix('E').and_then(|number| number.parse().ok()) else { continue };
        assert!(table.insert(edge, line.to_owned()).is_none(), "E{edge} has two rows in src/docs/orderings.rs");
    }
    assert!(!table.is_empty(), "src/docs/orderings.rs has no row `| E1 | ... |`");
    table
}

#[test]
fn every_edge_is_explained_and_modelled() {
    let table = edge_table();
    let written = models_written();
    let mut faults = Vec::new();
    let mut named: BTreeMap<u32, usize> = BTreeMap::new();
    for source in sources().iter().filter(|source| !source.is_in("docs") && !source.is_in("tests")) {
        for (number, line) in split(&source.text).1.lines().enumerate() {
            for edge in edges(line) {
                // A list in a file's head is no end of an edge.
                *named.entry(edge).or_default() += usize::from(!line.trim_start().starts_with("//!"));
                if !table.contains_key(&edge) {
                    faults.push(format!("{}:{}: E{edge} is not in src/docs/orderings.rs", source.path, number + 1));
                }
            }
        }
    }
    for (edge, row) in &table {
        let models = models_named(row);
        if models.is_empty() {
            faults.push(format!("src/docs/orderings.rs: E{edge} names no model"));
        }
        for model in models.difference(&written) {
            faults.push(format!("src/docs/orderings.rs: E{edge} names {model}, which is not in src/tests"));
        }
        let places = named.get(edge).copied().unwrap_or(0);
        if places < 2 {
            faults.push(format!("E{edge} is named at {places} place(s) in src: both ends name their edge"));
        }
    }
    fail_if_any("every edge is named at both ends, explained and modelled", &faults);
}

#[test]
fn files_fit_a_reader() {
    let long = sources().into_iter().filter(|source| source.text.lines().count() > LINES_MAX);
    let faults: Vec<String> =
        long.map(|source| format!("{}: {} lines", source.path, source.text.lines().count())).collect();
    fail_if_any("no file in src is longer than 500 lines", &faults);
}

#[test]
fn tests_and_benches_step_aside_under_loom() {
    let mut faults = Vec::new();
    for folder in ["tests", "benches"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for path in entries.map(|entry| entry.expect("a readable folder").path()) {
            let file = if path.is_dir() { path.join("main.rs") } else { path };
            if file.extension().is_some_and(|extension| extension == "rs") && file.exists() {
                let (code, _) = split(&read(&file));
                let gate = code.lines().find(|line| line.contains("cfg(") && tokens(line).contains(&"loom"));
                if gate.is_none() {
                    faults.push(file.display().to_string());
                }
            }
        }
    }
    fail_if_any("loom's types panic outside a model: start the file with `#![cfg(not(loom))]`", &faults);
}

#[test]
fn the_readme_states_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let readme = read("README.md");
    let lines: Vec<&str> = readme.lines().filter(|line| line.trim_start().starts_with("memcg = ")).collect();
    assert!(!lines.is_empty(), "README.md does not say how to depend on memcg");
    for line in lines {
        let stated = line.split('"').nth(1).unwrap_or("");
        let fits = !stated.is_empty() && (version == stated || version.starts_with(&format!("{stated}.")));
        assert!(fits, "README.md says `{}`, this is {version}", line.trim());
    }
    assert!(read("CHANGELOG.md").contains(&format!("## {version}")), "CHANGELOG.md has no heading for {version}");
}

// === the reader itself ===

#[test]
fn the_reader_spells_groups_out() {
    let (code, _) = split("use crate::{a, b::{c as d, e}, f::*};\nlet x = crate::g::<u8>();");
    assert_eq!(paths(&code, &["crate"]), ["crate::a", "crate::b::c", "crate::b::e", "crate::f::*", "crate::g"]);
    let (code, _) = split("std::thread_local! {}\nuse loom;\nmy::loom::x();");
    assert_eq!(paths(&code, &["std", "loom"]), ["std::thread_local", "loom"]);
}

#[test]
fn the_reader_tells_code_from_comments_and_literals() {
    let (code, comments) =
        split("a('\"', \"// no\", r#\"b\"c\"#, b'\\'') // E1 (crate::x)\n/* E2 */ fn f<'a>(x: &'a u8)");
    assert_eq!(tokens(&code).join(" "), "a ( , , , b ) fn f < ' a > ( x : & ' a u8 )");
    assert_eq!(edges(&comments), BTreeSet::from([1, 2]));
}

#[test]
fn the_reader_finds_the_module_of_a_path() {
    let modules = BTreeSet::from(["", "sync", "sync::barrier", "charge", "charge::stock"]);
    for (path, from, to) in [
        ("crate::sync::barrier::light", "charge::stock", "sync::barrier"),
        ("super::stock::Slot", "charge::tree", "charge::stock"),
        ("super::super::sync::Mutex", "charge::stock", "sync"),
        ("crate::PageCounter", "charge", ""),
        ("super::*", "charge::stock", "charge"),
    ] {
        assert_eq!(resolve(path, from, &modules), to, "{path} in {from}");
    }
}
