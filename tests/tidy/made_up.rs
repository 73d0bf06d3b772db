//! A fault for each rule is planted, and found. The rules of files that use each other are tried on
//! a made-up tree, where nothing else may be found.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{self, Known};
use crate::names::Crate;
use crate::reader::Source;
use crate::rules::Rule;
use crate::{
    changelog, door, edges, files, mutations, orderings, pages, parts, readme, series, workflows,
};

/// The faults that a rule finds in something made up that breaks it.
fn planted(rule: Rule) -> Vec<String> {
    let group = |text: &str| vec![Source::new("src/group/mod.rs", text)];
    let page = |text: &str| Source::new("docs/src/page.md", text);
    let models = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    match rule {
        Rule::Downwards => {
            tree_faults(
                &[("src/counter/walk.rs", "use crate::group::Group;\n")],
                &[],
            )
            .backs
        }
        Rule::NoCircle => tree_faults(CALLS_BACK, &[]).circles,
        Rule::KnownCircle => tree_faults(&[], &[LEVEL_CALLS_WALK]).known,
        Rule::OneDoor => {
            let sources = tree(&[("src/counter/walk.rs", "use std::sync::Mutex;\n")]);
            door::through_and_beside(&Crate::read(&sources)).1
        }
        Rule::Checkers => door::checkers(&group("#[cfg(loom)]\nfn f() {}\n")),
        Rule::PartsOfSync => part_faults(&[("src/counter/walk.rs", "use crate::sync::fence;\n")]),
        Rule::Edges => {
            let ends = group("// Release (E1): here.\n// Acquire (E1): there.\n");
            let row = (1, "| E1 | a | b |".to_owned());
            edges::faults(&ends, &[row].into(), &models(&["loom_a_vs_b"]))
        }
        Rule::Orderings => {
            let lines = orderings::unexplained("fn f() {\n    a.load(Ordering::Acquire);\n}\n");
            lines.iter().map(usize::to_string).collect()
        }
        Rule::Statistics => orderings::ordered_statistics(&[(
            "a.rs",
            "use crate::sync::stat_atomic::AtomicU64;\nstruct S { n: AtomicU64 }\n\
             fn f(s: &S) { s.n.load(Ordering::Acquire); }",
        )]),
        Rule::WithoutPair => {
            let row = (1, "| E1 | `loom_a_vs_b` |".to_owned());
            orderings::needless_pairs(&[row].into(), &models(&["loom_a_vs_b"]), &models(&[]))
        }
        Rule::Mutations => mutations::faults("", &BTreeSet::new(), &models(&["loom_a_vs_b"])),
        Rule::AsideUnderLoom => {
            let program = "fn main() {}";
            let aside = files::steps_aside(program);
            (!aside).then(|| program.to_owned()).into_iter().collect()
        }
        Rule::ProgramsListed => files::not_listed("[[test]]\n", &["new.rs".to_owned()]),
        Rule::UnitTestsCompiled => {
            let sources = [Source::new(
                "src/lib.rs",
                "    #[test]\n    fn holds() {}\n",
            )];
            let left_out = files::left_out("[lib]\ntest = false\n", &sources);
            left_out.iter().map(|path| (*path).to_owned()).collect()
        }
        Rule::FeaturesListed => {
            let manifest = "[package]\n\n[features]\nfast = []\n\n[dependencies]\n";
            files::untold(manifest, &[], "", "//! * `fast`: less time.")
        }
        Rule::Version => files::other_versions("0.2.0", "memcg = \"0.1\"", "## 0.2.0"),
        Rule::NamesOfPages => pages::missing_files(&page("`src/none.rs`")),
        Rule::ModelsOfPages => {
            pages::missing_models(&page("`loom_none`"), &models(&[]), &BTreeMap::new())
        }
        Rule::ProtocolPages => {
            let mutations = [("loom_a_vs_b".to_owned(), vec!["a".to_owned()])];
            pages::unnamed_models(&[page("a")], &mutations.into())
        }
        Rule::Layers => {
            pages::other_layers("| folder | what it is for |\n|---|---|\n| `a/` | x |\n")
        }
        Rule::Paths => {
            let page = "| call | files in order |\n|---|---|\n| one | `a.rs`, `b.rs` |\n";
            pages::wrong_paths(page, &BTreeSet::new())
        }
        Rule::Links => pages::dead_links(&page("[a](none.md)")),
        Rule::Commands => readme::faults("`cargo run --example none`", "", ""),
        Rule::Changelog => changelog::faults("## 0.1.0 - unreleased\n- Breaking: a\n", "0.1.0"),
        Rule::Jobs => workflows::faults(workflows::RUN, &[]),
        Rule::Steps => workflows::steps_untold("| `one`, `two` | a |\n", workflows::RUN),
        Rule::Series => {
            let other = series::made_up::GOOD.replacen("# ", "", 1);
            series::made_up::found(&other.replace("test", "none"))
        }
    }
}

