//! Which file uses which: a file is a node; a path to another file of the crate, or a call of a
//! function that lies there, is an arrow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::OnceLock;

use crate::calls::calls;
use crate::names::{Crate, ROOT};
use crate::reader::{Source, sources};
use crate::rules::Rule;

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

/// Calls that close a circle and are there for now, by the two files and the functions that are
/// called, with the reason. An entry that is no longer true is a fault as well.
pub(crate) const KNOWN: &[Known] = &[];

/// The calls of one file's functions in another's that are known to close a circle.
pub(crate) struct Known {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    /// Names of the functions, in the order of the alphabet.
    pub(crate) calls: &'static [&'static str],
    /// Why they are there.
    pub(crate) why: &'static str,
}

/// One file uses what another one defines.
pub(crate) struct Arrow {
    from: usize,
    to: usize,
    line: usize,
    /// The first path that names the other file, or none: there are calls alone.
    path: Option<String>,
    /// The functions that it calls there, each with the first line of a call.
    calls: BTreeMap<String, usize>,
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
            graph.entry(from).or_default().entry(to).or_insert(Arrow {
                from,
                to,
                line: written.line,
                path: Some(written.path.join("::")),
                calls: BTreeMap::new(),
            });
        }
    }
    for call in calls(of)
        .into_iter()
        .filter(|call| !is_aside(call.from) && !is_aside(call.to))
    {
        let arrows = graph.entry(call.from).or_default();
        let arrow = arrows.entry(call.to).or_insert(Arrow {
            from: call.from,
            to: call.to,
            line: call.line,
            path: None,
            calls: BTreeMap::new(),
        });
        arrow.calls.entry(call.name).or_insert(call.line);
    }
    graph
}

impl Arrow {
    fn told(&self, sources: &[Source]) -> String {
        let (from, to) = (&sources[self.from].path, &sources[self.to].path);
        let line = self.line;
        match &self.path {
            Some(path) => format!("{from}:{line} uses {to} through `{path}`"),
            None => {
                let calls: Vec<String> = self
                    .calls
                    .iter()
                    .map(|(name, line)| format!("`{name}` ({line})"))
                    .collect();
                format!("{from}:{line} calls {}, which {to} has", calls.join(", "))
            }
        }
    }
}

fn rank(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&folder))
}

