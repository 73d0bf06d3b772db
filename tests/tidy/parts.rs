//! Which folders use those parts of `sync` that a protocol or the order of locks rests on. Any folder
//! may use the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::is_aside;
use crate::names::Crate;
use crate::reader::sources;
use crate::rules::Rule;

/// Some parts of `sync`, and the folders of `src` that use them.
struct Part {
    /// A module holds for all of it, unless a name of it has a row of its own.
    names: &'static [&'static str],
    folders: &'static [&'static str],
    why: &'static str,
}

const PARTS: &[Part] = &[
    Part {
        names: &["fence"],
        folders: &[],
        why: "a fence follows an exchange, or is a side of the barrier pair: both have a name of their own",
    },
    Part {
        names: &["fence_after_exchange"],
        folders: &[
            "lifecycle",
            "pressure",
            "reclaim",
            "hierarchy",
            "state",
            "counter",
        ],
        why: "the folders whose pages explain an edge with a fence",
    },
    Part {
        names: &["PlainCell"],
        folders: &["counter"],
        why: "a word without an atomic needs an owner, which a protocol of the counter names",
    },
    Part {
        names: &["barrier::light_side"],
        folders: &["thread"],
        why: "the light side is the owner's of a slot or a cell",
    },
    Part {
        names: &["barrier::Barrier"],
        folders: &["stat", "counter"],
        why: "the heavy side is the drainer's and the flush's",
    },
    Part {
        names: &["lock"],
        folders: &[
            "kmem",
            "values",
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
        why: "handles and attempts run a user's code, so they hold no lock of their own",
    },
    Part {
        names: &[
            "per_thread",
            "thread_local",
            "stand_in",
            "follow",
            "place",
            "place_zeroed",
            "displace",
            "process_const",
        ],
        folders: &["thread"],
        why: "what a thread owns has one place, which knows that the thread may have ended",
    },
    Part {
        names: &["park", "this_thread", "sleep"],
        folders: &["group", "pressure", "reclaim", "runtime"],
        why: "a thread sleeps where it holds no lock and is in no slow path",
    },
    Part {
        names: &["start_thread"],
        folders: &["thread"],
        why: "`Helper` alone knows of a thread after a fork, and ends it when it is idle",
    },
    Part {
        names: &["at", "checker", "many", "set_paired"],
        folders: &[],
        why: "the models call these",
    },
];

/// Modules of `sync` that its own root passes on.
const INSIDE: &[&str] = &["real", "model", "pause", "sizes"];

/// The row of a part, if it has one.
fn row(part: &str) -> Option<&'static Part> {
    let row = |part: &str| PARTS.iter().find(|row| row.names.contains(&part));
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

pub(crate) fn faults(of: &Crate) -> Vec<String> {
    let mut faults = Vec::new();
    for ((folder, part), lines) in uses(of) {
        let Some(row) = row(&part).filter(|row| !row.folders.contains(&folder.as_str())) else {
            continue;
        };
        let folder = if folder.is_empty() { "lib.rs" } else { &folder };
        let lines: Vec<String> = lines.into_iter().collect();
        faults.push(format!(
            "{folder} uses {part} ({}): {}",
            lines.join(", "),
            row.why
        ));
    }
    faults
}

#[test]
fn each_folder_uses_its_part_of_sync() {
    let sources = sources();
    let of = Crate::read(&sources);
    assert!(
        uses(&of).len() > 50,
        "hardly one use of `sync` was found: is this still its name?"
    );
    Rule::PartsOfSync.hold(&faults(&of));
}
