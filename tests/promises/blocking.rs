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
    ("group/parts.rs", &["pub fn transfer("]),
    (
        "group/reading.rs",
        &[
            "pub fn set_limits(",
            "pub fn set_max(",
            "pub fn set_observe_only(",
        ],
    ),
    ("group/reclaim.rs", &["pub fn reclaim("]),
    ("group/registration.rs", &["pub struct Registration {"]),
    (
        "group/spec/apply.rs",
        &["pub fn apply(", "pub fn apply_with("],
    ),
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
    ("group/raw.rs", &["pub fn charge("]),
    ("page_counter/handle.rs", &["pub fn charge("]),
    (
        "values/charged.rs",
        &["pub fn make(", "pub fn weighed(", "pub fn resize_to("],
    ),
    (
        "values/charged_vec.rs",
        &[
            "pub fn with_capacity(",
            "pub fn push(",
            "pub fn extend(",
            "pub fn reserve(",
            "pub fn reserve_with(",
        ],
    ),
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
const NEVER_BLOCKS: &[(&str, &[&str])] = &[
    (
        "group/charge.rs",
        &[
            "pub fn try_charge(",
            "pub fn try_grow(",
            "pub fn try_resize(",
        ],
    ),
    ("group/charge_set.rs", &["pub fn try_charge_set("]),
    ("group/charge_with.rs", &["Start,", "Now,", "IfRoom,"]),
    ("group/raw.rs", &["pub fn try_charge("]),
    ("page_counter/handle.rs", &["pub fn try_charge("]),
    (
        "values/charged.rs",
        &["pub fn try_make(", "pub fn try_weighed("],
    ),
    (
        "values/charged_vec.rs",
        &["pub fn try_push(", "pub fn try_reserve("],
    ),
];

/// The first paragraph of the documentation of what starts at this line.
fn first_paragraph(lines: &[&str], at: usize) -> String {
    let mut docs = Vec::new();
    let mut is_attribute = false;
    for line in lines[..at].iter().rev() {
        if line.starts_with("///") {
            docs.push(line.trim_start_matches('/').trim());
        } else if line.starts_with("#[") {
            is_attribute = false;
        } else if line.ends_with(")]") {
            is_attribute = true;
        } else if !is_attribute {
            break;
        }
    }
    let paragraph = docs.iter().rev().take_while(|line| !line.is_empty());
    paragraph.copied().collect::<Vec<_>>().join(" ")
}

/// Lines of these files that start such a call without one of `words` in the first paragraph
/// of its documentation.
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
    let silent = silent(NEVER_BLOCKS, &["never blocks", "Never block"]);
    assert!(silent.is_empty(), "{silent:#?}");
}

/// In the standard library and in tokio `try_` returns at once; so it does here.
#[test]
fn no_form_with_try_may_block() {
    let starts = |start: &&&str| start.contains("fn try_");
    let blocking: Vec<_> = MAY_BLOCK
        .iter()
        .flat_map(|(_, list)| list.iter().filter(starts))
        .collect();
    assert!(blocking.is_empty(), "{blocking:#?}");
}

/// Each public form with `try_` that charges is in the list of those that never block.
#[test]
fn each_form_with_try_is_listed() {
    let mut missing = Vec::new();
    for folder in ["group", "values", "page_counter"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../src")
            .join(folder);
        for file in fs::read_dir(&path)
            .expect("a folder of the sources")
            .flatten()
        {
            let name = format!("{folder}/{}", file.file_name().to_string_lossy());
            let Ok(text) = fs::read_to_string(file.path()) else {
                continue;
            };
            let tries = text.lines().map(str::trim_start).filter(|line| {
                let is_form =
                    line.starts_with("pub fn try_") || line.starts_with("pub async fn try_");
                is_form && !line.contains("uncharge")
            });
            for line in tries {
                let is_listed = NEVER_BLOCKS.iter().any(|(listed, starts)| {
                    *listed == name
                        && starts.iter().any(|start| {
                            line.starts_with(start) || line.starts_with(&start.replace('(', "<"))
                        })
                });
                if !is_listed {
                    missing.push(format!("{name}: {line}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
