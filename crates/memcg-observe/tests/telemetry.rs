//! The instruments, as the SDK of OpenTelemetry collects them.
#![cfg(feature = "opentelemetry")]

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Waker};

use memcg::{Bytes, Limits, Runtime, StatKey, Unit};
use memcg_observe::Exposition;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

/// The samples of each instrument: labels as text, and the figure.
type Samples = BTreeMap<String, BTreeMap<String, i128>>;

struct Collects {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl Collects {
    fn new() -> Collects {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder()
            .with_reader(PeriodicReader::builder(exporter.clone()).build())
            .build();
        Collects { provider, exporter }
    }

    fn collect(&self) -> Samples {
        self.collect_with_units().0
    }

    /// With the unit of each instrument.
    fn collect_with_units(&self) -> (Samples, BTreeMap<String, String>) {
        self.exporter.reset();
        self.provider.force_flush().expect("it exports");
        let collected = self
            .exporter
            .get_finished_metrics()
            .expect("what it has exported");
        let mut samples = Samples::new();
        let mut units = BTreeMap::new();
        for metric in collected
            .iter()
            .flat_map(|all| all.scope_metrics())
            .flat_map(|scope| scope.metrics())
        {
            units.insert(metric.name().to_string(), metric.unit().to_string());
            let points = match metric.data() {
                AggregatedMetrics::U64(data) => points(data, i128::from),
                AggregatedMetrics::I64(data) => points(data, i128::from),
                // Times, in seconds.
                AggregatedMetrics::F64(data) => {
                    points(data, |seconds| (seconds * 1e6).round() as i128)
                }
            };
            samples.insert(metric.name().to_string(), points);
        }
        (samples, units)
    }
}

fn points<T: Copy>(data: &MetricData<T>, figure: impl Fn(T) -> i128) -> BTreeMap<String, i128> {
    let text = |labels: Vec<&KeyValue>| {
        let mut labels: Vec<String> = labels
            .iter()
            .map(|label| format!("{}={}", label.key, label.value))
            .collect();
        labels.sort();
        labels.join(" ")
    };
    match data {
        MetricData::Gauge(gauge) => gauge
            .data_points()
            .map(|point| (text(point.attributes().collect()), figure(point.value())))
            .collect(),
        MetricData::Sum(sum) => {
            assert!(sum.is_monotonic());
            sum.data_points()
                .map(|point| (text(point.attributes().collect()), figure(point.value())))
                .collect()
        }
        _ => panic!("neither gauge nor counter"),
    }
}

#[test]
fn every_metric_is_an_instrument() {
    let mut builder = Runtime::builder().batch(Bytes(0));
    let files = builder.counter("files", Unit::Events);
    let runtime = builder.build().expect("no odd setting");
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(1_000))
        .expect("a free name");
    acme.counter(files)
        .expect("its own")
        .set_max(3)
        .expect("no ancestor is in the way");
    let held = acme.charge(Bytes(600)).expect("room");
    assert!(acme.charge(Bytes(500)).is_err() && acme.charge_set(&[(files, 4)]).is_err());
    acme.stat_add(StatKey::ANON, 4_096);
    acme.inspect().flush();
    {
        let mut waits = pin!(acme.charge_async(Bytes(500)));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }

    let collects = Collects::new();
    let observed = Exposition::new(&runtime)
        .depth(1)
        .top(1)
        .observe(&collects.provider.meter("test"));
    let (samples, units) = collects.collect_with_units();
    units_are_those_of_the_conventions(&units);
    let one = |samples: &Samples, name: &str, labels: &str| {
        let of_name = samples
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", samples.keys()));
        *of_name
            .get(labels)
            .unwrap_or_else(|| panic!("no {labels} in {of_name:?}"))
    };
    for (name, labels, expected) in [
        ("memcg.usage", "depth=1 group=/acme", 600),
        ("memcg.usage", "depth=1 group=other", 0),
        ("memcg.max", "depth=1 group=/acme", 1_000),
        ("memcg.peak", "depth=0 group=/", 600),
        ("memcg.refused_charges", "depth=1 group=/acme", 1),
        ("memcg.events", "depth=1 event=oom group=/acme", 1),
        ("memcg.stat", "depth=1 group=/acme item=anon", 4_096),
        (
            "memcg.counter.max",
            "counter=files depth=1 group=/acme unit=events",
            3,
        ),
        (
            "memcg.counter.usage",
            "counter=files depth=1 group=/acme unit=events",
            0,
        ),
        (
            "memcg.counter.refused_charges",
            "counter=files depth=1 group=/acme unit=events",
            1,
        ),
        ("memcg.groups", "", 2),
        ("memcg.barrier_degraded", "", 0),
    ] {
        assert_eq!(one(&samples, name, labels), expected, "{name} {labels}");
    }
    for name in ["memcg.pressure.waiting", "memcg.pressure.stalled"] {
        assert!(
            one(&samples, name, "depth=1 group=/acme") >= 1_000,
            "{samples:?}"
        );
    }
    assert_eq!(
        one(&samples, "memcg.pressure.stalled", "depth=0 group=/"),
        0,
        "no limit of the root"
    );
    assert_eq!(
        samples["memcg.max"].len(),
        1,
        "a limit that is not set has no sample"
    );

