//! What is read and written from outside: the page of metrics, and files of groups.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memcg::figures::StatItem;
use memcg::simulated_time as clock;
use memcg::{Freshness, Group, Limits, PageCounter, PressureLevel, Runtime, Unit};
use memcg_observe::{Exposition, FileError, GroupFile};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::super::Life;
use super::sinks::{Observed, recorded};
use crate::script::{Adapter, Kind, Op, Size, pick};

/// Pages that are read again and again: names on them keep their places. By their form.
#[derive(Default)]
pub(super) struct Pages(BTreeMap<u8, Page>);

struct Page {
    exposition: Exposition,
    observed: Observed,
    /// The names that it has had, by level, and when each was there last.
    names: BTreeMap<usize, BTreeMap<String, Instant>>,
}

/// Figures by their names and labels.
pub(super) type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Names of a level, for each group that is shown.
const PLACES: usize = 4;

/// A name has its place for so long after it was there last.
const HOUR: Duration = Duration::from_secs(3_600);

/// Readings of a page of groups that change.
const READINGS: usize = 5;

/// A sample of the page: a name, labels, a figure.
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    figure: String,
}

/// Reads a page of metrics, naively.
fn parse(page: &str) -> Vec<Sample> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (of, figure) = line.rsplit_once(' ').expect("a figure");
        let (name, labels) = of.split_once('{').unwrap_or((of, "}"));
        let labels = labels.strip_suffix('}').expect("the end of the labels");
        let labels = labels.split("\",").filter(|label| !label.is_empty());
        let labels = labels.map(|label| {
            let (name, value) = label.split_once("=\"").expect("a label");
            (name.into(), value.trim_end_matches('"').into())
        });
        Sample {
            name: name.into(),
            labels: labels.collect(),
            figure: figure.into(),
        }
    };
    lines.map(sample).collect()
}

/// A family that a layer prints, and the samples that a page has of it.
struct Block {
    /// The names that it takes.
    names: &'static [&'static str],
    kind: &'static str,
    text: &'static str,
    /// Behind the name and the label of the layer.
    samples: &'static [(&'static str, &'static str)],
    /// The same in the older text, where that is another.
    plain: &'static [(&'static str, &'static str)],
}

const BLOCKS: [Block; 8] = [
    Block {
        names: &["odd_a", "odd_a_total", "odd_a_created"],
        kind: "counter",
        text: "# HELP odd_a Some.\n# TYPE odd_a counter\nodd_a_total{k=\"x\\\"}\"} 1 # {id=\"7\"} 1\nodd_a 5\n",
        samples: &[("odd_a_total", ",k=\"x\\\"}\"} 1 # {id=\"7\"} 1")],
        plain: &[("odd_a_total", ",k=\"x\\\"}\"} 1")],
    },
    Block {
        names: &["odd_a_total"],
        kind: "gauge",
        text: "# TYPE odd_a_total gauge\nodd_a_total 6\n",
        samples: &[("odd_a_total", "} 6")],
        plain: &[],
    },
    Block {
        names: &["odd_b_bytes"],
        kind: "gauge",
        text: "# TYPE odd_b_bytes gauge\n# UNIT odd_b_bytes bytes\nodd_b_bytes 2 17\nodd_b_bytes{le=\" # \"} 3\n",
        samples: &[("odd_b_bytes", "} 2 17"), ("odd_b_bytes", ",le=\" # \"} 3")],
        plain: &[],
    },
    Block {
        names: &["odd_c"],
        kind: "gauge",
        text: "# TYPE odd_c gauge\nodd_c 3\nodd_d 4\nodd_c{layer=\"me\"} 5\nodd_c x\nodd_c{k=\"} 1\n# EOF\n",
        samples: &[("odd_c", "} 3")],
        plain: &[],
    },
    Block {
        names: &["odd_c"],
        kind: "unknown",
        text: "# TYPE odd_c unknown\nodd_c 8\n",
        samples: &[("odd_c", "} 8")],
        plain: &[],
    },
    Block {
        names: &[
            "odd_h",
            "odd_h_bucket",
            "odd_h_count",
            "odd_h_sum",
            "odd_h_created",
        ],
        kind: "histogram",
        text: "# TYPE odd_h histogram\nodd_h_bucket{le=\"+Inf\"} 2\nodd_h_count 2\nodd_h_sum 9.5\nodd_h 1\n",
        samples: &[
            ("odd_h_bucket", ",le=\"+Inf\"} 2"),
            ("odd_h_count", "} 2"),
            ("odd_h_sum", "} 9.5"),
        ],
        plain: &[],
    },
    Block {
        names: &["odd_h_sum"],
        kind: "gauge",
        text: "# TYPE odd_h_sum gauge\nodd_h_sum 1\n",
        samples: &[("odd_h_sum", "} 1")],
        plain: &[],
    },
    // The tree has it.
    Block {
        names: &["memcg_groups"],
        kind: "gauge",
        text: "# TYPE memcg_groups gauge\nmemcg_groups 1\n",
        samples: &[("memcg_groups", "} 1")],
        plain: &[],
    },
];

