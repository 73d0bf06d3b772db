//! The exposition, as a parser of OpenMetrics that is not ours reads it.
#![cfg(feature = "openmetrics")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use memcg::allocator::Owner;
use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime, StatKey, Unit};
use memcg_observe::Exposition;
use openmetrics_parser::openmetrics::parse_openmetrics;
use openmetrics_parser::{MetricNumber, OpenMetricsValue};

const KIB: u64 = 1 << 10;

/// The samples of each family: labels by name, and the figure.
type Samples = BTreeMap<String, Vec<(BTreeMap<String, String>, f64)>>;

fn parsed(exposition: &Exposition) -> Samples {
    let text = exposition.openmetrics();
    let parsed = parse_openmetrics(&text).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let samples = parsed.families.into_iter().map(|(name, family)| {
        let samples = family.iter_samples().map(|sample| {
            let labels = sample.get_labelset().expect("labels");
            let labels = labels
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            (labels, figure(&sample.value))
        });
        (name, samples.collect())
    });
    samples.collect()
}

fn figure(value: &OpenMetricsValue) -> f64 {
    match value {
        OpenMetricsValue::Gauge(number) => number.as_f64(),
        OpenMetricsValue::Counter(counter) => MetricNumber::as_f64(&counter.value),
        other => panic!("neither gauge nor counter: {other:?}"),
    }
}

#[track_caller]
fn one(samples: &Samples, family: &str, labels: &[(&str, &str)]) -> f64 {
    let family = samples
        .get(family)
        .unwrap_or_else(|| panic!("no {family} in {:?}", samples.keys()));
    let is_it = |found: &BTreeMap<String, String>| {
        labels
            .iter()
            .all(|(name, value)| found.get(*name).is_some_and(|is| is == value))
    };
    let found: Vec<f64> = family
        .iter()
        .filter(|(labels, _)| is_it(labels))
        .map(|(_, figure)| *figure)
        .collect();
    assert_eq!(found.len(), 1, "{labels:?} in {family:?}");
    found[0]
}

fn runtime() -> Runtime {
    Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting")
}

fn filled(parent: &Group, name: &str, kib: u64) -> (Group, Charge) {
    let group = parent.create(name, Limits::new()).expect("a free name");
    let charge = group.force_charge(Bytes(kib * KIB));
    (group, charge)
}

#[test]
fn figures_of_groups() {
    let mut builder = Runtime::builder().batch(Bytes(0));
    let slept = builder.stat("slept", Unit::Nanoseconds);
    let runtime = builder.build().expect("no odd setting");
    let acme = runtime
        .root()
        .create(
            "acme",
            Limits::new().max(64 << 10).low(8 << 10).min(4 << 10),
        )
        .expect("a free name");
    let (query, held) = filled(&acme, "q17", 70);
    assert!(query.charge(Bytes(KIB)).is_err());
    acme.stat_add(StatKey::ANON, 4_096);
    acme.stat_add(StatKey::WORKINGSET_REFAULT, 3);
    acme.stat_add(slept, 1_500_000_000);
    acme.inspect().flush();
    let mut waits = pin!(query.charge_async(Bytes(KIB)));
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    // The shown time is in whole microseconds.
    std::thread::sleep(std::time::Duration::from_millis(1));
    let samples = parsed(&Exposition::new(&runtime));
    let acme = [("group", "/acme"), ("depth", "1")];
    let both = [
        "memcg_pressure_waiting_seconds",
        "memcg_pressure_stalled_seconds",
    ];
    let [some, full] = both.map(|family| one(&samples, family, &acme));
    assert!(full > 0.0 && full == some, "its own max: {full} of {some}");
    assert_eq!(
        one(
            &samples,
            "memcg_pressure_stalled_seconds",
            &[("group", "/")]
        ),
        0.0,
        "no limit of the root"
    );
    let gauges = [
        ("memcg_usage_bytes", 71_680.0),
        ("memcg_peak_bytes", 71_680.0),
        ("memcg_max_bytes", 65_536.0),
        ("memcg_low_bytes", 8_192.0),
        ("memcg_min_bytes", 4_096.0),
        ("memcg_forced_bytes", 6_144.0),
        ("memcg_waiting_charges", 1.0),
        ("memcg_refused_charges", 1.0),
    ];
    for (family, expected) in gauges {
        assert_eq!(one(&samples, family, &acme), expected, "{family}");
    }
    assert_eq!(
        one(
            &samples,
            "memcg_events",
            &[("group", "/acme"), ("event", "oom")]
        ),
        1.0
    );
    assert_eq!(
        one(
            &samples,
            "memcg_events",
            &[("group", "/"), ("event", "oom")]
        ),
        1.0
    );
    assert_eq!(
        one(
            &samples,
            "memcg_events",
            &[("group", "/"), ("event", "panic")]
        ),
        0.0,
        "the root has all"
    );
    assert_eq!(
        one(
            &samples,
            "memcg_stat_bytes",
            &[("group", "/acme"), ("item", "anon")]
        ),
        4_096.0
    );
    assert_eq!(
        one(
            &samples,
            "memcg_stat_events",
            &[("group", "/"), ("item", "workingset_refault")]
        ),
        3.0
    );
    assert_eq!(
        one(
            &samples,
            "memcg_stat_time_seconds",
            &[("group", "/"), ("item", "slept")]
        ),
        1.5
    );
    assert_eq!(
        (
            one(&samples, "memcg_groups", &[]),
            one(&samples, "memcg_barrier_degraded", &[])
        ),
        (3.0, 0.0)
    );
    assert!(
        !samples.contains_key("memcg_high_bytes"),
        "no group has a high"
    );
    assert_eq!(samples["memcg_max_bytes"].len(), 1, "one group has a max");
    drop(held);
}

