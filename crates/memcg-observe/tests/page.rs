//! One page of the tree and its layers, as parsers that are not ours read it: those of the crate
//! `openmetrics-parser`, and those of Python's `prometheus_client`, where this system has it. `.ci/run`
//! installs that one.
#![cfg(feature = "openmetrics")]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use memcg::{Bytes, Limits, Runtime, StatKey, Unit};
use memcg_observe::Exposition;
use memcg_tower::AdmissionLayer;
use openmetrics_parser::openmetrics::parse_openmetrics;
use openmetrics_parser::prometheus::parse_prometheus;

/// Prints each sample of a page: its family's type, its name, its labels and its figure, as Python's
/// parser of that format has them.
const READ: &str = "
import json, sys
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client import parser as text
parser = openmetrics if sys.argv[1] == 'openmetrics' else text
for family in parser.text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        print(json.dumps([family.type, sample.name, sample.labels, str(sample.value)]))
";

/// The Python that has `prometheus_client`; `None` where there is none, which `CI=true` does not
/// allow.
fn python() -> Option<String> {
    let python = std::env::var("MEMCG_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let mut import = Command::new(&python);
    import.args(["-c", "import prometheus_client"]);
    let has_it = import.stderr(Stdio::null()).status();
    if has_it.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    assert_ne!(
        std::env::var("CI").as_deref(),
        Ok("true"),
        "{python} has no prometheus_client"
    );
    println!("left out: {python} has no prometheus_client");
    None
}

type Labels = BTreeMap<String, String>;

/// What Python reads: the type of the family, the name, the labels, and the figure.
fn read_by_python(python: &str, format: &str, page: &str) -> Vec<(String, String, Labels, String)> {
    let mut command = Command::new(python);
    let mut child = command
        .args(["-c", READ, format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it has run before");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(page.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{format}: {said}\n{page}");
    let lines = String::from_utf8(output.stdout).expect("JSON");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Figures of all kinds: limits, statistics and counters of each unit, odd names, two layers.
fn exposition() -> (Exposition, Vec<memcg::Charge>) {
    let mut builder = Runtime::builder().batch(Bytes(0)).max(1 << 30);
    let slept = builder.stat("slept", Unit::Nanoseconds);
    let files = builder.counter("files", Unit::Events);
    builder.counter("spill", Unit::Bytes);
    builder.counter("cpu", Unit::Nanoseconds);
    let runtime = builder.build().expect("no odd setting");
    let mut held = Vec::new();
    for name in ["acme", "a\"b", "back\\slash", " # {x=\"", "ünï", "other"] {
        let limits = Limits::new()
            .max(1 << 20)
            .high(1 << 19)
            .low(Bytes(1))
            .pressure_levels(80, 95);
        let group = runtime.root().create(name, limits).expect("a free name");
        held.push(group.force_charge(Bytes(4_096)));
        assert!(group.try_charge(2 << 20).is_err());
        group.stat_add(StatKey::ANON, 4_096);
        group.stat_add(StatKey::WORKINGSET_REFAULT, 3);
        group.stat_add(slept, 1_500_000_000);
        group.inspect().flush();
        let counter = group.counter(files).expect("its own");
        counter.set_max(3).expect("no ancestor is in the way");
    }
    let mut exposition = Exposition::new(&runtime).ledger();
    for name in ["api", "up\"load\\\n"] {
        let root = runtime.root();
        let layer = AdmissionLayer::new(move |_: &http::Request<()>| Some(root.clone()));
        exposition = exposition.layer(name, layer.figures());
    }
    (exposition, held)
}

#[test]
fn both_formats_are_read_by_others() {
    let (exposition, held) = exposition();
    let (openmetrics, text) = (exposition.openmetrics(), exposition.text());
    let count = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let samples = count(&openmetrics);
    assert_eq!(samples, count(&text));
    let parsed = parse_openmetrics(&openmetrics);
    let parsed = parsed.unwrap_or_else(|fault| panic!("{fault}\n{openmetrics}"));
    assert!(parsed.families.contains_key("memcg_requests_refused"));
    let parsed = parse_prometheus(&text).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    assert!(parsed.families.contains_key("memcg_requests_refused_total"));
    drop(held);
    let Some(python) = python() else {
        return;
    };
    for (format, page) in [("openmetrics", &openmetrics), ("text", &text)] {
        let read = read_by_python(&python, format, page);
        assert_eq!(read.len(), samples, "{format}");
        for (kind, name, labels, _) in &read {
            // A sample whose name does not fit its family's has a family of its own, without a type.
            assert_ne!(kind, "unknown", "{format}: {name}");
            let is_of_tree = labels.contains_key("group") || labels.is_empty();
            assert_eq!(
                labels.contains_key("layer"),
                !is_of_tree,
                "{format}: {name}"
            );
        }
        let of = |name: &str, label: &str, value: &str| {
            let found = read.iter().filter(|(_, found, labels, _)| {
                found == name && labels.get(label).is_some_and(|is| is == value)
            });
            found.count()
        };
        assert_eq!(of("memcg_usage_bytes", "group", "/ # {x=\""), 1);
        for layer in ["api", "up\"load\\\n"] {
            let kinds = memcg_tower::RefusalKind::ALL.len();
            let refused = of("memcg_requests_refused_total", "layer", layer);
            assert_eq!(refused, kinds, "{format}: {layer:?}");
            let counted = of("memcg_requests_wait_seconds_count", "layer", layer);
            assert_eq!(counted, 1, "{format}: {layer:?}");
        }
    }
}

/// The page of a runtime that has had nothing to do.
#[test]
fn a_page_of_nothing() {
    let runtime = Runtime::builder().build().expect("no odd setting");
    let exposition = Exposition::new(&runtime).layer("none", "").depth(0);
    let (openmetrics, text) = (exposition.openmetrics(), exposition.text());
    assert!(parse_openmetrics(&openmetrics).is_ok() && parse_prometheus(&text).is_ok());
    let Some(python) = python() else {
        return;
    };
    for (format, page) in [("openmetrics", &openmetrics), ("text", &text)] {
        assert!(!read_by_python(&python, format, page).is_empty());
    }
}

/// The chapter has each metric that a page may have, with its type, and no other.
#[test]
fn the_chapter_has_every_metric() {
    let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/observe.md");
    let Ok(chapter) = std::fs::read_to_string(chapter) else {
        println!("left out: the book is not beside the crate");
        return;
    };
    let mut told = BTreeMap::new();
    for row in chapter.lines().filter(|line| line.starts_with("| `memcg_")) {
        let [_, names, kind, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let kind = kind.trim().split([' ', ',', ':']).next().unwrap_or("");
        for name in names.split('`').filter(|part| part.starts_with("memcg_")) {
            let name = name.split('{').next().unwrap_or(name);
            assert_eq!(
                told.insert(name.to_string(), kind.to_string()),
                None,
                "twice"
            );
        }
    }

    // All that a runtime may have: each limit, a statistic and a counter of each unit.
    let mut builder = Runtime::builder().batch(Bytes(0)).max(1 << 30);
    let slept = builder.stat("slept", Unit::Nanoseconds);
    let counters = [
        builder.counter("files", Unit::Events),
        builder.counter("spill", Unit::Bytes),
        builder.counter("cpu", Unit::Nanoseconds),
    ];
    let runtime = builder.build().expect("no odd setting");
    let limits = Limits::new().max(1 << 20).high(1 << 19).soft(1 << 18);
    let limits = limits.low(Bytes(2)).min(Bytes(1)).pressure_levels(80, 95);
    let acme = runtime.root().create("acme", limits).expect("a free name");
    for counter in counters {
        let counter = acme.counter(counter).expect("its own");
        counter.set_max(7).expect("no ancestor is in the way");
    }
    acme.stat_add(StatKey::ANON, 4_096);
    acme.stat_add(StatKey::WORKINGSET_REFAULT, 3);
    acme.stat_add(slept, 1_500_000_000);
    acme.inspect().flush();
    runtime.root().inspect().show_uncharged(Bytes(1));
    let page = Exposition::new(&runtime).text();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types: BTreeMap<String, String> = types
        .filter_map(|said| said.split_once(' '))
        .map(|(name, kind)| (name.to_string(), kind.to_string()))
        .collect();
    assert_eq!(told, types, "the chapter, and the page");
}
