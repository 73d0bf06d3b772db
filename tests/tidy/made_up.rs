//! The rules on a made-up tree: each fault that is planted is found, and nothing else.

use crate::names::Crate;
use crate::reader::Source;
use crate::{graph, parts, types};

/// A tree without a fault.
const GOOD: &[(&str, &str)] = &[
    (
        "src/lib.rs",
        "pub(crate) mod counter;\nmod group;\npub mod sync;\npub use group::Group;\n",
    ),
    (
        "src/sync/mod.rs",
        "pub(crate) mod lock;\nmod real;\npub(crate) use real::AtomicU64;\n",
    ),
    (
        "src/sync/lock.rs",
        "use super::AtomicU64;\npub(crate) struct Lock(AtomicU64);\n",
    ),
    ("src/sync/real.rs", "pub(crate) struct AtomicU64;\n"),
    (
        "src/counter/mod.rs",
        "mod walk;\nmod level;\npub(crate) use level::Level;\n",
    ),
    (
        "src/counter/level.rs",
        "use crate::sync::{lock::Lock, AtomicU64 as Word};\npub(crate) struct Level(Lock, Word);\n",
    ),
    (
        "src/counter/walk.rs",
        "use super::Level;\npub(crate) fn walk(level: &Level) {}\n",
    ),
    (
        "src/group/mod.rs",
        "mod wait;\nuse crate::counter::{self, Level};\nuse wait::Waiting;\npub struct Group(Waiting, Level);\n",
    ),
    (
        "src/group/wait.rs",
        "use super::Group;\npub(super) struct Waiting(*const Group);\n",
    ),
];

/// The tree with other text in some files, or with further files.
fn tree(other: &[(&str, &str)]) -> Vec<Source> {
    let kept = GOOD
        .iter()
        .filter(|(path, _)| other.iter().all(|(of, _)| of != path));
    kept.chain(other)
        .map(|(path, text)| Source::new(path, text))
        .collect()
}

fn graph_faults(other: &[(&str, &str)]) -> Vec<String> {
    let sources = tree(other);
    let of = Crate::read(&sources);
    let mut faults: Vec<String> = graph::findings(&of)
        .iter()
        .map(|found| format!("{} {}", found.kind, found.key))
        .collect();
    faults.sort();
    faults
}

#[test]
fn the_good_tree_is_accepted() {
    assert_eq!(graph_faults(&[]), [""; 0]);
}

#[test]
fn an_import_from_above_is_found() {
    for text in [
        "use crate::group::Group;\nuse super::Level;\n",
        "use {super::Level, crate::group::{Group as Of}};\n",
        "use super::super::group::Group;\n",
        "fn walk(group: &crate::group::Group) {}\n",
        "use crate::group;\nfn walk(group: &group::Group) {}\n",
        "impl From<Level> for crate::group::Group {}\n",
        "macro_rules! of { () => { $crate::group::Group } }\n",
    ] {
        assert_eq!(
            graph_faults(&[("src/counter/walk.rs", text)]),
            ["back src/counter/walk.rs -> src/group/mod.rs"]
        );
    }
    for text in [
        "// use crate::group::Group;\n",
        "fn f() { g(\"crate::group::Group\") }\n",
        "#[cfg(all(test, not(loom)))]\nmod tests {\n    use crate::group::Group;\n}\n",
        "pub(in crate::group) fn f() {}\n",
        "use group::Group;\n",
    ] {
        assert_eq!(
            graph_faults(&[("src/counter/walk.rs", text)]),
            [""; 0],
            "{text}"
        );
    }
}

#[test]
fn an_import_from_the_root_is_found() {
    let faults = graph_faults(&[(
        "src/group/wait.rs",
        "use crate::Group;\npub(super) struct Waiting;\n",
    )]);
    assert_eq!(
        faults[0], "back src/group/wait.rs -> src/lib.rs",
        "{faults:?}"
    );
    assert!(
        faults.contains(&"circle src/lib.rs".to_owned()),
        "{faults:?}"
    );
}

#[test]
fn an_import_beside_is_found() {
    let lib = "pub(crate) mod units;\npub(crate) mod sync;\nmod counter;\nmod group;\n";
    let faults = graph_faults(&[
        ("src/lib.rs", lib),
        ("src/units.rs", "use crate::sync::lock::Lock;\n"),
    ]);
    assert_eq!(faults, ["back src/units.rs -> src/sync/lock.rs"]);
}

