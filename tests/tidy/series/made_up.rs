//! The rule on a made-up chapter: each fault that is planted is found, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::expected::Expected;
use super::{Tree, faults};

const EXPECTED: Expected = Expected {
    name: "cake",
    source: &["A. Baker", "\"Use less sugar\"", "1 May 2020"],
    patches: &["kitchen: weigh the sugar", "kitchen: bake"],
    tables: &[("Sweetness", &["one"], true)],
};

pub(crate) const GOOD: &str = "\
# Less sugar

A. Baker, \"Use less sugar\", cakes list, 1 May 2020.

## Patches

| patch | mechanism | file | held by | same or departed |
|---|---|---|---|---|
| `kitchen: weigh the sugar` | a scale | `src/scale.rs` | `tests/cake/scale.rs::weighs`, mutation `no-scale` | same |
| `kitchen: bake` | an oven | `src/oven.rs` | `loom_oven`, `tests/cake/scale.rs::twin` | departed: ours is electric |

## Tables

### Sweetness, grains

| | theirs | ours | runs | min, max | std |
|---|---|---|---|---|---|
| one | 12 | 11 | 5 | 1, 2 | 3 |
| one, salted | **3.5 %** | 4 | 5 | 1, 2 | 3 |

## Claims

| id | claim | verdict | by |
|---|---|---|---|
| cake-1 | It is sweet. | confirmed | bench `taste`, `tests/cake/scale.rs::weighs` |
| cake-2 | It is dry. | refuted | `loom_oven` |
| cake-3 | Guests like it. | not applicable | we have no guests |

## How to run it

| command | quick | quick takes | full takes |
|---|---|---|---|
| `cargo bench --bench taste` | `--bites 2` | 5 s | 1.5 min |
";

fn tree() -> Tree {
    let files = [
        ("src/scale.rs", ""),
        ("src/oven.rs", ""),
        (
            "tests/cake/scale.rs",
            "#[test]\nfn weighs() {}\n\nfn helps() {}\n\ntwins! {\n    of:\n    twin(1),\n}\n",
        ),
        ("benches/taste.rs", "claims.holds(\"cake-1\", true, \"\")"),
    ];
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    Tree {
        files: files
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        models: set(&["loom_oven"]),
        mutations: set(&["no-scale"]),
        benches: set(&["taste"]),
    }
}

pub(crate) fn found(page: &str) -> Vec<String> {
    let short = |fault: String| fault.replace("docs/src/series/cake.md:", "");
    faults(&EXPECTED, Some(page), &tree())
        .into_iter()
        .map(short)
        .collect()
}

#[test]
fn the_good_chapter_is_accepted() {
    assert_eq!(found(GOOD), [""; 0]);
    assert_eq!(
        faults(&EXPECTED, None, &tree()),
        ["docs/src/series/cake.md: there is no such chapter"]
    );
}

/// The page with one text in the place of another, and the one fault that this makes.
#[test]
fn each_fault_of_a_chapter_is_found() {
    for (text, other, fault) in [
        ("A. Baker, ", "", " the source does not name A. Baker"),
        (
            "| `kitchen: bake` |",
            "| `kitchen: boil` |",
            " there is no row for the patch `kitchen: bake`",
        ),
        ("| a scale |", "| |", "9: say what the mechanism is"),
        (
            "| `src/oven.rs` |",
            "| the oven |",
            "10: name our file between backquotes",
        ),
        (
            "| same |",
            "| |",
            "9: the last cell starts with `same`, or with `departed: ` and the reason",
        ),
        (
            "departed: ours is electric",
            "departed: yes",
            "10: the last cell starts with `same`",
        ),
        (
            "`loom_oven`, `tests/cake/scale.rs::twin`",
            "trust",
            "10: name a test, a model, a bench or a mutation",
        ),
        (
            "src/oven.rs",
            "src/stove.rs",
            " there is no file src/stove.rs",
        ),
        (
            "scale.rs::weighs`, mutation",
            "scale.rs::helps`, mutation",
            " tests/cake/scale.rs has no test helps",
        ),
        (
            "scale.rs::twin",
            "scale.rs::of",
            " tests/cake/scale.rs has no test of",
        ),
        (
            "`loom_oven`, `tests",
            "`loom_stove`, `tests",
            " src/tests has no model loom_stove",
        ),
        (
            "`no-scale`",
            "`no-oven`",
            " .ci/mutations.txt has no row no-oven",
        ),
        (
            "### Sweetness, grains",
            "### Salt",
            " there is no table `### Sweetness`",
        ),
        (
            "| one, salted |",
            "| two |",
            " `### Sweetness` has no two rows of one",
        ),
        (
            "| std |",
            "| |",
            " `### Sweetness` has no table of ours with runs, min, max and std",
        ),
        (
            "| cake-2 |",
            "| cake-4 |",
            "26: the id is `cake-4`, the next is `cake-2`",
        ),
        (
            "| refuted |",
            "| maybe |",
            "26: `cake-2` has no verdict: write confirmed, refuted or not applicable",
        ),
        (
            "| refuted | `loom_oven` |",
            "| refuted | we think so |",
            "26: no command, test or model judges `cake-2`",
        ),
        (
            "we have no guests",
            "",
            "27: say why `cake-3` does not apply",
        ),
        (
            "we have no guests",
            "see bench `taste`",
            " no program under benches/ judges `cake-3`",
        ),
        (
            "bench `taste`, `tests",
            "`tests",
            " a program judges `cake-1`; its row names no command",
        ),
        (
            "| 5 s |",
            "| soon |",
            "33: write a time as `25 s` or `3 min`",
        ),
        (
            "It is dry. |",
            "It | is dry. |",
            "26: 5 cells in place of 4",
        ),
        ("## Claims", "## Words", " there is no claim"),
        (
            "## How to run it",
            "## Run",
            "1: there is no heading `## How to run it`",
        ),
        (
            "| `cargo bench --bench taste` | `--bites 2`",
            "| `cargo bench --bench chew` | ``",
            " benches/Cargo.toml has no bench chew",
        ),
    ] {
        let page = GOOD.replacen(text, other, 1);
        assert_ne!(page, GOOD, "{text}");
        let found = found(&page);
        assert!(
            found.iter().any(|of| of.starts_with(fault)),
            "{text} -> {other}: {fault}: {found:#?}"
        );
    }
}

#[test]
fn a_line_of_a_program_without_a_row_is_found() {
    let mut tree = tree();
    tree.files.insert(
        "benches/salt.rs".to_owned(),
        "claims.open(\"cake-9\", \"\")".to_owned(),
    );
    let found = faults(&EXPECTED, Some(GOOD), &tree);
    assert_eq!(
        found,
        ["docs/src/series/cake.md: a program judges `cake-9`, which has no row"]
    );
}