/// Layers print families of any text onto one page, each with its label. A family that has a name
/// of another one is left out, unless it is the same.
pub(super) fn layers(seed: u64) {
    struct Panics;
    impl std::fmt::Display for Panics {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("a layer that panics on purpose")
        }
    }
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().build();
    let runtime = runtime.expect("a configuration that holds");
    let mut exposition = Exposition::new(&runtime).layer("panics", Panics);
    let mut taken: Vec<&Block> = Vec::new();
    let mut known: Vec<[Vec<String>; 2]> = Vec::new();
    for (layer, said) in [("one", "one"), ("t\"wo", "t\\\"wo")] {
        let of = (0..BLOCKS.len()).filter(|_| rng.random_bool(0.5));
        let of: Vec<&Block> = of.map(|number| &BLOCKS[number]).collect();
        // Within one text a name is one family's.
        let mut of_layer: Vec<&Block> = Vec::new();
        for block in of {
            if !of_layer.iter().any(|it| it.names.contains(&block.names[0])) {
                of_layer.push(block);
            }
        }
        let text: String = of_layer.iter().map(|block| block.text).collect();
        exposition = exposition.layer(layer, text);
        for block in of_layer.iter().filter(|it| it.names[0] != "memcg_groups") {
            let lines = |of: &[(&str, &str)]| -> Vec<String> {
                let line = |(name, rest): &(&str, &str)| format!("{name}{{layer=\"{said}\"{rest}");
                of.iter().map(line).collect()
            };
            let plain = if block.plain.is_empty() {
                block.samples
            } else {
                block.plain
            };
            let of_block = [lines(block.samples), lines(plain)];
            let same = taken.iter().position(|it| it.names[0] == block.names[0]);
            let has_name = |it: &&Block| it.names.iter().any(|name| block.names.contains(name));
            match same {
                Some(at) if taken[at].kind == block.kind => {
                    for (known, lines) in known[at].iter_mut().zip(of_block) {
                        known.extend(lines);
                    }
                }
                None if !taken.iter().any(has_name) => {
                    taken.push(block);
                    known.push(of_block);
                }
                _ => {}
            }
        }
    }
    let pages = [exposition.openmetrics(), exposition.text()];
    for (number, page) in pages.iter().enumerate() {
        let of_layers = page.lines().filter(|line| line.contains("{layer="));
        let known = known.iter().flat_map(|of| &of[number]);
        let (found, known): (Vec<_>, Vec<_>) = (of_layers.collect(), known.collect());
        assert_eq!(found, known, "samples of layers, of {page}");
        let units = page.lines().filter(|line| line.starts_with("# UNIT odd_"));
        let has_unit = taken
            .iter()
            .filter(|it| it.names[0] == "odd_b_bytes")
            .count();
        assert_eq!(units.count(), [has_unit, 0][number], "units of {page}");
        let ends = page.lines().filter(|line| *line == "# EOF").count();
        assert_eq!(ends, [1, 0][number], "ends of {page}");
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut types: Vec<_> = types.filter_map(|it| it.split_once(' ')).collect();
        let many = types.len();
        types.sort_unstable();
        types.dedup_by_key(|it| it.0);
        assert_eq!(types.len(), many, "families of {page}");
    }
}

/// What a client accepts, in so many lines, and whether it would rather have plain text.
const ACCEPTS: [(&[&str], bool); 9] = [
    (&[], false),
    (&["*/*"], false),
    (&["text/plain"], true),
    (
        &["TEXT/Plain; version=0.0.4;q=0.9, application/openmetrics-text;q=0.3"],
        true,
    ),
    (&["text/*;q=0.2", "application/*;q=0.3"], false),
    (&["application/openmetrics-text;q=0.1", "text/plain"], true),
    (
        &["image/png", "application/openmetrics-text;q=0, */*"],
        true,
    ),
    (&["text/plain;q=0.5, application/openmetrics-text"], false),
    (&["text/html"], false),
];