#[test]
fn a_circle_of_two_is_found() {
    let level = "use super::walk::walk;\npub(crate) struct Level;\n";
    assert_eq!(
        graph_faults(&[("src/counter/level.rs", level)]),
        ["circle src/counter/level.rs", "circle src/counter/walk.rs"]
    );
}

#[test]
fn a_circle_through_a_module_is_found() {
    // The parent and its child are none by themselves; with another file between them they are.
    let wait = "use super::line::Line;\npub(super) struct Waiting(Line);\n";
    let module = "mod line;\nmod wait;\nuse wait::Waiting;\npub struct Group(Waiting);\n";
    let of = |line: &'static str| {
        graph_faults(&[
            ("src/group/wait.rs", wait),
            ("src/group/mod.rs", module),
            ("src/group/line.rs", line),
        ])
    };
    assert_eq!(of("pub(super) struct Line;\n"), [""; 0]);
    assert_eq!(
        of("pub(super) struct Line(super::Group);\n"),
        [
            "circle src/group/line.rs",
            "circle src/group/mod.rs",
            "circle src/group/wait.rs"
        ]
    );
}

#[test]
fn a_reexport_hides_no_circle() {
    // The lock looks like an import of `group`, which only passes on what `group::wait` defines.
    let lock = "use crate::group::Passed;\npub(crate) struct Lock;\n";
    let module = "mod wait;\npub(crate) use self::wait::Waiting as Named;\npub(crate) use Named as Passed;\npub struct Group;\n";
    let wait = "use crate::sync::lock::Lock;\npub(crate) struct Waiting;\n";
    assert_eq!(
        graph_faults(&[
            ("src/sync/lock.rs", lock),
            ("src/group/mod.rs", module),
            ("src/group/wait.rs", wait)
        ]),
        [
            "back src/sync/lock.rs -> src/group/wait.rs",
            "circle src/group/wait.rs",
            "circle src/sync/lock.rs"
        ]
    );
    let glob = module
        .replace("Named as Passed", "self::wait::*")
        .replace("as Named", "as Other");
    let lock = "use crate::group::Waiting;\npub(crate) struct Lock;\n";
    assert_eq!(
        graph_faults(&[
            ("src/sync/lock.rs", lock),
            ("src/group/mod.rs", &glob),
            ("src/group/wait.rs", wait)
        ]),
        [
            "back src/sync/lock.rs -> src/group/wait.rs",
            "circle src/group/wait.rs",
            "circle src/sync/lock.rs"
        ]
    );
}

#[test]
fn modules_are_found_where_they_lie() {
    // A file of each checker's own by attribute, a module within a file, a module of a file beside
    // its folder.
    let sync = "#[cfg_attr(loom, path = \"model/loom.rs\")]\n#[cfg_attr(shuttle, path = \"model/shuttle.rs\")]\nmod checker;\npub(crate) mod lock;\npub(crate) mod stat { pub(crate) use super::checker::AtomicU64; }\npub(crate) use checker::AtomicU64;\nmod real;\n";
    let faults = graph_faults(&[
        ("src/sync/mod.rs", sync),
        (
            "src/sync/model/loom.rs",
            "mod integers;\npub(crate) use integers::AtomicU64;\n",
        ),
        (
            "src/sync/model/integers.rs",
            "pub(crate) struct AtomicU64(crate::counter::Level);\n",
        ),
        (
            "src/sync/model/shuttle.rs",
            "pub(crate) struct AtomicU64;\n",
        ),
        (
            "src/counter/level.rs",
            "use crate::sync::stat::AtomicU64;\nmod deep;\npub(crate) struct Level(AtomicU64);\n",
        ),
        (
            "src/counter/level/deep.rs",
            "use super::super::walk::walk;\n",
        ),
    ]);
    let found = [
        "back src/sync/model/integers.rs -> src/counter/level.rs",
        "circle src/counter/level.rs",
    ];
    assert_eq!(
        faults,
        [found[0], found[1], "circle src/sync/model/integers.rs"]
    );
}

fn part_faults(other: &[(&str, &str)]) -> Vec<String> {
    let sources = tree(other);
    parts::findings(&Crate::read(&sources))
        .into_iter()
        .map(|found| found.key)
        .collect()
}