/// Arrows that run to a folder above, or beside.
fn backs(graph: &Graph, sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for arrow in graph.values().flat_map(BTreeMap::values) {
        let (from, to) = (sources[arrow.from].folder(), sources[arrow.to].folder());
        if from != to && rank(from) >= rank(to) {
            let told = arrow.told(sources);
            faults.push(format!("{told}; `{to}` does not stand below `{from}`"));
        }
    }
    faults
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

/// Circles of files, the shortest first, each as its files in turn. One that shares an arrow with a
/// circle before it is left out: it mostly goes when that one goes.
fn circles(graph: &Graph, sources: &[Source]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = graph
        .keys()
        .filter_map(|&start| circle(graph, start, sources))
        .collect();
    all.sort_by_key(Vec::len);
    let mut told = BTreeSet::new();
    all.retain(|files| {
        let turns = files.iter().zip(files.iter().cycle().skip(1));
        let arrows: Vec<(usize, usize)> = turns.map(|(from, to)| (*from, *to)).collect();
        let is_new = arrows.iter().all(|arrow| !told.contains(arrow));
        told.extend(arrows.into_iter().filter(|_| is_new));
        is_new
    });
    all
}

fn told_circle(graph: &Graph, files: &[usize], sources: &[Source]) -> String {
    let turns = files.iter().zip(files.iter().cycle().skip(1));
    let arrows: Vec<String> = turns
        .map(|(from, to)| graph[from][to].told(sources))
        .collect();
    arrows.join("\n    ")
}

/// Takes the known calls out of the graph, and returns those entries that are not true: the calls
/// are others, or close no circle.
fn take_known(graph: &mut Graph, sources: &[Source], known: &[Known]) -> Vec<String> {
    let find = |path: &str| sources.iter().position(|source| source.path == path);
    let mut faults = Vec::new();
    let mut taken: Vec<(Arrow, &Known)> = Vec::new();
    for entry in known {
        let (from, to) = (find(entry.from), find(entry.to));
        let arrow = from.zip(to).and_then(|(from, to)| {
            let arrows = graph.get_mut(&from)?;
            arrows
                .get(&to)?
                .path
                .is_none()
                .then(|| arrows.remove(&to))?
        });
        let Some(arrow) = arrow else {
            faults.push(format!(
                "{} calls nothing of {}, or imports it, so \"{}\" is over: delete the entry",
                entry.from, entry.to, entry.why
            ));
            continue;
        };
        let calls: Vec<&str> = arrow.calls.keys().map(String::as_str).collect();
        if calls != entry.calls {
            faults.push(format!(
                "{} calls {calls:?} of {}, the entry says {:?}: {}",
                entry.from, entry.to, entry.calls, entry.why
            ));
        }
        taken.push((arrow, entry));
    }
    // Each by itself, for two of one circle would hide each other.
    for (arrow, entry) in taken {
        let (from, to) = (arrow.from, arrow.to);
        graph.entry(from).or_default().insert(to, arrow);
        let closes = circle(graph, from, sources).is_some();
        graph.entry(from).or_default().remove(&to);
        if !closes {
            faults.push(format!(
                "{} -> {}: no circle without the other entries, so delete this one",
                entry.from, entry.to
            ));
        }
    }
    faults
}

/// What breaks [`Rule::Downwards`], [`Rule::NoCircle`] and [`Rule::KnownCircle`].
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) backs: Vec<String>,
    pub(crate) circles: Vec<String>,
    pub(crate) known: Vec<String>,
    /// The functions of other files that each file calls, all together.
    calls: usize,
    /// Which file uses which, by their paths.
    uses: BTreeSet<(String, String)>,
}

pub(crate) fn faults(of: &Crate, known: &[Known]) -> Faults {
    let folders: BTreeSet<&str> = of.sources.iter().map(Source::folder).collect();
    for folder in folders.into_iter().filter(|folder| !ASIDE.contains(folder)) {
        assert!(
            rank(folder).is_some(),
            "give `{folder}` a place in LAYERS in tests/tidy/graph.rs, and a row in docs/src/architecture.md"
        );
    }
    let mut graph = graph(of);
    let arrows = graph.values().flat_map(BTreeMap::values);
    let calls = arrows.clone().map(|arrow| arrow.calls.len()).sum();
    let path = |source: usize| of.sources[source].path.clone();
    let uses = arrows
        .map(|arrow| (path(arrow.from), path(arrow.to)))
        .collect();
    let backs = backs(&graph, of.sources);
    let known = take_known(&mut graph, of.sources, known);
    let circles = circles(&graph, of.sources)
        .iter()
        .map(|files| told_circle(&graph, files, of.sources))
        .collect();
    Faults {
        backs,
        circles,
        known,
        calls,
        uses,
    }
}

/// Which file of the crate uses which, by imports or by calls.
pub(crate) fn uses() -> &'static BTreeSet<(String, String)> {
    &of_the_crate().uses
}

fn of_the_crate() -> &'static Faults {
    static FOUND: OnceLock<Faults> = OnceLock::new();
    FOUND.get_or_init(|| {
        let sources = sources();
        let of = Crate::read(&sources);
        assert!(of.written.len() > 1000, "hardly one path was found");
        let faults = faults(&of, KNOWN);
        assert!(
            faults.calls > 1000,
            "hardly one call was found: {}",
            faults.calls
        );
        faults
    })
}

#[test]
fn files_use_each_other_downwards() {
    Rule::Downwards.hold(&of_the_crate().backs);
}

#[test]
fn no_file_uses_itself_in_a_circle() {
    Rule::NoCircle.hold(&of_the_crate().circles);
}

#[test]
fn each_known_circle_is_there() {
    Rule::KnownCircle.hold(&of_the_crate().known);
}
