//! Reads sources as text: files, code apart from comments and literals, tokens.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines above unit tests.
pub(crate) const UNIT_TESTS: &[&str] = &[
    "#[cfg(all(test, not(loom)))]",
    "#[cfg(all(test, not(any(loom, shuttle))))]",
];

#[derive(Clone)]
pub(crate) struct Source {
    /// Path below the root of the package, with slashes.
    pub(crate) path: String,
    /// `charge::stock`; empty for `lib.rs`.
    pub(crate) module: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let module = path
            .trim_start_matches("src/")
            .trim_end_matches(".rs")
            .trim_end_matches("/mod");
        let module = if module == "lib" {
            String::new()
        } else {
            module.replace('/', "::")
        };
        Source {
            path: path.to_owned(),
            module,
            text: text.to_owned(),
        }
    }

    /// The file without its unit tests, which stand last in it.
    pub(crate) fn production(&self) -> &str {
        let ends = UNIT_TESTS
            .iter()
            .filter_map(|line| self.text.find(&format!("{line}\nmod tests {{")));
        let end = ends.min().unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// The folder of `src` that holds the file: the first word of its module.
    pub(crate) fn folder(&self) -> &str {
        self.module.split("::").next().unwrap_or_default()
    }

    pub(crate) fn is_in(&self, module: &str) -> bool {
        starts_with_path(&self.module, module)
    }
}

/// The folder of the crate: the tests are a package of their own inside it.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests lie in a folder of the crate")
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("a readable folder").path();
        // Files that cargo builds beside sources are none.
        if path.ends_with("target") {
            continue;
        }
        if path.is_dir() {
            files(&path, extensions, found);
        } else if path
            .extension()
            .is_some_and(|of| extensions.iter().any(|extension| of == *extension))
        {
            found.push(path);
        }
    }
}

/// The sources of the adapter that has models of its own.
pub(crate) const CONTAINERS: &str = "crates/memcg-kmem/src";

pub(crate) fn sources() -> Vec<Source> {
    read_all("src", &["rs"])
}

/// The pages at the top, the chapters of the book, and the pages of text in `src`, here and in two
/// adapters.
pub(crate) fn pages() -> Vec<Source> {
    let top = ["README.md", "CONTRIBUTING.md", "DESIGN.md", "COMPARE.md"]
        .map(|path| Source::new(path, &read(path)));
    let beside_code = ["src", CONTAINERS, "crates/memcg-datafusion/src"]
        .into_iter()
        .flat_map(|folder| read_all(folder, &["md"]));
    top.into_iter()
        .chain(chapters())
        .chain(beside_code)
        .collect()
}

/// The chapters of the book, those in folders too. `docs/build` checks that the summary names each.
pub(crate) fn chapters() -> Vec<Source> {
    read_all("docs/src", &["md"])
}

/// All files below a folder of the project that have one of these extensions.
pub(crate) fn read_all(folder: &str, extensions: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    files(&root().join(folder), extensions, &mut paths);
    paths.sort();
    assert!(!paths.is_empty());
    let source = |path: PathBuf| {
        let path = path
            .strip_prefix(root())
            .expect("below the root")
            .to_string_lossy()
            .replace('\\', "/");
        Source::new(&path, &read(&path))
    };
    paths.into_iter().map(source).collect()
}

/// `path` is `prefix` or lies below it; everything lies below the empty path.
pub(crate) fn starts_with_path(path: &str, prefix: &str) -> bool {
    prefix.is_empty()
        || path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Splits Rust text into code and comments: each the same length as the text, the other blanked,
/// literals blanked in both. Lines stay where they are.
pub(crate) fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = vec![b' '; bytes.len()];
    let mut comments = code.clone();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let (len, into) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), Some(&mut comments))
        } else if rest.starts_with("/*") {
            (
                rest.find("*/").map_or(rest.len(), |end| end + 2),
                Some(&mut comments),
            )
        } else if let Some(len) = literal(rest, at.checked_sub(1).map(|before| bytes[before])) {
            (len, None)
        } else {
            (
                rest.chars().next().map_or(1, char::len_utf8),
                Some(&mut code),
            )
        };
        if let Some(into) = into {
            into[at..at + len].copy_from_slice(&bytes[at..at + len]);
        }
        at += len;
    }
    for (at, _) in text.match_indices('\n') {
        code[at] = b'\n';
        comments[at] = b'\n';
    }
    let string = |bytes| String::from_utf8(bytes).expect("blanks and whole characters");
    (string(code), string(comments))
}

/// Length of the string or character literal that `rest` starts with. A quote before a lifetime
/// starts none.
pub(crate) fn literal(rest: &str, before: Option<u8>) -> Option<usize> {
    let in_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest.len() - body.len() + body.find(&close)? + close.len());
    }
    let quote = rest
        .chars()
        .next()
        .filter(|&char| char == '"' || char == '\'')?;
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

/// Words, `::`, and single characters.
pub(crate) fn tokens(code: &str) -> Vec<&str> {
    tokens_at(code)
        .into_iter()
        .map(|(_, token)| token)
        .collect()
}

/// The same, each with where in `code` it starts.
pub(crate) fn tokens_at(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while !rest.is_empty() {
        let word = rest
            .find(|char: char| !char.is_alphanumeric() && char != '_')
            .unwrap_or(rest.len());
        let len = match word {
            0 if rest.starts_with("::") => 2,
            0 => rest.chars().next().map_or(1, char::len_utf8),
            _ => word,
        };
        tokens.push((code.len() - rest.len(), &rest[..len]));
        rest = rest[len..].trim_start();
    }
    tokens
}

/// A word that may name something.
pub(crate) fn is_name(token: &str) -> bool {
    token.starts_with(|char: char| char.is_alphabetic() || char == '_')
}

/// The lines of a text, to be found by the place of a token in it.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Lines {
        Lines(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The number of the line that `at` lies in, from 1 on.
    pub(crate) fn number(&self, at: usize) -> usize {
        self.0.partition_point(|&end| end < at) + 1
    }
}

// === the reader itself ===

#[test]
fn the_reader_tells_code_from_comments_and_literals() {
    let (code, comments) = split(
        "a('\"', \"// no\", r#\"b\"c\"#, b'\\'') // E1 (crate::x)\n/* E2 */ fn f<'a>(x: &'a u8)",
    );
    assert_eq!(
        tokens(&code).join(" "),
        "a ( , , , b ) fn f < ' a > ( x : & ' a u8 )"
    );
    assert_eq!(
        comments.split_whitespace().collect::<Vec<_>>().join(" "),
        "// E1 (crate::x) /* E2 */"
    );
}

#[test]
fn the_reader_finds_lines() {
    let text = "a b\n\nc";
    let lines = Lines::of(text);
    let numbers: Vec<usize> = tokens_at(text)
        .into_iter()
        .map(|(at, _)| lines.number(at))
        .collect();
    assert_eq!(numbers, [1, 1, 3]);
}

#[test]
fn unit_tests_are_cut() {
    let head = "#[cfg(all(test, not(any(loom, shuttle))))]\nuse a;\n";
    let tests = "#[cfg(all(test, not(any(loom, shuttle))))]\nmod tests {}\n";
    assert_eq!(
        Source::new("src/a.rs", &format!("{head}{tests}")).production(),
        head
    );
}
