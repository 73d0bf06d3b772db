//! Which folders may use which part of `sync`. What a folder does not need it does not name: a fence in `group`, a lock
//! in `admission`, a size that models make small outside of its pool are mistakes, whatever they do there.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::is_aside;
use crate::names::Crate;
use crate::rules::{Finding, hold};

/// Parts of `sync`, each with the folders that may use it. A row of a module holds for all of it, unless a name of the
/// module has a row of its own.
const PARTS: &[(&[&str], &[&str])] = &[
    // Words of protocols.
    (&["Ordering"], EVERY),
    (
        &["AtomicI64", "AtomicPtr", "AtomicU32", "AtomicU64"],
        &["kmem", "lifecycle", "reclaim", "hierarchy", "state", "stat", "counter", "thread", "pool", "numa"],
    ),
    (&["fence_after_exchange"], &["lifecycle", "pressure", "reclaim", "hierarchy", "state", "counter"]),
    (&["fence"], &[]),
    (&["CachePadded"], &["hierarchy", "counter", "thread", "pool"]),
    // Figures that no protocol depends on.
    (
        &["stat_atomic"],
        &[
            "runtime",
            "page_counter",
            "lifecycle",
            "pressure",
            "reclaim",
            "hierarchy",
            "state",
            "stat",
            "counter",
            "thread",
            "pool",
            "numa",
        ],
    ),
    // The barrier pair: the light side is the thread's, the heavy side the drainer's and the flush's.
    (&["barrier::light_side"], &["thread"]),
    (&["barrier::Barrier"], &["stat", "counter"]),
    (&["barrier::BarrierFailed"], &["counter"]),
    (
        &["barrier::BarrierMode", "barrier::BarrierState"],
        &["", "runtime", "group", "page_counter", "hierarchy", "counter"],
    ),
    (&["barrier::litmus"], &[""]),
    // Locks, each with its rank. Handles and attempts hold none of their own.
    (
        &["lock"],
        &[
            "kmem",
            "runtime",
            "lifecycle",
            "pressure",
            "reclaim",
            "hierarchy",
            "state",
            "stat",
            "counter",
            "thread",
            "pool",
            "numa",
        ],
    ),
    (&["Arc", "Shared"], EVERY),
    (&["process_wide"], &["lifecycle", "pressure", "thread", "pool"]),
    (&["share", "pool_stashes"], &["pressure", "pool"]),
    // What a thread owns.
    (
        &[
            "per_thread",
            "until_thread_exit",
            "thread_local",
            "SHELF_WORDS",
            "SHELVES",
            "box_zeroed",
            "stand_in",
            "follow",
        ],
        &["thread"],
    ),
    (&["place", "place_zeroed", "displace", "process_const"], &["thread"]),
    (&["Patience"], &["lifecycle", "thread"]),
    (&["PAGE_SLOTS", "PAGES_MAX"], &["thread"]),
    // Time and other threads: what waits.
    (&["park", "this_thread", "sleep"], &["group", "pressure"]),
    (&["Thread"], &["pressure", "thread"]),
    (&["TIME_PASSES"], &["pressure"]),
    (&["start_thread"], &["thread"]),
    (&["pause", "is_over"], &["group", "admission", "pressure", "reclaim", "thread"]),
    (&["rest", "IDLE_VISITS"], &["stat"]),
    (&["SLICE"], &["stat", "counter"]),
    // Sizes that models make small, and other things of one place.
    (&["POOL_OBJECTS", "POOL_PAGE", "POOL_PAGES", "POOL_STASH"], &["pool"]),
    (&["PENDING_CLOSE_MAX"], &["lifecycle"]),
    (&["PUTS_WHILE_CLOSED"], &["counter"]),
    (&["NameHasher", "SHARDS"], &["hierarchy", "counter"]),
    (&["prefetch"], &["counter"]),
    (&["processor"], &["kmem", "numa"]),
    // For tests: a model says why it fails, a test stops a thread.
    (&["model_failed"], EVERY),
    (&["pause_point"], &["counter"]),
    (&["at", "checker", "many", "set_paired"], &[]),
];

/// Every folder but the face.
const EVERY: &[&str] = &[
    "kmem",
    "runtime",
    "group",
    "page_counter",
    "lifecycle",
    "admission",
    "pressure",
    "reclaim",
    "hierarchy",
    "state",
    "stat",
    "counter",
    "thread",
    "pool",
    "numa",
];

/// Modules of `sync` that its own root passes on.
const INSIDE: &[&str] = &["real", "model", "pause"];

/// The folders that may use a part, if it has a row.
fn allowed(part: &str) -> Option<&'static [&'static str]> {
    let row = |part: &str| PARTS.iter().find(|(parts, _)| parts.contains(&part)).map(|(_, folders)| *folders);
    row(part).or_else(|| row(part.split("::").next()?))
}

/// Each use of a part, by folder and part, with the lines of its files. Also of what is passed on by another folder.
fn uses(of: &Crate) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut uses: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    let Some(sync) = of.module("sync") else { return uses };
    let within = of.children(sync);
    for written in &of.written {
        let source = &of.sources[written.source];
        if source.is_in("sync") || is_aside(source) {
            continue;
        }
        for (module, name) in of.find(written.module, &written.path).steps {
            let part = match within.get(&module) {
                _ if module == sync && within.values().any(|&child| child == name && !INSIDE.contains(&child)) => {
                    continue;
                }
                _ if module == sync => name,
                Some(child) if !INSIDE.contains(child) => format!("{child}::{name}"),
                _ => continue,
            };
            let line = format!("{}:{}", source.path, written.line);
            uses.entry((source.folder().to_owned(), part)).or_default().insert(line);
        }
    }
    uses
}

pub(crate) fn findings(of: &Crate) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((folder, part), lines) in uses(of) {
        let folders = allowed(&part);
        if folders.is_some_and(|folders| folders.contains(&folder.as_str())) {
            continue;
        }
        let lines = Vec::from_iter(lines).join("\n    ");
        let row = if folders.is_some() { "does not name this folder" } else { "has no row for it" };
        let why = format!("PARTS in tests/tidy/parts.rs {row}:\n    {lines}");
        let folder = if folder.is_empty() { "lib.rs" } else { &folder };
        findings.push(Finding { kind: "sync", key: format!("{folder} uses {part}"), count: 1, why });
    }
    findings
}

#[test]
fn each_folder_uses_its_part_of_sync() {
    hold("sync", "a folder uses the parts of `sync` that its rows list");
}