#[test]
fn a_part_of_sync_in_a_wrong_folder_is_found() {
    assert_eq!(part_faults(&[]), [""; 0]);
    let group = "mod wait;\nuse crate::sync::lock::{Lock as Of};\npub struct Group(Of);\n";
    assert_eq!(
        part_faults(&[("src/group/mod.rs", group)]),
        ["group uses lock::Lock"]
    );
    let group = "mod wait;\nuse crate::sync;\npub struct Group;\nfn f() { sync::lock::of() }\n";
    assert_eq!(
        part_faults(&[("src/group/mod.rs", group)]),
        ["group uses lock::of"]
    );
    let walk = "use crate::sync::{Fresh, Arc, per_thread};\n";
    assert_eq!(
        part_faults(&[("src/counter/walk.rs", walk)]),
        ["counter uses Fresh", "counter uses per_thread"]
    );
    // A name that another folder passes on is a part of `sync` all the same.
    let faults = part_faults(&[
        (
            "src/lib.rs",
            "mod counter;\nmod group;\nmod sync;\nmod thread;\n",
        ),
        (
            "src/thread.rs",
            "pub(crate) use crate::sync::per_thread as of_thread;\n",
        ),
        ("src/counter/walk.rs", "use crate::thread::of_thread;\n"),
    ]);
    assert_eq!(faults, ["counter uses per_thread"]);
}

fn type_faults(other: &[(&str, &str)]) -> Vec<String> {
    let sources = tree(other);
    types::findings(&Crate::read(&sources))
        .iter()
        .map(|found| format!("{} {}", found.key, found.count))
        .collect()
}

#[test]
fn a_type_in_too_many_files_is_found() {
    let ways = [
        "impl Level {}\n",
        "impl<'a, T: Fn() -> u8> From<T> for Level {}\n",
        "unsafe impl Send for Level {}\n",
        "impl<T> crate::sync::Of<T> for super::Level where T: Copy {}\n",
        "use super::Level as Named;\nimpl Named {}\n",
    ];
    let module = "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\npub(crate) struct Level;\n";
    let files = ["a", "b", "c", "d", "e"].map(|name| format!("src/counter/{name}.rs"));
    let texts = ways.map(|text| {
        if text.contains(" as ") {
            text.to_owned()
        } else {
            format!("use super::Level;\n{text}")
        }
    });
    let all: Vec<(&str, &str)> = files
        .iter()
        .map(String::as_str)
        .zip(texts.iter().map(String::as_str))
        .collect();
    let with = |more: &[(&'static str, &'static str)]| {
        let mut files = all.clone();
        files.extend([
            ("src/counter/mod.rs", module),
            ("src/counter/walk.rs", ""),
            ("src/counter/level.rs", ""),
        ]);
        for &(path, text) in more {
            files.retain(|(of, _)| *of != path);
            files.push((path, text));
        }
        type_faults(&files)
    };
    let module_with =
        "mod walk;\nmod level;\nmod a;\nmod b;\nmod c;\nmod d;\nmod e;\npub(crate) struct Level;\n";
    let whole: &[(&'static str, &'static str)] = &[("src/counter/mod.rs", module_with)];
    assert_eq!(with(whole), ["Level 5"]);
    // Four, a type of another file, a list of a foreign type, an argument: none of these.
    for other in [
        "use super::Level;\nfn f(level: impl Into<Level>) {}\n",
        "struct Level;\nimpl Level {}\n",
        "impl Vec<super::Level> {}\n",
        "use crate::sync::AtomicU64;\nimpl From<super::Level> for AtomicU64 {}\n",
    ] {
        assert_eq!(
            with(&[whole[0], ("src/counter/a.rs", other)]),
            [""; 0],
            "{other}"
        );
    }
}

#[test]
fn two_types_of_one_name_are_found() {
    let twins = |other: &[(&str, &str)]| {
        let sources = tree(other);
        types::twins(&Crate::read(&sources))
            .into_iter()
            .map(|found| found.key)
            .collect::<Vec<_>>()
    };
    for text in [
        "struct Group;\n",
        "pub enum Group {}\n",
        "trait Group {}\n",
        "mod m { type Group = u8; }\n",
    ] {
        assert_eq!(twins(&[("src/counter/walk.rs", text)]), ["Group"], "{text}");
    }
    // A type of a trait, a function, a re-export, what each checker has: none of these.
    for text in [
        "impl Of for u8 { type Group = u8; }\n",
        "fn Group() {}\n",
        "use super::Level as Group;\n",
    ] {
        assert_eq!(twins(&[("src/counter/walk.rs", text)]), [""; 0], "{text}");
    }
    assert_eq!(
        twins(&[("src/sync/lock.rs", "pub(crate) struct AtomicU64;\n")]),
        [""; 0]
    );
}
