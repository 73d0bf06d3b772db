//! Which file imports which: a file is a node, a path to another file of the crate an arrow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::names::{Crate, ROOT};
use crate::reader::Source;
use crate::rules::{Finding, hold};

/// The folders of `src`, from top to bottom: a file imports from its own folder and from those
/// below. Folders of one row do not import each other. A file beside `lib.rs` is a folder of its
/// own.
pub(crate) const LAYERS: &[&[&str]] = &[
    &[""],
    &["kmem", "values"],
    &["runtime"],
    &["group"],
    &["page_counter"],
    &["lifecycle"],
    &["admission"],
    &["pressure"],
    &["reclaim"],
    &["hierarchy"],
    &["state"],
    &["stat"],
    &["counter"],
    &["thread"],
    &["pool"],
    &["numa"],
    &["error"],
    &["sync", "units"],
];

/// Folders that are no part of the graph: documentation links to any, models look into all.
const ASIDE: &[&str] = &["docs", "tests"];

/// One file uses what another one defines.
pub(crate) struct Arrow {
    from: usize,
    to: usize,
    line: usize,
    path: String,
}

/// The arrows from each file, the first of each pair.
type Graph = BTreeMap<usize, BTreeMap<usize, Arrow>>;

pub(crate) fn is_aside(source: &Source) -> bool {
    ASIDE.contains(&source.folder())
}

fn graph(of: &Crate) -> Graph {
    let mut graph = Graph::new();
    let is_aside = |source: usize| is_aside(&of.sources[source]);
    for written in of
        .written
        .iter()
        .filter(|written| !is_aside(written.source))
    {
        let found = of.find(written.module, &written.path);
        let mut ends = found.sources;
        // The root's names are for users: inside, a name is imported from where it is made.
        let by_root = found
            .steps
            .iter()
            .any(|(module, name)| *module == ROOT && !of.is_module_of_root(name));
        ends.extend(
            by_root
                .then(|| {
                    of.sources
                        .iter()
                        .position(|source| source.module.is_empty())
                })
                .flatten(),
        );
        for to in ends
            .into_iter()
            .filter(|&to| to != written.source && !is_aside(to))
        {
            let from = written.source;
            let line = written.line;
            let path = written.path.join("::");
            graph.entry(from).or_default().entry(to).or_insert(Arrow {
                from,
                to,
                line,
                path,
            });
        }
    }
    graph
}

impl Arrow {
    fn told(&self, sources: &[Source]) -> String {
        let Arrow {
            from,
            to,
            line,
            path,
        } = self;
        format!(
            "{}:{line} uses {} through `{path}`",
            sources[*from].path, sources[*to].path
        )
    }
}

fn rank(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&folder))
}

/// Arrows that run to a folder above, or beside.
fn backs(graph: &Graph, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for arrow in graph.values().flat_map(BTreeMap::values) {
        let from = &sources[arrow.from];
        let to = &sources[arrow.to];
        if from.folder() != to.folder() && rank(from.folder()) >= rank(to.folder()) {
            let why = format!(
                "{}; `{}` does not stand below `{}`: see LAYERS in tests/tidy/graph.rs",
                arrow.told(sources),
                to.folder(),
                from.folder()
            );
            findings.push(Finding {
                kind: "back",
                key: format!("{} -> {}", from.path, to.path),
                count: 1,
                why,
            });
        }
    }
    findings
}

/// True if one of two files is the module that declares the other.
fn is_own_child(a: &Source, b: &Source) -> bool {
    let parent = |source: &Source| {
        source
            .module
            .rsplit_once("::")
            .map(|(parent, _)| parent.to_owned())
    };
    parent(a).as_deref() == Some(&b.module) || parent(b).as_deref() == Some(&a.module)
}

/// The shortest circle through `start`, as the files in turn. A module and its own child are none
/// by themselves.
fn circle(graph: &Graph, start: usize, sources: &[Source]) -> Option<Vec<usize>> {
    let next = |from: usize| {
        graph
            .get(&from)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .copied()
    };
    let from_each = next(start).filter_map(|first| {
        let aside = is_own_child(&sources[start], &sources[first]);
        let mut before = BTreeMap::from([(first, start)]);
        let mut queue = VecDeque::from([first]);
        while let Some(from) = queue.pop_front() {
            for to in next(from).filter(|&to| !(aside && from == first && to == start)) {
                if to == start {
                    let mut back = vec![from];
                    while back.last() != Some(&start) {
                        back.push(before[back.last().expect("a way has a file")]);
                    }
                    back.reverse();
                    return Some(back);
                }
                before.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    from
                });
            }
        }
        None
    });
    from_each.min_by_key(Vec::len)
}

/// Files that import themselves in a circle.
fn circles(graph: &Graph, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &start in graph.keys() {
        if let Some(files) = circle(graph, start, sources) {
            let turns = files.iter().zip(files.iter().cycle().skip(1));
            let arrows: Vec<String> = turns
                .map(|(from, to)| graph[from][to].told(sources))
                .collect();
            let why = format!("imports itself in a circle:\n    {}", arrows.join("\n    "));
            findings.push(Finding {
                kind: "circle",
                key: sources[start].path.clone(),
                count: 1,
                why,
            });
        }
    }
    findings
}

pub(crate) fn findings(of: &Crate) -> Vec<Finding> {
    let folders: BTreeSet<&str> = of.sources.iter().map(Source::folder).collect();
    for folder in folders.into_iter().filter(|folder| !ASIDE.contains(folder)) {
        assert!(
            rank(folder).is_some(),
            "LAYERS in tests/tidy/graph.rs has no place for `{folder}`"
        );
    }
    let graph = graph(of);
    let mut findings = backs(&graph, of.sources);
    findings.extend(circles(&graph, of.sources));
    findings
}

#[test]
fn imports_go_downwards() {
    hold(
        "back",
        "a file imports from its own folder and from those below",
    );
}

#[test]
fn no_file_imports_itself_in_a_circle() {
    hold("circle", "files import each other in one direction");
}