/// A router answers what its files and its page have, and whether the service may get new work.
pub(super) fn routes(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let limits = Limits::new().max(10_000).pressure_levels(50, 80);
    let one = runtime.root().create("one", limits);
    let one = one.expect("nothing is in the way");
    let two = one.create("two", Limits::new().high(900));
    let two = two.expect("nothing is in the way");
    let from = pick(rng, &[PressureLevel::Elevated, PressureLevel::Critical]);
    let exposition = Exposition::new(&runtime).not_ready_from(&one, from);
    let page = exposition.clone();
    let mut router: axum::Router = exposition.router();
    let tokio = tokio::runtime::Builder::new_current_thread().build();
    let tokio = tokio.expect("a runtime of one thread");
    let mut ask = |path: &str, accepts: &[&str]| {
        let mut request = http::Request::new(axum::body::Body::empty());
        *request.uri_mut() = path.parse().expect("a path");
        for accepted in accepts {
            let accepted = accepted.parse().expect("a list of types");
            request.headers_mut().append("accept", accepted);
        }
        let answer = tower_service::Service::call(&mut router, request);
        tokio.block_on(async {
            let (head, body) = answer.await.expect("no error").into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await;
            let body = body.expect("a whole text").to_vec();
            let kind = head.headers.get("content-type");
            let kind = kind.and_then(|kind| kind.to_str().ok());
            let body = String::from_utf8(body).expect("a text");
            (head.status.as_u16(), kind.map(str::to_string), body)
        })
    };
    for _ in 0..READINGS {
        let held = one.charge(pick(rng, &[100, 4_999, 5_000, 6_000, 8_000, 9_900]));
        let held = (held.expect("there is room"), two.force_charge(60));
        let level = one.pressure_level();
        let (status, _, text) = ask("/readyz", &[]);
        let known = if level >= from { 503 } else { 200 };
        let found = (status, text);
        assert_eq!(
            found,
            (known, format!("{}\n", level.name())),
            "from {from:?}"
        );
        for group in [&runtime.root(), &one, &two] {
            let file = pick(rng, &GroupFile::ALL);
            let path = group.path();
            let path = path.trim_end_matches('/');
            let (status, _, text) = ask(&format!("/memcg{path}/{}", file.name()), &[]);
            assert_eq!(
                (status, text),
                (200, file.read(group)),
                "{file:?} of {path}"
            );
            for missing in [format!("{path}/no/memory.max"), format!("{path}/memory.no")] {
                let (status, ..) = ask(&format!("/memcg{missing}"), &[]);
                assert_eq!(status, 404, "{missing}");
            }
        }
        let (accepts, wants_text) = pick(rng, &ACCEPTS);
        let (status, kind, text) = ask("/metrics", accepts);
        let known = match wants_text {
            true => (memcg_observe::TEXT_CONTENT_TYPE, page.text()),
            false => (memcg_observe::CONTENT_TYPE, page.openmetrics()),
        };
        let found = (status, kind.as_deref(), text);
        assert_eq!(found, (200, Some(known.0), known.1), "for {accepts:?}");
        drop(held);
    }
    drop((router, page));
    assert_eq!(runtime.root().live(), 0, "live at the end");
}

/// The groups that a page shows, read again and again while they change: of each level the largest of
/// those below a group that is shown, where their names have places.
pub(super) fn rows(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let mut groups: Vec<InTree> = vec![(runtime.root(), 0, 0, None)];
    for number in 1..rng.random_range(4..20) {
        let parent = rng.random_range(0..groups.len().min(6));
        let (above, _, level, _) = &groups[parent];
        let made = above.create(number as u64, Limits::new());
        let made = made.expect("nothing is in the way");
        groups.push((made, parent, level + 1, None));
    }
    let shows = Shows::draw(rng);
    let mut pages = vec![(shows.set(Exposition::new(&runtime)), shows, 0)];
    // Of each page that is no clone of another as it was, by level.
    let mut names = vec![Names::default()];
    let rest = pick(rng, &[0, 0, 1_300, 2_500, 4_000]);
    for _ in 0..READINGS {
        clock::advance(Duration::from_secs(rest));
        if rng.random_bool(0.4) {
            let (page, mut shows, places) = pages[rng.random_range(0..pages.len())].clone();
            let page = match rng.random() {
                // As it was, it counts names together with the one that it is of.
                true => (page.ledger(), shows, places),
                false => {
                    names.push(Names::default());
                    (shows.change(page, rng), shows, names.len() - 1)
                }
            };
            pages.push(page);
        }
        for (group, .., held) in &mut groups {
            if held.is_none() || rng.random() {
                let bytes = rng.random_range(1..50_000);
                let new = rng.random_bool(0.8).then(|| group.charge(bytes));
                *held = new.map(|held| held.expect("no limit"));
            }
        }
        let usages: BTreeSet<_> = groups.iter().map(|of| (of.2, of.0.usage())).collect();
        // Of two that use as much either may be shown.
        if usages.len() < groups.len() {
            continue;
        }
        for (page, shows, number) in &pages {
            let known = shows.rows(&groups, &mut names[*number]);
            let page = page.openmetrics();
            let rows = parse(&page).into_iter();
            let rows = rows.filter(|it| it.name == "memcg_usage_bytes");
            let found: BTreeMap<_, _> = rows
                .map(|it| {
                    let level: usize = it.labels["depth"].parse().expect("a number");
                    let usage: u64 = it.figure.parse().expect("a number");
                    ((it.labels["group"].clone(), level), usage)
                })
                .collect();
            assert_eq!(found, known, "{shows:?}, of {} pages", pages.len());
        }
    }
}

/// A group, the number of the one above it, its level and what it holds.
type InTree = (Group, usize, usize, Option<memcg::Charge>);

/// When each name had a place last, by level.
type Names = BTreeMap<usize, BTreeMap<usize, Instant>>;

