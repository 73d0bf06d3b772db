//! A function that may block says so in the first paragraph of its documentation, with what to use
//! in async code.

use std::fs;
use std::path::Path;

/// Calls that sleep, wait for others, or run code of others: by file, the line that starts each,
/// without its rest.
const MAY_BLOCK: &[(&str, &[&str])] = &[
    (
        "group/charge.rs",
        &["pub fn charge(", "pub fn grow(", "pub fn resize("],
    ),
    ("group/charge_set.rs", &["pub fn charge_set("]),
    ("group/charge_with.rs", &["pub fn charge_with("]),
    ("group/checkpoint.rs", &["pub fn checkpoint("]),
    ("group/counters.rs", &["pub fn set_max("]),
    ("group/events.rs", &["pub fn wait("]),
    ("group/inspect.rs", &["fn set_observe_only("]),
    ("group/parts.rs", &["pub fn transfer("]),
    (
        "group/reading.rs",
        &["pub fn set_limits(", "pub fn set_max("],
    ),
    ("group/reclaim.rs", &["pub fn reclaim("]),
    ("group/registration.rs", &["pub struct Registration {"]),
    ("kmem/account.rs", &["pub fn migrate(", "pub fn transfer("]),
    ("kmem/node_account.rs", &["pub fn precharge("]),
    (
        "../crates/memcg-kmem/src/percpu/mod.rs",
        &[
            "pub fn new_in(",
            "pub fn new_with_in(",
            "pub fn new_with_of(",
        ],
    ),
    (
        "../crates/memcg-kmem/src/percpu/allocator.rs",
        &["pub fn allocate("],
    ),
    ("kmem/precharge.rs", &["pub fn precharge("]),
    (
        "../crates/memcg-kmem/src/slab/mod.rs",
        &["pub fn insert(", "pub fn insert_on("],
    ),
    (
        "../crates/memcg-kmem/src/store/mod.rs",
        &["pub fn insert(", "pub fn insert_on("],
    ),
    (
        "../crates/memcg-kmem/src/vec/mod.rs",
        &[
            "pub fn with_capacity_in(",
            "pub fn push(",
            "pub fn extend_from_slice(",
            "pub fn reserve(",
        ],
    ),
    ("page_counter/handle.rs", &["pub fn charge("]),
    (
        "runtime/mod.rs",
        &[
            "pub struct Runtime ",
            "pub fn release_idle_credit(",
            "pub fn start_flusher(",
            "pub fn stop_flusher(",
        ],
    ),
];

/// Calls that do neither, and say so.
const NEVER_BLOCKS: &[(&str, &[&str])] = &[("group/charge_with.rs", &["Start,", "Now,"])];

/// The first paragraph of the documentation of what starts at this line.
fn first_paragraph(lines: &[&str], at: usize) -> String {
    let above = lines[..at]
        .iter()
        .rev()
        .take_while(|line| line.starts_with("///") || line.starts_with("#["));
    let mut docs: Vec<&str> = above
        .filter_map(|line| line.strip_prefix("///"))
        .map(str::trim)
        .collect();
    docs.reverse();
    let paragraph = docs.split(|line| line.is_empty()).next();
    paragraph.unwrap_or_default().join(" ")
}

/// Lines of these files that start such a call without one of `words` in the first paragraph of
/// its documentation.
fn silent(list: &[(&str, &[&str])], words: &[&str]) -> Vec<String> {
    let mut silent = Vec::new();
    for (file, starts) in list {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../src")
            .join(file);
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for start in *starts {
            let at = lines.iter().position(|line| {
                line.starts_with(start) || line.starts_with(&start.replace('(', "<"))
            });
            let at = at.unwrap_or_else(|| panic!("no {start} in {file}"));
            let first = first_paragraph(&lines, at);
            if !words.iter().any(|word| first.contains(word)) {
                silent.push(format!("{file}: {start}: {first}"));
            }
        }
    }
    silent
}

#[test]
fn a_function_that_may_block_says_so() {
    let silent = silent(MAY_BLOCK, &["May block", "may block", "Blocks"]);
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn a_function_that_never_blocks_says_so() {
    let silent = silent(NEVER_BLOCKS, &["never blocks"]);
    assert!(silent.is_empty(), "{silent:#?}");
}