    // Each collection reads anew, and forgets what is shown no more.
    drop(held);
    acme.offline().expect("no child");
    let other = runtime
        .root()
        .create("b", Limits::new())
        .expect("a free name");
    let held = other.charge(Bytes(70)).expect("room");
    let samples = collects.collect();
    assert_eq!(one(&samples, "memcg.usage", "depth=1 group=/b"), 70);
    assert!(
        samples["memcg.usage"]
            .keys()
            .all(|labels| !labels.contains("acme")),
        "{samples:?}"
    );
    assert_eq!(
        one(&samples, "memcg.peak", "depth=1 group=/b"),
        70,
        "of the same reading"
    );

    drop(observed);
    let samples = collects.collect();
    assert!(samples.values().all(BTreeMap::is_empty), "{samples:?}");
    drop(held);
}

/// Units are those of the Unified Code for Units of Measure: bytes are `By`, seconds `s`, counts
/// `1`.
fn units_are_those_of_the_conventions(units: &BTreeMap<String, String>) {
    let expected = [
        (
            "By",
            &["usage", "stocked_bound", "peak", "max", "drained"][..],
        ),
        ("s", &["pressure.waiting", "pressure.stalled"]),
        (
            "1",
            &[
                "waiting_charges",
                "refused_charges",
                "events",
                "counter.refused_charges",
                "drains",
                "stat_flushes",
            ],
        ),
        // Items and counters have their own units, and a group is none.
        ("", &["stat", "counter.usage", "counter.max", "groups"]),
    ];
    for (unit, names) in expected {
        for name in names {
            assert_eq!(
                units.get(&format!("memcg.{name}")).map(String::as_str),
                Some(unit),
                "{name}"
            );
        }
    }
    let known = expected.map(|(unit, _)| unit);
    assert!(
        units.values().all(|unit| known.contains(&unit.as_str())),
        "{units:?}"
    );
}

/// Two readers of the same instruments, which collect at once while groups come and go.
#[test]
fn several_readers() {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let exporters = [
        InMemoryMetricExporter::default(),
        InMemoryMetricExporter::default(),
    ];
    let readers = exporters
        .clone()
        .map(|exporter| PeriodicReader::builder(exporter).build());
    let [first, second] = readers;
    let provider = SdkMeterProvider::builder()
        .with_reader(first)
        .with_reader(second)
        .build();
    let observed = Exposition::new(&runtime).observe(&provider.meter("test"));
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let runtime = &runtime;
            let provider = &provider;
            scope.spawn(move || {
                for round in 0..50 {
                    let group = runtime
                        .root()
                        .create(thread * 1_000 + round, Limits::new())
                        .expect("a free name");
                    let charge = group.charge(Bytes(1 + round)).expect("no limit");
                    provider.force_flush().expect("it exports");
                    drop(charge);
                    group.offline().expect("no child");
                }
            });
        }
    });
    for exporter in &exporters {
        let collected = exporter
            .get_finished_metrics()
            .expect("what it has exported");
        assert_eq!(collected.len(), 100, "each flush exports once");
        for all in &collected {
            let usage = all
                .scope_metrics()
                .flat_map(|scope| scope.metrics())
                .find(|one| one.name() == "memcg.usage");
            let AggregatedMetrics::U64(usage) = usage.expect("usage").data() else {
                panic!("no u64")
            };
            assert!(points(usage, i128::from).contains_key("depth=0 group=/"));
        }
    }
    drop(observed);
}
