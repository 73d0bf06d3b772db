//! What is read and written from outside: the page of metrics, and files of groups.

use std::collections::{BTreeMap, BTreeSet};

use memcg_observe::{Exposition, FileError, GroupFile};

use super::super::Life;
use crate::script::{Adapter, Kind, Op, Size};

/// Pages that are read again and again: names on them keep their places. By their form.
#[derive(Default)]
pub(super) struct Pages(BTreeMap<u8, Page>);

struct Page {
    exposition: Exposition,
    /// The names that it has had, by level.
    names: BTreeMap<usize, BTreeSet<String>>,
}

/// Names of a level, for each group that is shown.
const PLACES: usize = 4;

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
        let top = if form >= 6 { 1 } else { 50 };
        let usages = |life: &Life| -> Vec<Option<u64>> {
            let handles = life.handles.iter();
            handles
                .map(|of| of.first().map(memcg::Group::usage))
                .collect()
        };
        let before = usages(self);
        let waiting: Vec<u64> = (self.handles.iter())
            .map(|of| of.first().map_or(0, |group| group.waiting_count() as u64))
            .collect();
        let layer =
            |figure: u8| format!("# TYPE memcg_of_a_layer gauge\nmemcg_of_a_layer {figure}\n");
        let new = || {
            let exposition = Exposition::new(&runtime).depth(depth).top(top);
            // A layer that comes again takes the place of itself, and of no other.
            Page {
                exposition: exposition
                    .layer("one", layer(1))
                    .layer("two", layer(2))
                    .layer(if form.is_multiple_of(2) { "one" } else { "two" }, layer(3)),
                names: BTreeMap::new(),
            }
        };
        let kept = self.adapters.pages.0.entry(form).or_insert_with(new);
        let exposition = kept.exposition.clone();
        let page = exposition.openmetrics();
        assert!(page.ends_with("# EOF\n"), "the whole page");
        let plain = exposition.text();
        assert!(!plain.contains("# EOF"), "a page of plain text");
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
            kept.names.entry(level).or_default().insert(name.clone());
        }
        for level in 1..=depth {
            let count = shown.values().filter(|&&at| at == level).count();
            assert!(count <= top, "{count} groups of level {level}");
            let is_there = of_twin.values().any(|&at| at == level);
            let names = kept.names.get(&level).map_or(0, BTreeSet::len);
            assert!(names <= top * PLACES, "{names} names of level {level}");
            // Those that had its places may have gone, or those below them.
            let is_full = names == top * PLACES || top == 1 && level > 1;
            assert!(
                count > 0 || !is_there || is_full || !is_quiet,
                "none of level {level}"
            );
        }
        let root = figure("memcg_usage_bytes", "/");
        let after = usages(self);
        let is_set = |limit: u64| (limit < u64::MAX).then_some(limit);
        let above_zero = |bytes: u64| (bytes > 0).then_some(bytes);
        for (group, handles) in self.handles.iter().enumerate() {
            let path = self.twin.path(group);
            let is_shown = self.twin.groups[group].online && shown.contains_key(&path);
            let Some(handle) = handles.first().filter(|_| is_shown) else {
                continue;
            };
            let max = self.twin.groups[group].max[0];
            let known = [
                ("memcg_peak_bytes", Some(handle.peak())),
                ("memcg_forced_bytes", Some(handle.forced())),
                ("memcg_max_bytes", (max < u64::MAX).then_some(max)),
                ("memcg_refused_charges_total", Some(handle.refused_count())),
                ("memcg_waiting_charges", Some(waiting[group])),
                ("memcg_high_bytes", is_set(handle.inspect().high())),
                ("memcg_soft_bytes", is_set(handle.inspect().soft())),
                ("memcg_low_bytes", above_zero(handle.inspect().low())),
                ("memcg_min_bytes", above_zero(handle.inspect().min())),
            ];
            let usage = figure("memcg_usage_bytes", &path);
            let is_right = usage == before[group] || usage == after[group];
            // Else a thread of the runtime has moved credit meanwhile.
            assert!(
                is_right || before[group] != after[group],
                "usage of {path}: {usage:?}, {:?} before and after",
                before[group]
            );
            for (name, known) in known {
                // A thread of the runtime may end a wait meanwhile.
                if name == "memcg_waiting_charges"
                    && handle.waiting_count() as u64 != waiting[group]
                {
                    continue;
                }
                // Figures of so many bytes have fractions.
                let found = figure(name, &path).map(|found| found.min(1 << 50));
                assert_eq!(found, known.map(|it| it.min(1 << 50)), "{name} of {path}");
            }
        }
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

    /// They keep the runtime.
    pub(in crate::life) fn forget_pages(&mut self) {
        self.adapters.pages = Pages::default();
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
            _ => (GroupFile::Current, bytes.to_string()),
        };
        let written = self.on(op, group, move |group| file.write(group, &text));
        match (written, form) {
            (Ok(()), ..6) => {
                let is_online = self.twin.groups[group].online;
                match file {
                    GroupFile::Max if form == 2 => self.twin.set_max(group, 0, u64::MAX),
                    GroupFile::Max => self.twin.set_max(group, 0, bytes),
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
            (written, form) => panic!("form {form}: {written:?}"),
        }
    }
}