/// Says the rule, its reason and its remedy, and each fault on a line of its own.
#[test]
fn each_rule_finds_its_fault_and_says_what_to_do() {
    for &rule in Rule::ALL {
        let faults = planted(rule);
        assert!(
            !faults.is_empty(),
            "{rule:?} finds no fault in what is planted for it"
        );
        let told = rule.told(&faults);
        for line in ["because: ", "to mend: ", faults[0].as_str()] {
            assert!(
                told.contains(line),
                "{rule:?} does not say {line:?}: {told}"
            );
        }
    }
}

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

fn tree_faults(other: &[(&str, &str)], known: &[Known]) -> graph::Faults {
    let sources = tree(other);
    graph::faults(&Crate::read(&sources), known)
}

/// The first words of each fault: the place and the file that it must not use, or those of a circle.
fn graph_faults(other: &[(&str, &str)]) -> Vec<String> {
    let graph::Faults { backs, circles, .. } = tree_faults(other, &[]);
    let back = |told: &String| {
        let words: Vec<&str> = told.split_whitespace().collect();
        let file = |word: &str| word.split(':').next().unwrap_or_default().to_owned();
        let to = words.iter().skip(1).find(|word| word.starts_with("src/"));
        format!("back {} -> {}", file(words[0]), to.unwrap_or(&""))
    };
    let circle = |told: &String| {
        let lines = told.lines().map(|line| line.trim().split(':').next());
        let mut files: Vec<&str> = lines.map(Option::unwrap_or_default).collect();
        files.sort_unstable();
        format!("circle {}", files.join(" "))
    };
    let mut faults: Vec<String> = backs
        .iter()
        .map(back)
        .chain(circles.iter().map(circle))
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
        faults
            .iter()
            .any(|fault| fault.starts_with("circle ") && fault.contains("src/lib.rs")),
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
        ["circle src/counter/level.rs src/counter/walk.rs"]
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
        ["circle src/group/line.rs src/group/mod.rs src/group/wait.rs"]
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
            "circle src/group/wait.rs src/sync/lock.rs"
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
            "circle src/group/wait.rs src/sync/lock.rs"
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
        "circle src/counter/level.rs src/sync/model/integers.rs",
    ];
    assert_eq!(faults, found);
}