/// What a page shows of each level.
#[derive(Clone, Copy, Debug)]
struct Shows {
    depth: usize,
    top: usize,
    /// So many names.
    most: Option<usize>,
}

impl Shows {
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Shows {
        Shows {
            depth: rng.random_range(1..4),
            top: pick(rng, &[1, 2, 2, 3, 50]),
            most: pick(rng, &[None, None, Some(1), Some(3), Some(usize::MAX)]),
        }
    }

    fn set(self, page: Exposition) -> Exposition {
        let page = page.depth(self.depth).top(self.top);
        match self.most {
            Some(most) => page.names(most),
            None => page,
        }
    }

    /// One setting is another one from here on.
    fn change(&mut self, page: Exposition, rng: &mut Xoshiro256PlusPlus) -> Exposition {
        let other = Shows::draw(rng);
        match (rng.random_range(0..3), other.most) {
            (0, _) => {
                self.depth = other.depth;
                page.depth(self.depth)
            }
            (1, Some(most)) => {
                self.most = Some(most);
                page.names(most)
            }
            _ => {
                self.top = other.top;
                page.top(self.top)
            }
        }
    }

    /// The usage that it shows by name and level, and whose names have places from here on.
    fn rows(self, groups: &[InTree], names: &mut Names) -> BTreeMap<(String, usize), u64> {
        let (places, now) = (self.most.unwrap_or(self.top * PLACES), clock::now());
        let mut known = BTreeMap::new();
        let root = groups[0].0.usage();
        known.insert((String::from("/"), 0), root);
        let mut above = BTreeSet::from([0]);
        for level in 1..=self.depth {
            let is_below = |&number: &usize| number > 0 && above.contains(&groups[number].1);
            let mut below: Vec<usize> = (0..groups.len()).filter(is_below).collect();
            if below.is_empty() {
                break;
            }
            below.sort_by_key(|&number| std::cmp::Reverse(groups[number].0.usage()));
            let names = names.entry(level).or_default();
            let has_place = |number: &usize| {
                if !names.contains_key(number) && names.len() >= places {
                    names.retain(|_, last| now - *last < HOUR);
                }
                let has_place = names.contains_key(number) || names.len() < places;
                if has_place {
                    names.insert(*number, now);
                }
                has_place
            };
            let shown = below.into_iter().filter(has_place).take(self.top);
            let shown: Vec<usize> = shown.collect();
            let sum: u64 = shown.iter().map(|&number| groups[number].0.usage()).sum();
            known.insert((String::from("other"), level), root - sum);
            let rows = shown.iter().map(|&number| &groups[number].0);
            known.extend(rows.map(|group| ((group.path(), level), group.usage())));
            above = shown.into_iter().collect();
        }
        known
    }
}

/// How names say units, and what a sample of one is divided by.
fn said(unit: Unit) -> (&'static str, f64) {
    match unit {
        Unit::Bytes => ("_bytes", 1.0),
        Unit::Nanoseconds => ("_seconds", 1e9),
        _ => ("", 1.0),
    }
}