/// A count of something that has not happened yet is there with 0, so the first time is a rise:
/// `increase()` counts it.
#[test]
fn counts_exist_from_the_first_scrape() {
    let runtime = runtime();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(100))
        .expect("a free name");
    let exposition = Exposition::new(&runtime);
    let before = parsed(&exposition);
    for event in memcg::Event::ALL {
        for group in ["/", "/acme"] {
            assert_eq!(
                one(
                    &before,
                    "memcg_events",
                    &[("group", group), ("event", event.name())]
                ),
                0.0,
                "{event:?}"
            );
        }
    }
    assert_eq!(
        one(&before, "memcg_refused_charges", &[("group", "/acme")]),
        0.0
    );
    assert!(acme.charge(Bytes(101)).is_err());
    let after = parsed(&exposition);
    assert_eq!(
        one(
            &after,
            "memcg_events",
            &[("group", "/acme"), ("event", "oom")]
        ),
        1.0
    );
    let series = |samples: &Samples| {
        samples["memcg_events"]
            .iter()
            .map(|(labels, _)| labels.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(series(&before), series(&after), "no series has come");
    #[cfg(feature = "metrics")]
    assert_facade_has_the_same(&exposition, 40);
}

/// A limit that is not set has no sample. All others have a figure that each encoding has, whole
/// numbers with a sign.
#[test]
fn limits_that_are_not_set_and_large_ones() {
    let runtime = runtime();
    let limits = Limits::new()
        .max(Bytes(u64::MAX - 1))
        .high(Bytes(1 << 40))
        .low(Limit::Unlimited)
        .min(Limit::Unlimited);
    let acme = runtime.root().create("acme", limits).expect("a free name");
    let exposition = Exposition::new(&runtime);
    let samples = parsed(&exposition);
    assert!(!samples.contains_key("memcg_soft_bytes"));
    for all in ["memcg_low_bytes", "memcg_min_bytes"] {
        assert_eq!(samples[all].len(), 1, "the root protects nothing");
        let figure = one(&samples, all, &[("group", "/acme")]);
        assert_eq!(figure, i64::MAX as f64, "all that a group can hold");
    }
    assert_eq!(
        one(&samples, "memcg_max_bytes", &[("group", "/acme")]),
        (u64::MAX - 1) as f64
    );
    assert_eq!(samples["memcg_max_bytes"].len(), 1);
    for text in [exposition.openmetrics(), exposition.text()] {
        let figures = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '));
        for (series, figure) in figures {
            let is_whole = figure.bytes().all(|byte| byte.is_ascii_digit());
            assert!(
                !is_whole || figure.parse::<i64>().is_ok(),
                "{series} {figure}"
            );
        }
    }
    drop(acme);
    // In JSON no limit is null, and a file has the kernel's word.
    let row = &serde_json::from_str::<serde_json::Value>(&memcg_observe::json(&runtime.snapshot()))
        .expect("JSON")["rows"][1];
    let figures = ["max", "high", "soft", "low", "min"].map(|name| row[name].as_u64());
    assert_eq!(
        figures,
        [
            Some(u64::MAX - 1),
            Some(1 << 40),
            None,
            Some(u64::MAX),
            Some(u64::MAX)
        ],
        "{row}"
    );
    assert!(row["soft"].is_null(), "{row}");
    assert_eq!(
        memcg_observe::read(&runtime, "/acme", "memory.low").expect("a file"),
        "max\n"
    );
}

/// Names that come and go by the thousand, beside groups that stay: those that stay are shown, the
/// names are bounded, and the usage of a level is the root's whatever is shown.
#[test]
fn names_that_come_and_go() {
    let runtime = runtime();
    let root = runtime.root();
    let (stays, held) = filled(&root, "stays", 1);
    let exposition = Exposition::new(&runtime).top(10);
    let mut names = std::collections::BTreeSet::new();
    for query in 0..1_000 {
        // Each is larger than what stays, and has one below.
        let (query, charge) = filled(&root, &format!("q{query}"), 5);
        let (step, below) = filled(&query, &format!("{}step", &query.path()[1..]), 5);
        let samples = parsed(&exposition);
        // No group that is shown has one below, so there is no second level.
        let usage = &samples["memcg_usage_bytes"];
        let of_level = |level: &str| {
            let figures = usage
                .iter()
                .filter(|(labels, _)| labels["depth"] == level)
                .map(|(_, figure)| *figure);
            figures.collect::<Vec<f64>>()
        };
        assert_eq!(of_level("1").iter().sum::<f64>(), root.usage() as f64);
        assert!(
            of_level("2").is_empty() || of_level("2").iter().sum::<f64>() == root.usage() as f64
        );
        names.extend(
            samples["memcg_peak_bytes"]
                .iter()
                .map(|(labels, _)| labels["group"].clone()),
        );
        assert!(
            samples["memcg_peak_bytes"]
                .iter()
                .any(|(labels, _)| labels["group"] == "/stays")
        );
        drop((charge, below, step));
        query.offline_tree();
    }
    assert!(
        names.len() <= 1 + 2 * 40,
        "{} names, of 2 levels with 40 places",
        names.len()
    );
    drop((held, stays));
}

/// All places are taken, and larger groups come, below one parent or below several: those that have
/// places are shown, and the others are under `other`.
#[test]
fn those_that_stay_are_not_crowded_out() {
    for (tenants, top) in [(1, 2), (1, 50), (3, 4)] {
        let runtime = runtime();
        let tenants: Vec<Group> = (0..tenants)
            .map(|tenant| filled(&runtime.root(), &format!("t{tenant}"), 0).0)
            .collect();
        let below = |number: usize| &tenants[number % tenants.len()];
        let fill = |prefix: &str, count: usize, kib: u64| -> Vec<(Group, Charge)> {
            let fill = |number| filled(below(number), &format!("{prefix}{number}"), kib);
            (0..count).map(fill).collect()
        };
        let exposition = Exposition::new(&runtime).depth(2).top(top).names(top);
        let shown = || {
            let samples = parsed(&exposition);
            let of_level = samples["memcg_peak_bytes"]
                .iter()
                .filter(|(labels, _)| labels["depth"] == "2")
                .map(|(labels, _)| labels["group"].clone());
            let names: std::collections::BTreeSet<String> = of_level.collect();
            let usage = samples["memcg_usage_bytes"]
                .iter()
                .filter(|(labels, _)| labels["depth"] == "2");
            let sum: f64 = usage.map(|(_, bytes)| bytes).sum();
            assert_eq!(sum, runtime.root().usage() as f64);
            names
        };
        let stay = fill("stays", top, 1);
        let before = shown();
        assert_eq!(before.len(), top);
        let come = fill("new", 3 * top, 9);
        assert_eq!(shown(), before, "{top} of {} parents", tenants.len());
        // One that goes leaves its place taken for its hour, and nobody else comes in.
        let (gone, charge) = stay.into_iter().next().expect("some stay");
        drop(charge);
        gone.offline().expect("no children");
        assert_eq!(shown().len(), top - 1);
        drop(come);
    }
}

/// One metric for each unit, for a counter has any.
#[test]
fn counters_beside_memory() {
    let mut builder = Runtime::builder().batch(Bytes(0));
    let files = builder.counter("files", Unit::Events);
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let cpu = builder.counter("cpu", Unit::Nanoseconds);
    let runtime = builder.build().expect("no odd setting");
    let acme = runtime
        .root()
        .create("acme", Limits::new())
        .expect("a free name");
    acme.counter(files)
        .expect("its own")
        .set_max(3)
        .expect("no ancestor is in the way");
    let held = [(files, 2), (spill, 4_096), (cpu, 1_500_000_000)].map(|(counter, amount)| {
        let group = acme.counter(counter).expect("its own");
        group.set_batch(0);
        acme.charge_set(&[(counter, memcg::Bytes(amount))])
            .expect("room")
    });
    assert!(acme.charge_set(&[(files, 2)]).is_err());
    let exposition = Exposition::new(&runtime);
    let samples = parsed(&exposition);
    let of = |counter: &'static str| [("group", "/acme"), ("counter", counter)];
    for (family, counter, expected) in [
        ("memcg_counter_usage", "files", 2.0),
        ("memcg_counter_max", "files", 3.0),
        ("memcg_counter_refused_charges", "files", 1.0),
        ("memcg_counter_usage_bytes", "spill", 4_096.0),
        ("memcg_counter_peak_bytes", "spill", 4_096.0),
        ("memcg_counter_usage_seconds", "cpu", 1.5),
        ("memcg_counter_refused_charges", "cpu", 0.0),
    ] {
        assert_eq!(
            one(&samples, family, &of(counter)),
            expected,
            "{family} {counter}"
        );
    }
    assert_eq!(
        samples["memcg_counter_max"].len(),
        1,
        "the others have no max"
    );
    assert!(!samples.contains_key("memcg_counter_max_bytes"));
    #[cfg(feature = "metrics")]
    assert_facade_has_the_same(&exposition, 40);
    drop(held);
}

/// However many groups there are: the largest, and the rest together.
#[test]
fn as_many_series_as_asked_for() {
    let runtime = runtime();
    let root = runtime.root();
    let mut held = vec![];
    for tenant in 0..40 {
        let (tenant, own) = filled(&root, &format!("tenant{tenant}"), tenant);
        held.push((tenant.clone(), own));
        held.extend((0..25).map(|query| filled(&tenant, &format!("query{query}"), query)));
    }
    for (depth, top) in [
        (0, 10),
        (1, 10),
        (2, 10),
        (2, 3),
        (9, 1),
        (2, 10_000),
        (2, 0),
    ] {
        let samples = parsed(&Exposition::new(&runtime).depth(depth).top(top));
        let usage = &samples["memcg_usage_bytes"];
        assert!(
            usage.len() <= 1 + depth.min(2) * (top.min(1_000) + 1),
            "{} with {depth} and {top}",
            usage.len()
        );
        for level in 0..=depth.min(if top == 0 { 0 } else { 2 }) {
            let of_level = usage
                .iter()
                .filter(|(labels, _)| labels["depth"] == level.to_string());
            let sum: f64 = of_level.map(|(_, bytes)| bytes).sum();
            assert_eq!(
                sum,
                root.usage() as f64,
                "level {level} of {depth}, top {top}"
            );
        }
    }
    let samples = parsed(&Exposition::new(&runtime).depth(1).top(2));
    let shown: Vec<&str> = samples["memcg_peak_bytes"]
        .iter()
        .map(|(labels, _)| labels["group"].as_str())
        .collect();
    assert_eq!(shown, ["/", "/tenant39", "/tenant38"], "the largest first");
}

/// Names that the format escapes, and names that look like a label.
#[test]
fn odd_names() {
    let runtime = runtime();
    let names = [
        "a\"b",
        "back\\slash",
        "other",
        "line\nfeed",
        "ünïcode",
        "{group=\"x\"}",
        " ",
    ];
    let held: Vec<_> = names
        .iter()
        .filter_map(|name| {
            let group = runtime.root().create(*name, Limits::new()).ok()?;
            Some((group.force_charge(Bytes(KIB)), group))
        })
        .collect();
    assert!(held.len() > 3, "names that groups may have");
    let samples = parsed(&Exposition::new(&runtime));
    for (_, group) in &held {
        assert_eq!(
            one(&samples, "memcg_usage_bytes", &[("group", &group.path())]),
            KIB as f64
        );
    }
    assert_eq!(
        one(&samples, "memcg_usage_bytes", &[("group", "other")]),
        0.0,
        "no path is the same"
    );
}

/// Groups come and go while they are read: the text is always whole.
#[test]
fn while_groups_come_and_go() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let runtime = runtime();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let (group, charge) =
                    filled(&runtime.root(), &format!("g{}", round % 7), 1 + round % 5);
                let below = filled(&group, "below", 1);
                drop((charge, below.1));
                group.offline_tree();
            }
        });
        for _ in 0..200 {
            let samples = parsed(&Exposition::new(&runtime).top(3));
            assert!(one(&samples, "memcg_groups", &[]) >= 1.0);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[cfg(feature = "metrics")]
#[test]
fn the_facade_has_the_same() {
    let runtime = runtime();
    let (acme, held) = filled(&runtime.root(), "acme", 5);
    assert_facade_has_the_same(&Exposition::new(&runtime), 20);
    drop((held, acme));
}

/// All figures of the text are told, which are more than `least`.
#[cfg(feature = "metrics")]
fn assert_facade_has_the_same(exposition: &Exposition, least: usize) {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || exposition.record());
    let recorded = snapshotter.snapshot().into_vec();
    let samples = parsed(exposition);
    let mut looked_at = 0;
    for (key, _, _, value) in recorded {
        let key = key.key();
        let labels: Vec<(&str, &str)> = key
            .labels()
            .map(|label| (label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(figure) => figure.into_inner(),
            other => panic!("{other:?}"),
        };
        let family = key.name().strip_suffix("_total").unwrap_or(key.name());
        assert_eq!(one(&samples, family, &labels), value, "{}", key.name());
        looked_at += 1;
    }
    let all: usize = samples.values().map(Vec::len).sum();
    assert_eq!(looked_at, all, "figures of the page that nobody was told");
    assert!(looked_at > least, "{looked_at}");
}

#[test]
fn the_ledger_is_shown_on_request() {
    let runtime = runtime();
    let (query, held) = filled(&runtime.root(), "q17", 100);
    let (other, of_other) = filled(&runtime.root(), "q18", 1);
    let rows = query.run(|| Owner::charge(300 * KIB as usize));
    let covers = runtime
        .root()
        .create("covers", Limits::new().cover_allocations())
        .unwrap();
    let batch = covers.run(|| Owner::charge(40 * KIB as usize));
    let item = |exposition: &Exposition, group: &str, item: &str| {
        let found = parsed(exposition)
            .remove("memcg_stat_bytes")
            .unwrap_or_default();
        let of = |(labels, _): &&(BTreeMap<String, String>, f64)| {
            labels["group"] == group && labels["item"] == item
        };
        found.iter().find(of).map(|(_, figure)| *figure)
    };
    let plain = Exposition::new(&runtime);
    assert_eq!(item(&plain, "/q17", "allocated"), None);
    let exposition = plain.ledger();
    let expected = [
        ("reserved", Some(100)),
        ("allocated", Some(300)),
        ("unpaid", None),
    ];
    for (name, kib) in expected {
        assert_eq!(
            item(&exposition, "/q17", name),
            kib.map(|kib: u64| (kib * KIB) as f64),
            "{name} of q17"
        );
    }
    assert_eq!(
        item(&exposition, "/", "allocated"),
        Some((340 * KIB) as f64)
    );
    assert_eq!(
        item(&exposition, "/q18", "reserved"),
        None,
        "a group without objects has no ledger"
    );
    drop(held);
    assert_eq!(
        item(&exposition, "/covers", "unpaid"),
        Some((40 * KIB) as f64)
    );
    // SAFETY: the bytes are charged, and each is given back once.
    #[allow(unsafe_code)]
    unsafe {
        rows.uncharge(300 * KIB as usize);
        batch.uncharge(40 * KIB as usize);
    }
    assert_eq!(item(&exposition, "/q17", "allocated"), None);
    drop((other, of_other));
}