fn part_faults(other: &[(&str, &str)]) -> Vec<String> {
    let sources = tree(other);
    let first = |told: &String| told.split(" (").next().unwrap_or_default().to_owned();
    parts::faults(&Crate::read(&sources))
        .iter()
        .map(first)
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
    // What has no row is free for all.
    let walk = "use crate::sync::{Fresh, Arc, per_thread};\n";
    assert_eq!(
        part_faults(&[("src/counter/walk.rs", walk)]),
        ["counter uses per_thread"]
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

/// `walk` imports the type of `level`, which calls a method of that type that `walk` has.
const CALLS_BACK: &[(&str, &str)] = &[
    (
        "src/counter/walk.rs",
        "use super::Level;\nimpl Level {\n    pub(crate) fn walk(&self) {}\n}\n",
    ),
    (
        "src/counter/level.rs",
        "pub(crate) struct Level;\nimpl Level {\n    fn rise(&self) { self.walk() }\n}\n",
    ),
];

const LEVEL_CALLS_WALK: Known = Known {
    from: "src/counter/level.rs",
    to: "src/counter/walk.rs",
    calls: &["walk"],
    why: "made up",
};

#[test]
fn a_circle_through_a_call_is_found() {
    let circle = ["circle src/counter/level.rs src/counter/walk.rs"];
    assert_eq!(graph_faults(CALLS_BACK), circle);
    let of = |level: &str| graph_faults(&[CALLS_BACK[0], ("src/counter/level.rs", level)]);
    // However the receiver is written.
    for body in [
        "fn f(level: &Level) { level.walk() }",
        "fn f(levels: &[Level]) { levels.iter().for_each(|level| level.walk()) }",
        "fn f(level: Option<&Level>) { if let Some(at) = level { at.walk() } }",
        "fn f(levels: &[Level]) { for level in levels { level.walk() } }",
        "fn f(levels: &[Level]) { levels[0].walk() }",
        "fn f(level: &Level) { Level::walk(level) }",
        "fn f(level: &Level) { g(level, Level::walk) }",
        "struct Kept { level: Box<Level> }\nimpl Kept { fn f(&self) { self.level.walk() } }",
        "struct Kept(Level);\nimpl Deref for Kept { type Target = Level; }\nfn f(kept: Kept) { kept.walk() }",
        "fn of() -> Result<&'static Level, ()> { a() }\nfn f() { of().unwrap().walk() }",
        "fn f(of: Of) { match of { Of::Level(at) => at.walk() } }\nenum Of { Level(Level) }",
        "fn f(a: A) { let level: Level = a.into(); level.walk() }",
        "fn f(a: A) { (unsafe { &*a.of::<Level>(Level) }).walk() }",
    ] {
        let level = format!("pub(crate) struct Level;\n{body}\n");
        assert_eq!(of(&level), circle, "{body}");
    }
    // Methods of the same name of the standard library, of another type, in a comment.
    for body in [
        "fn f(of: &[u8]) { of.walk() }",
        "struct Other;\nimpl Other { fn walk(&self) {} }\nfn f(other: &Other) { other.walk() }",
        "fn f(level: &Level) { /* level.walk() */ }",
        "fn f(level: &Level) { level.stay() }",
    ] {
        let level = format!("pub(crate) struct Level;\n{body}\n");
        assert_eq!(of(&level), [""; 0], "{body}");
    }
}

#[test]
fn a_call_of_a_method_from_above_is_found() {
    let group = "mod wait;\nuse crate::counter::Level;\nimpl Level {\n    pub(crate) fn rise(&self) {}\n}\n";
    let walk = "use super::Level;\nfn f(level: &Level) { level.rise() }\n";
    assert_eq!(
        graph_faults(&[
            ("src/group/mod.rs", group),
            ("src/group/wait.rs", ""),
            ("src/lib.rs", "mod counter;\nmod group;\nmod sync;\n"),
            ("src/counter/walk.rs", walk)
        ])[0],
        "back src/counter/walk.rs -> src/group/mod.rs"
    );
}

#[test]
fn a_known_circle_that_is_not_there_is_found() {
    let of = |files: &[(&str, &str)], calls: &'static [&'static str]| {
        let known = Known {
            calls,
            ..LEVEL_CALLS_WALK
        };
        let graph::Faults { circles, known, .. } = tree_faults(files, &[known]);
        assert_eq!(circles, [""; 0]);
        known
    };
    assert_eq!(of(CALLS_BACK, &["walk"]), [""; 0]);
    let another = of(CALLS_BACK, &["rise", "walk"]);
    assert!(
        another[0].contains("the entry says [\"rise\", \"walk\"]"),
        "{another:?}"
    );
    let gone = of(&[], &["walk"]);
    assert!(gone[0].ends_with("delete the entry"), "{gone:?}");
    // The call is there, and closes no circle any more.
    let moved = [
        (
            "src/counter/walk.rs",
            "impl crate::counter::deep::Deep { pub(crate) fn walk(&self) {} }\n",
        ),
        ("src/counter/deep.rs", "pub(crate) struct Deep;\n"),
        (
            "src/counter/mod.rs",
            "mod deep;\nmod walk;\nmod level;\npub(crate) use level::Level;\n",
        ),
        (
            "src/counter/level.rs",
            "pub(crate) struct Level(super::deep::Deep);\nimpl Level { fn f(&self) { self.0.walk() } }\n",
        ),
    ];
    let needless = of(&moved, &["walk"]);
    assert!(needless[0].ends_with("so delete this one"), "{needless:?}");
}
