//! Which folders may use which part of `sync`. What a folder does not need it does not name: a
//! fence in `group`, a lock in `admission`, a size that models make small outside of its pool are
//! mistakes, whatever they do there.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::is_aside;
use crate::names::Crate;
use crate::rules::{Finding, hold};

/// Folders of `src`.
#[derive(Clone, Copy)]
enum Folders {
    Only(&'static [&'static str]),
    /// And without the face and the files beside it.
    AllBut(&'static [&'static str]),
}

use Folders::{AllBut, Only};

impl Folders {
    fn have(self, folder: &str) -> bool {
        match self {
            Only(folders) => folders.contains(&folder),
            AllBut(others) => {
                !["", "error", "units"].contains(&folder) && !others.contains(&folder)
            }
        }
    }
}

/// Parts of `sync`, each with the folders that may use it. A row of a module holds for all of it,
/// unless a name of the module has a row of its own.
const PARTS: &[(&[&str], Folders)] = &[
    // Words of protocols.
    (&["Ordering"], AllBut(&[])),
    (
        &["AtomicI64", "AtomicPtr", "AtomicU32", "AtomicU64"],
        Only(&[
            "kmem",
            "lifecycle",
            "reclaim",
            "hierarchy",
            "state",
            "stat",
            "counter",
            "thread",
            "pool",
            "numa",
        ]),
    ),
    (
        &["fence_after_exchange"],
        Only(&[
            "lifecycle",
            "pressure",
            "reclaim",
            "hierarchy",
            "state",
            "counter",
        ]),
    ),
    (&["fence"], Only(&[])),
    (&["PlainCell"], Only(&["counter"])),
    (
        &["CachePadded"],
        Only(&["hierarchy", "counter", "thread", "pool"]),
    ),
    // Figures that no protocol depends on.
    (&["stat_atomic"], AllBut(&["kmem", "group", "admission"])),
    // The barrier pair: the light side is the thread's, the heavy side the drainer's and the
    // flush's.
    (&["barrier::light_side"], Only(&["thread"])),
    (&["barrier::Barrier"], Only(&["stat", "counter"])),
    (&["barrier::BarrierFailed"], Only(&["counter"])),
    (
        &["barrier::BarrierMode", "barrier::BarrierState"],
        Only(&[
            "",
            "runtime",
            "group",
            "page_counter",
            "hierarchy",
            "counter",
        ]),
    ),
    (&["barrier::litmus"], Only(&[""])),
    // Locks, each with its rank. Handles and attempts hold none of their own.
    (&["lock"], AllBut(&["group", "page_counter", "admission"])),
    (&["Arc", "Shared"], AllBut(&[])),
    (
        &["process_wide"],
        Only(&["lifecycle", "pressure", "reclaim", "thread", "pool"]),
    ),
    (&["share", "pool_stashes"], Only(&["pressure", "pool"])),
    // The values that a thread owns.
    (
        &[
            "per_thread",
            "thread_local",
            "SHELF_WORDS",
            "SHELVES",
            "box_zeroed",
            "stand_in",
            "follow",
        ],
        Only(&["thread"]),
    ),
    (
        &["place", "place_zeroed", "displace", "process_const"],
        Only(&["thread"]),
    ),
    (&["Patience"], Only(&["lifecycle", "thread"])),
    (&["PAGE_SLOTS", "PAGES_MAX"], Only(&["thread"])),
    // Time and other threads: what waits.
    (
        &["park", "this_thread", "sleep"],
        Only(&["group", "pressure", "reclaim"]),
    ),
    (&["Thread"], Only(&["pressure", "thread"])),
    (&["TIME_PASSES"], Only(&["pressure", "reclaim", "thread"])),
    (&["start_thread"], Only(&["thread"])),
    (
        &["pause", "is_over"],
        Only(&["group", "admission", "pressure", "reclaim", "thread"]),
    ),
    (&["rest", "IDLE_VISITS"], Only(&["stat"])),
    (&["SLICE"], Only(&["stat", "counter"])),
    // Sizes that models make small, and other things of one place.
    (
        &["POOL_OBJECTS", "POOL_PAGE", "POOL_PAGES", "POOL_STASH"],
        Only(&["pool"]),
    ),
    (&["PENDING_CLOSE_MAX"], Only(&["lifecycle"])),
    (
        &["LOADS_FOR_FIGURES", "PUTS_WHILE_CLOSED"],
        Only(&["counter"]),
    ),
    (&["NameHasher", "SHARDS"], Only(&["hierarchy", "counter"])),
    (&["prefetch"], Only(&["counter"])),
    (&["processor"], Only(&["kmem", "numa"])),
    // For tests: a model says why it fails, a test stops a thread.
    (&["model_failed"], AllBut(&[])),
    (&["pause_point"], Only(&["counter"])),
    (&["at", "checker", "many", "set_paired"], Only(&[])),
];

/// Modules of `sync` that its own root passes on.
const INSIDE: &[&str] = &["real", "model", "pause", "sizes"];

/// The folders that may use a part, if it has a row.
fn allowed(part: &str) -> Option<Folders> {
    let row = |part: &str| {
        PARTS
            .iter()
            .find(|(parts, _)| parts.contains(&part))
            .map(|(_, folders)| *folders)
    };
    row(part).or_else(|| row(part.split("::").next()?))
}

/// Each use of a part, by folder and part, with the lines of its files. Also of what is passed on
/// by another folder.
fn uses(of: &Crate) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut uses: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    let Some(sync) = of.module("sync") else {
        return uses;
    };
    let within = of.children(sync);
    for written in &of.written {
        let source = &of.sources[written.source];
        if source.is_in("sync") || is_aside(source) {
            continue;
        }
        for (module, name) in of.find(written.module, &written.path).steps {
            let part = match within.get(&module) {
                _ if module == sync
                    && within
                        .values()
                        .any(|&child| child == name && !INSIDE.contains(&child)) =>
                {
                    continue;
                }
                _ if module == sync => name,
                Some(child) if !INSIDE.contains(child) => format!("{child}::{name}"),
                _ => continue,
            };
            let line = format!("{}:{}", source.path, written.line);
            uses.entry((source.folder().to_owned(), part))
                .or_default()
                .insert(line);
        }
    }
    uses
}

pub(crate) fn findings(of: &Crate) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((folder, part), lines) in uses(of) {
        let folders = allowed(&part);
        if folders.is_some_and(|folders| folders.have(&folder)) {
            continue;
        }
        let lines = Vec::from_iter(lines).join("\n    ");
        let row = if folders.is_some() {
            "does not name this folder"
        } else {
            "has no row for it"
        };
        let why = format!("PARTS in tests/tidy/parts.rs {row}:\n    {lines}");
        let folder = if folder.is_empty() { "lib.rs" } else { &folder };
        findings.push(Finding {
            kind: "sync",
            key: format!("{folder} uses {part}"),
            count: 1,
            why,
        });
    }
    findings
}

#[test]
fn each_folder_uses_its_part_of_sync() {
    hold(
        "sync",
        "a folder uses the parts of `sync` that its rows list",
    );
}