/// The samples that a page has of a group, without the labels of the group itself.
fn samples_of(group: &Group, items: &[StatItem<'_>], has_ledger: bool) -> Samples {
    let mut samples = Samples::new();
    let mut add = |name: &str, labels: &[(&str, &str)], figure: f64| {
        let labels = labels.iter();
        let labels = labels.map(|&(key, value)| (key.to_string(), value.to_string()));
        samples.insert((format!("memcg_{name}"), labels.collect()), figure);
    };
    // In this order: a reading of the statistics may publish some.
    let stats = group.read(Freshness::Threshold);
    for item in items {
        let (name, factor) = match item.unit {
            Unit::Bytes => ("stat_bytes", 1.0),
            Unit::Nanoseconds => ("stat_time_seconds", 1e9),
            _ => ("stat_events", 1.0),
        };
        let figure = stats.get(item.stat);
        if figure != 0 {
            add(name, &[("item", item.name)], figure as f64 / factor);
        }
    }
    let ledger = group.ledger();
    let of_ledger = [
        ("reserved", ledger.reserved()),
        ("allocated", ledger.allocated()),
        ("unpaid", ledger.unpaid()),
        ("left_behind", ledger.left_behind()),
    ];
    if has_ledger && (ledger.allocated() > 0 || ledger.unpaid() > 0) {
        for (item, figure) in of_ledger.into_iter().filter(|&(_, figure)| figure > 0) {
            add("stat_bytes", &[("item", item)], figure as f64);
        }
    }
    let inspect = group.inspect();
    let is_set = |limit: u64| (limit < u64::MAX).then_some(limit);
    let above_zero = |bytes: u64| (bytes > 0).then_some(bytes);
    let protected = |bytes: u64| above_zero(bytes).map(|bytes| bytes.min(PageCounter::USAGE_MAX));
    let usage = group.usage();
    let stocked = group.memory().stocked_bound().min(usage);
    let level = group.pressure_level() as u64;
    let gauges = [
        ("usage_bytes", Some(usage)),
        ("stocked_bound_bytes", Some(stocked)),
        ("peak_bytes", Some(group.peak())),
        ("forced_bytes", Some(group.forced())),
        ("uncharged_bytes", above_zero(inspect.uncharged())),
        ("max_bytes", is_set(group.max())),
        ("high_bytes", is_set(inspect.high())),
        ("soft_bytes", is_set(inspect.soft())),
        ("low_bytes", protected(inspect.low())),
        ("min_bytes", protected(inspect.min())),
        ("waiting_charges", Some(group.waiting_count() as u64)),
        ("pressure_level", Some(level)),
        ("refused_charges_total", Some(group.refused_count())),
    ];
    for (name, figure) in gauges {
        if let Some(figure) = figure {
            add(name, &[], figure as f64);
        }
    }
    for (event, count) in group.events().iter() {
        add("events_total", &[("event", event.name())], count as f64);
    }
    let pressure = group.pressure();
    for (name, stalled) in [("waiting", pressure.some), ("stalled", pressure.full)] {
        let name = format!("pressure_{name}_seconds_total");
        add(&name, &[], stalled.total.as_micros() as f64 / 1e6);
    }
    for counter in group.counters() {
        let (suffix, factor) = said(counter.unit());
        let gauges = [
            ("usage", Some(counter.usage())),
            ("peak", Some(counter.peak())),
            ("max", is_set(counter.max())),
        ];
        let labels = [("counter", counter.name())];
        for (name, figure) in gauges {
            if let Some(figure) = figure {
                let figure = figure.min(i64::MAX as u64) as f64 / factor;
                add(&format!("counter_{name}{suffix}"), &labels, figure);
            }
        }
        let refused = counter.refused_count() as f64;
        add("counter_refused_charges_total", &labels, refused);
    }
    samples
}

/// Those of the runtime as a whole.
fn samples_of_all(runtime: &Runtime) -> Samples {
    let counts = runtime.counts();
    let is_degraded = runtime.barrier() == memcg::barrier::BarrierState::Degraded;
    let all = [
        ("groups", runtime.group_count() as u64),
        ("dying_groups", runtime.dying_count() as u64),
        ("barrier_degraded", u64::from(is_degraded)),
        ("drains_total", counts.drains),
        ("drained_bytes_total", counts.drained),
        ("barriers_total", counts.barriers),
        ("stat_flushes_total", counts.flushes),
    ];
    let named = |(name, figure): (&str, u64)| {
        let of = (format!("memcg_{name}"), BTreeMap::new());
        (of, figure as f64)
    };
    all.into_iter().map(named).collect()
}

/// Each figure is what it was before, or is afterwards. Else a thread of the runtime has done
/// something meanwhile, and neither says anything.
fn agree(whose: &str, found: &Samples, before: &Samples, after: &Samples) {
    let all: BTreeSet<_> = found.keys().chain(before.keys()).collect();
    for of in all {
        let (found, before, after) = (found.get(of), before.get(of), after.get(of));
        // A thread that looks for credit closes stocks for that moment, and opens them again. What it
        // takes back between the reading of one group and of the next is missing in what they have
        // reserved.
        let is_reserved = of.1.get("item").is_some_and(|item| item == "reserved");
        let is_closed = (of.0.contains("stocked_bound") || is_reserved) && found < before;
        let is_right = found == before || before != after || is_closed;
        assert!(is_right, "{of:?} of {whose}: {found:?}, not {before:?}");
    }
}

impl Life {
    pub(super) fn step_metrics(&mut self, op: &Op, adapter: &Adapter) {
        match *adapter {
            Adapter::Scrape(form) => self.scrape(form),
            Adapter::Files(group) => self.read_files(group),
            Adapter::WriteFile(group, form, size) => self.write_file(op, group, form, size),
            _ => unreachable!("an operation on metrics"),
        }
        self.settle_accounts();
    }

    fn scrape(&mut self, form: u8) {
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        let depth = usize::from(form % 3);
        let has_ledger = form >= 4;
        let top = if form >= 6 { 1 } else { 50 };
        let items: Vec<_> = runtime.items().collect();
        // Of those alone that the page may show.
        let of_groups = |life: &Life| -> Vec<Option<Samples>> {
            let levels = (0..life.handles.len()).map(|group| life.twin.levels(group).count() - 1);
            let handles = life.handles.iter().zip(levels);
            handles
                .map(|(of, level)| of.first().filter(|_| level <= depth))
                .map(|of| of.map(|group| samples_of(group, &items, has_ledger)))
                .collect()
        };
        let before = (of_groups(self), samples_of_all(&runtime));
        let layer =
            |figure: u8| format!("# TYPE memcg_of_a_layer gauge\nmemcg_of_a_layer {figure}\n");
        let new = || {
            let exposition = Exposition::new(&runtime).depth(depth).top(top);
            let exposition = if has_ledger {
                exposition.ledger()
            } else {
                exposition
            };
            // A layer that comes again takes the place of itself, and of no other.
            let exposition = exposition
                .layer("one", layer(1))
                .layer("two", layer(2))
                .layer(if form.is_multiple_of(2) { "one" } else { "two" }, layer(3));
            Page {
                observed: Observed::new(exposition.clone()),
                exposition,
                names: BTreeMap::new(),
            }
        };
        let kept = self.adapters.pages.0.entry(form).or_insert_with(new);
        let exposition = kept.exposition.clone();
        let page = exposition.openmetrics();
        assert!(page.ends_with("# EOF\n"), "the whole page");
        let samples = parse(&page);
        let mut seen = BTreeSet::new();
        for Sample { name, labels, .. } in &samples {
            let is_new = seen.insert((name, labels));
            assert!(is_new, "{name} of {labels:?} is there twice");
        }
        let of_layers = samples.iter().filter(|it| it.name == "memcg_of_a_layer");
        let of_layers: BTreeMap<_, _> = of_layers
            .map(|it| (it.labels["layer"].as_str(), it.figure.as_str()))
            .collect();
        let known = if form.is_multiple_of(2) {
            [("one", "3"), ("two", "2")]
        } else {
            [("one", "1"), ("two", "3")]
        };
        assert_eq!(of_layers, BTreeMap::from(known), "the layers of the page");
        let figure = |name: &str, group: &str| {
            let is_it = |sample: &&Sample| {
                sample.name == name && sample.labels.get("group").is_some_and(|of| of == group)
            };
            let found = samples.iter().find(is_it)?;
            Some(found.figure.parse::<f64>().expect("a number") as u64)
        };
        let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
        let mut shown = BTreeMap::new();
        for sample in samples.iter().filter(|it| it.name == "memcg_usage_bytes") {
            let depth: usize = sample.labels["depth"].parse().expect("a number");
            let usage: u64 = sample.figure.parse().expect("a number");
            let group = sample.labels["group"].clone();
            if group != "other" {
                *sums.entry(depth).or_default() += usage;
                shown.insert(group, depth);
            }
        }
        // Groups that a callback has made are no groups of the twin.
        let is_quiet = self.shared.is_quiet();
        let online: Vec<usize> = self.twin.online_below(0).collect();
        let of_twin: BTreeMap<String, usize> = online
            .iter()
            .map(|&group| (self.twin.path(group), self.twin.levels(group).count() - 1))
            .filter(|&(_, level)| level <= depth)
            .collect();
        if top == 50 && is_quiet {
            assert_eq!(shown, of_twin, "the groups of the page");
        }
        let kept = self.adapters.pages.0.get_mut(&form).expect("it was read");
        for (name, &level) in &shown {
            let of_level = kept.names.entry(level).or_default();
            of_level.insert(name.clone(), clock::now());
        }
        for level in 1..=depth {
            let count = shown.values().filter(|&&at| at == level).count();
            assert!(count <= top, "{count} groups of level {level}");
            let is_there = of_twin.values().any(|&at| at == level);
            let lasts = kept.names.get(&level).into_iter();
            let lasts = lasts.flat_map(BTreeMap::values);
            let names = lasts.filter(|last| clock::now() - **last < HOUR).count();
            assert!(names <= top * PLACES, "{names} names of level {level}");
            // Those that had its places may have gone, or those below them.
            let is_full = names == top * PLACES || top == 1 && level > 1;
            assert!(
                count > 0 || !is_there || is_full || !is_quiet,
                "none of level {level}"
            );
        }
        let root = figure("memcg_usage_bytes", "/");
        let after = (of_groups(self), samples_of_all(&runtime));
        let mut found: BTreeMap<String, Samples> = BTreeMap::new();
        let mut of_all = Samples::new();
        for Sample {
            name,
            labels,
            figure,
        } in &samples
        {
            let mut labels = labels.clone();
            let depth = labels.remove("depth");
            let of = match labels.remove("group") {
                Some(group) if group == "other" => continue,
                Some(group) => {
                    let level = depth.and_then(|depth| depth.parse().ok());
                    assert_eq!(level.as_ref(), shown.get(&group), "the level of {group}");
                    found.entry(group).or_default()
                }
                None if labels.contains_key("layer") => continue,
                None => &mut of_all,
            };
            of.insert((name.clone(), labels), figure.parse().expect("a number"));
        }
        agree("the runtime", &of_all, &before.1, &after.1);
        for (group, (before, after)) in before.0.iter().zip(&after.0).enumerate() {
            let path = self.twin.path(group);
            let is_shown = self.twin.groups[group].online && shown.contains_key(&path);
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            if is_shown {
                agree(&path, &found[&path], before, after);
                let of_max = (String::from("memcg_max_bytes"), BTreeMap::new());
                let max = self.twin.groups[group].max[0];
                let known = (max < u64::MAX).then_some(max as f64);
                assert_eq!(before.get(&of_max).copied(), known, "the max of {path}");
            }
        }
        self.sinks_agree(form, &samples);
        let others = samples
            .iter()
            .filter(|it| it.name == "memcg_usage_bytes" && it.labels["group"] == "other");
        for sample in others {
            let depth: usize = sample.labels["depth"].parse().expect("a number");
            let usage: u64 = sample.figure.parse().expect("a number");
            let sum = sums.get(&depth).copied().unwrap_or(0);
            let known = root.map(|root| root.saturating_sub(sum));
            assert_eq!(Some(usage), known, "others of level {depth}");
        }
        let json = memcg_observe::json(&runtime.snapshot());
        for path in of_twin.keys().filter(|_| is_quiet) {
            assert!(
                json.contains(&format!("\"path\":\"{path}\"")),
                "{path} in {json}"
            );
        }
    }

    /// A recorder of the facade and a meter of OpenTelemetry are told what the page has.
    fn sinks_agree(&self, form: u8, samples: &[Sample]) {
        let page = &self.adapters.pages.0[&form];
        let (recorded, (observed, units)) = (recorded(&page.exposition), page.observed.collect());
        // The same samples in plain text say how they are afterwards.
        let plain = page.exposition.text();
        assert!(!plain.contains("# EOF"), "a page of plain text");
        let later = parse(&plain);
        let by_name = |samples: &[Sample]| -> Samples {
            let of_tree = samples.iter();
            let of_tree = of_tree.filter(|it| !it.labels.contains_key("layer"));
            let named = of_tree.map(|it| {
                let figure = it.figure.parse().expect("a number");
                ((it.name.clone(), it.labels.clone()), figure)
            });
            named.collect()
        };
        let (before, after) = (by_name(samples), by_name(&later));
        // Most of the time nothing has happened meanwhile.
        let after = Some(after).filter(|after| *after != before);
        // Times in whole nanoseconds: a factor is not a divisor.
        let whole = |samples: &Samples| -> Samples {
            let whole = |((name, labels), figure): (&(String, _), &f64)| {
                let factor = match name.contains("seconds") || name.contains(".pressure.") {
                    true => 1e9,
                    false => 1.0,
                };
                let figure = (figure * factor).round_ties_even();
                ((name.clone(), BTreeMap::clone(labels)), figure)
            };
            samples.iter().map(whole).collect()
        };
        let named = (whole(&before), after.as_ref().map(whole));
        let later = named.1.as_ref().unwrap_or(&named.0);
        agree("a recorder", &whole(&recorded), &named.0, later);
        // Names there have points and no units. A time is in nanoseconds, but for those of
        // pressure; and what has a unit of its own says that beside.
        let as_observed = |samples: Samples| -> Samples {
            let observed = |((name, mut labels), figure): ((String, BTreeMap<_, _>), f64)| {
                let stem = name.trim_end_matches("_total");
                let (stem, unit) = match stem {
                    "memcg_stat_events" => ("memcg_stat", "events"),
                    "memcg_stat_time_seconds" => ("memcg_stat", "nanoseconds"),
                    _ => match (stem.strip_suffix("_bytes"), stem.strip_suffix("_seconds")) {
                        (Some(stem), _) => (stem, "bytes"),
                        (_, Some(stem)) => (stem, "nanoseconds"),
                        _ => (stem, "events"),
                    },
                };
                let of_pressure = stem.starts_with("memcg_pressure_");
                let factor = match unit {
                    "nanoseconds" if !of_pressure => 1e9,
                    _ => 1.0,
                };
                if let Some(counter) = labels.get("counter").cloned() {
                    let of_root = &self.handles[0][0];
                    let counter = of_root.counters().find(|it| it.name() == counter);
                    let unit = match counter.expect("it is shown").unit() {
                        Unit::Bytes => "bytes",
                        Unit::Nanoseconds => "nanoseconds",
                        _ => "events",
                    };
                    labels.insert(String::from("unit"), unit.into());
                }
                let point = |name: &str| {
                    let rest = name.strip_prefix("memcg_").unwrap_or(name);
                    let families = ["pressure_waiting", "pressure_stalled"];
                    let is_in_family = rest.starts_with("counter_") || families.contains(&rest);
                    match rest.split_once('_').filter(|_| is_in_family) {
                        Some((family, rest)) => format!("memcg.{family}.{rest}"),
                        None => format!("memcg.{rest}"),
                    }
                };
                ((point(stem), labels), figure * factor)
            };
            samples.into_iter().map(observed).collect()
        };
        let before = whole(&as_observed(before));
        let after = after.map(|after| whole(&as_observed(after)));
        let later = after.as_ref().unwrap_or(&before);
        agree("a meter", &whole(&observed), &before, later);
        for (name, unit) in units {
            let known = match name.strip_prefix("memcg.").unwrap_or(&name) {
                of if of.starts_with("pressure.") => "s",
                "stat" | "counter.usage" | "counter.peak" | "counter.max" => "",
                "waiting_charges"
                | "pressure_level"
                | "refused_charges"
                | "events"
                | "counter.refused_charges"
                | "groups"
                | "dying_groups"
                | "barrier_degraded"
                | "drains"
                | "barriers"
                | "stat_flushes" => "1",
                _ => "By",
            };
            // What counts nothing but itself may say so or not.
            assert!(
                unit == known || unit.is_empty() && known == "1",
                "{name} is in {unit:?}"
            );
        }
    }

    /// They keep the runtime.
    pub(in crate::life) fn forget_pages(&mut self) {
        for page in std::mem::take(&mut self.adapters.pages.0).into_values() {
            page.observed.end();
        }
    }

    fn read_files(&mut self, number: u8) {
        let Some(group) = self.group(number) else {
            return;
        };
        let handle = self.handle(group);
        let twin = &self.twin.groups[group];
        let of = |bytes: u64| match bytes {
            u64::MAX => String::from("max\n"),
            bytes => format!("{bytes}\n"),
        };
        assert_eq!(GroupFile::Max.read(handle), of(twin.max[0]), "memory.max");
        let live = self.twin.live(group, 0);
        assert_eq!(GroupFile::Live.read(handle), of(live), "memcg.live");
        let inspect = handle.inspect();
        let lines = |events: &memcg::figures::Events| -> String {
            let each = events.iter();
            each.map(|(event, count)| format!("{} {count}\n", event.name()))
                .collect()
        };
        let known = || {
            let events = handle.events();
            [
                (GroupFile::Peak, of(handle.peak())),
                (GroupFile::Min, of(inspect.min())),
                (GroupFile::Low, of(inspect.low())),
                (GroupFile::High, of(inspect.high())),
                (GroupFile::Soft, of(inspect.soft())),
                (GroupFile::Own, of(inspect.live_local())),
                (GroupFile::Waiting, of(handle.waiting_count() as u64)),
                (GroupFile::Refused, of(handle.refused_count())),
                (GroupFile::Events, lines(&events)),
                (GroupFile::EventsLocal, lines(&events.local())),
            ]
        };
        let before = known();
        let found = before.clone().map(|(file, _)| file.read(handle));
        // Else a thread of the runtime has done something meanwhile.
        for ((found, (file, before)), (_, after)) in found.iter().zip(&before).zip(&known()) {
            let is_right = found == before || before != after;
            assert!(
                is_right,
                "{} of {handle:?}: {found:?}, not {before:?}",
                file.name()
            );
        }
        for file in GroupFile::ALL {
            let text = file.read(handle);
            assert!(text.is_empty() || text.ends_with('\n'), "{}", file.name());
            assert_eq!(GroupFile::named(file.name()), Some(file));
        }
        if twin.online
            && let Some(runtime) = &self.runtime
        {
            let path = self.twin.path(group);
            let found = memcg_observe::read(runtime, &path, "memory.current");
            assert_eq!(found.ok(), Some(of(handle.usage())), "at {path}");
            let missing = memcg_observe::read(runtime, &path, "memory.nothing");
            assert!(matches!(missing, Err(FileError::NoFile { .. })));
            let missing = memcg_observe::read(runtime, &format!("{path}/no/such"), "memory.max");
            assert!(matches!(missing, Err(FileError::NoGroup { .. })));
        }
    }

    fn write_file(&mut self, op: &Op, number: u8, form: u8, size: Size) {
        let Some(group) = self.group(number) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let (file, text) = match form {
            0 | 1 => (GroupFile::Max, format!("{bytes}\n")),
            2 => (GroupFile::Max, String::from("max")),
            3 => (GroupFile::High, format!(" {bytes} ")),
            4 => (GroupFile::Soft, bytes.to_string()),
            5 => (GroupFile::Low, bytes.to_string()),
            6 => (GroupFile::Min, String::from("some")),
            // Of no max above.
            8 if group == 0 => (GroupFile::Max, String::from("50%")),
            8 => return,
            _ => (GroupFile::Current, bytes.to_string()),
        };
        let setting = |life: &Life| life.handles[group][0].limits().setting_name();
        let before = setting(self);
        let written = self.on(op, group, move |group| file.write(group, &text));
        assert!(
            written.is_ok() || setting(self) == before,
            "what is to be raised, after a write that was refused"
        );
        match (written, form) {
            (Ok(()), ..6) => {
                let is_online = self.twin.groups[group].online;
                match file {
                    GroupFile::Max => {
                        let max = if form == 2 { u64::MAX } else { bytes };
                        self.set_by_program(group, |twin| twin.set_max(group, 0, max));
                    }
                    GroupFile::High => self.twin.set_limit(group, Kind::High, bytes, None),
                    GroupFile::Soft if is_online => {
                        self.twin.set_limit(group, Kind::Soft, bytes, None);
                    }
                    GroupFile::Low if is_online => {
                        self.twin.set_limit(group, Kind::Low, bytes, None);
                    }
                    _ => {}
                }
            }
            (Err(FileError::Text { .. }), 6) | (Err(FileError::ReadOnly { .. }), 7) => {}
            (Err(FileError::Limit { .. }), 8) => {}
            (written, form) => panic!("form {form}: {written:?}"),
        }
    }
}
