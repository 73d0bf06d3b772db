//! What hears of the figures beside the page of metrics: a recorder of the facade `metrics`, a
//! meter of OpenTelemetry, and a subscriber of `tracing`.
//!
//! All of them are told the same, each under names of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Event, Group, Limits, Runtime};
use memcg_observe::{Exposition, ObserveGuard, TRACED_A_SECOND, trace};
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, InstrumentProvider, Meter,
    ObservableCounter, ObservableGauge,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Metadata as OfLine, Subscriber};

use super::metrics::Samples;
use crate::script::pick;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

// === The facade ===

#[derive(Default)]
struct Recorded(Arc<Mutex<Samples>>);

/// One series, of a counter or a gauge.
struct Series(Arc<Mutex<Samples>>, String, BTreeMap<String, String>);

impl Series {
    fn set(&self, figure: f64) {
        let of = (self.1.clone(), self.2.clone());
        let before = lock(&self.0).insert(of, figure);
        assert_eq!(before, None, "{} of {:?} is told twice", self.1, self.2);
    }
}

impl CounterFn for Series {
    fn increment(&self, _: u64) {
        panic!("{} is told as it is", self.1);
    }

    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Series {
    fn increment(&self, _: f64) {
        panic!("{} is told as it is", self.1);
    }

    fn decrement(&self, _: f64) {
        panic!("{} is told as it is", self.1);
    }

    fn set(&self, value: f64) {
        Series::set(self, value);
    }
}

impl Recorded {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels = key.labels();
        let labels = labels.map(|label| (label.key().to_string(), label.value().to_string()));
        let name = key.name().to_string();
        Arc::new(Series(Arc::clone(&self.0), name, labels.collect()))
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("there is no histogram");
    }
}

/// What a recorder of the facade is told.
pub(super) fn recorded(exposition: &Exposition) -> Samples {
    let recorder = Recorded::default();
    metrics::with_local_recorder(&recorder, || exposition.record());
    std::mem::take(&mut lock(&recorder.0))
}

// === OpenTelemetry ===

/// Instruments by their names, each with what it calls.
#[derive(Default)]
struct Instruments(Mutex<Vec<Instrument>>);

struct Instrument {
    name: String,
    unit: String,
    calls: Calls,
}

enum Calls {
    Whole(Vec<Callback<u64>>),
    Signed(Vec<Callback<i64>>),
    Parts(Vec<Callback<f64>>),
}

impl Instruments {
    fn add<I, T>(
        &self,
        builder: AsyncInstrumentBuilder<'_, I, T>,
        of: fn(Vec<Callback<T>>) -> Calls,
    ) {
        let (name, unit) = (builder.name, builder.unit.unwrap_or_default());
        let mut all = lock(&self.0);
        let is_known = all.iter().any(|known| known.name == name);
        assert!(!is_known, "two instruments {name}");
        assert!(builder.description.is_some(), "{name} is described");
        all.push(Instrument {
            name: name.into_owned(),
            unit: unit.into_owned(),
            calls: of(builder.callbacks),
        });
    }
}

impl InstrumentProvider for Instruments {
    fn u64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<u64>, u64>,
    ) -> ObservableCounter<u64> {
        self.add(builder, Calls::Whole);
        ObservableCounter::new()
    }

    fn f64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<f64>, f64>,
    ) -> ObservableCounter<f64> {
        self.add(builder, Calls::Parts);
        ObservableCounter::new()
    }

    fn u64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<u64>, u64>,
    ) -> ObservableGauge<u64> {
        self.add(builder, Calls::Whole);
        ObservableGauge::new()
    }

    fn i64_observable_gauge(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableGauge<i64>, i64>,
    ) -> ObservableGauge<i64> {
        self.add(builder, Calls::Signed);
        ObservableGauge::new()
    }
}

/// What one instrument is told while it is asked.
struct Told<'a>(&'a str, Mutex<Samples>);

impl<T: Send + Sync + Into<Figure>> AsyncInstrument<T> for Told<'_> {
    fn observe(&self, measurement: T, attributes: &[KeyValue]) {
        let labels = attributes.iter();
        let labels = labels.map(|of| (of.key.to_string(), of.value.to_string()));
        let of = (String::from(self.0), labels.collect());
        let told = lock(&self.1).insert(of, measurement.into().0);
        assert_eq!(told, None, "{} is told twice of {attributes:?}", self.0);
    }
}

struct Figure(f64);

impl From<u64> for Figure {
    fn from(figure: u64) -> Figure {
        Figure(figure as f64)
    }
}

impl From<i64> for Figure {
    fn from(figure: i64) -> Figure {
        Figure(figure as f64)
    }
}

impl From<f64> for Figure {
    fn from(figure: f64) -> Figure {
        Figure(figure)
    }
}

/// An exposition that a meter collects.
pub(super) struct Observed {
    instruments: Arc<Instruments>,
    guard: Option<ObserveGuard>,
}

impl Observed {
    pub(super) fn new(exposition: Exposition) -> Observed {
        let instruments = Arc::new(Instruments::default());
        let meter = Meter::new(Arc::clone(&instruments) as Arc<_>);
        Observed {
            guard: Some(exposition.observe(&meter)),
            instruments,
        }
    }

    /// One collection: all instruments are asked, with their units.
    pub(super) fn collect(&self) -> (Samples, BTreeMap<String, String>) {
        let (mut all, mut units) = (Samples::new(), BTreeMap::new());
        for Instrument { name, unit, calls } in lock(&self.instruments.0).iter() {
            let told = Told(name, Mutex::default());
            match calls {
                Calls::Whole(calls) => calls.iter().for_each(|call| call(&told)),
                Calls::Signed(calls) => calls.iter().for_each(|call| call(&told)),
                Calls::Parts(calls) => calls.iter().for_each(|call| call(&told)),
            }
            all.append(&mut lock(&told.1));
            units.insert(name.clone(), unit.clone());
        }
        (all, units)
    }

    /// Nothing is told any more, though the meter has its instruments.
    pub(super) fn end(mut self) {
        drop(self.guard.take());
        let (told, _) = self.collect();
        assert!(told.is_empty(), "told after the end: {told:?}");
    }
}

// === Lines ===

/// Counts and times of lines, by event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<BTreeMap<String, Vec<Line>>>>);

#[derive(Debug, Default)]
struct Line {
    event: String,
    group: String,
    count: u64,
    times: u64,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "count" => self.count = value,
            "times" => self.times = value,
            other => panic!("a number {other}"),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => self.event = value.into(),
            "group" => self.group = value.into(),
            other => panic!("a text {other}"),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        panic!("{field}: {value:?}");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, of: &OfLine<'_>) -> bool {
        of.target() == "memcg" && of.is_event()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let mut all = lock(&self.0);
        all.entry(line.event.clone()).or_default().push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The lines of one event: a second of them begins with the first that comes after the second before.
#[derive(Default)]
struct Second {
    begun: Option<Instant>,
    lines: usize,
}

impl Second {
    /// Something has happened, and so many lines tell it.
    fn tells(&mut self, lines: usize) -> bool {
        let now = clock::now();
        if self
            .begun
            .is_none_or(|begun| now - begun >= Duration::from_secs(1))
        {
            (self.begun, self.lines) = (Some(now), 0);
        }
        let had_room = self.lines < TRACED_A_SECOND as usize;
        self.lines += lines;
        had_room == (lines > 0) && self.lines <= TRACED_A_SECOND as usize
    }
}

/// What happens to the limits of two groups in each other is told in lines, few a second, and none
/// of it is lost.
pub(super) fn lines(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let runtime = Runtime::builder()
        .batch(0)
        .delay_max(std::time::Duration::ZERO);
    let runtime = runtime.build().expect("a configuration that holds");
    let top = runtime.root().create("top", Limits::new().max(10_000));
    let top = top.expect("nothing is in the way");
    let below = top.create("below", Limits::new().max(6_000).high(3_000));
    let below = below.expect("nothing is in the way");
    let of = if rng.random() { &top } else { &below };
    let lines = Lines::default();
    let counts = |group: &Group| -> BTreeMap<&'static str, u64> {
        let events = group.events();
        events
            .iter()
            .map(|(event, count)| (event.name(), count))
            .collect()
    };
    let happen = |rng: &mut Xoshiro256PlusPlus| {
        let group = if rng.random() { &top } else { &below };
        match rng.random_range(0..4) {
            0 => drop(group.charge(20_000)),
            1 => drop(group.charge(4_000)),
            2 => drop(group.force_charge(11_000)),
            _ => drop(group.try_charge(7_000)),
        }
    };
    tracing::subscriber::with_default(lines.clone(), || {
        happen(rng);
        let before = counts(of);
        let guard = trace(of);
        let mut seconds: BTreeMap<&str, Second> = BTreeMap::new();
        let rest = pick(rng, &[0, 0, 30, 200]);
        for _ in 0..pick(rng, &[0, 3, 12, 60]) {
            let many = |name: &str| lock(&lines.0).get(name).map_or(0, Vec::len);
            let told = Event::ALL.map(|event| many(event.name()));
            let earlier = counts(of);
            happen(rng);
            for (event, told) in Event::ALL.into_iter().zip(told) {
                let name = event.name();
                if counts(of)[name] > earlier[name] {
                    let new = many(name) - told;
                    let is_right = seconds.entry(name).or_default().tells(new);
                    assert!(is_right, "{new} lines of {name} more, after {told}");
                }
            }
            let rest = pick(rng, &[rest, rest, rest, rest * 10]);
            clock::advance(Duration::from_millis(rest));
        }
        let after = counts(of);
        drop(guard);
        happen(rng);
        let told = lock(&lines.0);
        for event in Event::ALL {
            let name = event.name();
            let lines = told.get(name).map_or(&[][..], Vec::as_slice);
            let times: u64 = lines.iter().map(|line| line.times).sum();
            let known = after[name] - before[name];
            assert_eq!(times, known, "times of {name}, in {lines:?}");
            let last = lines.iter().map(|line| line.count).max();
            assert_eq!(last, (known > 0).then_some(after[name]), "count of {name}");
            let is_of = lines.iter().all(|line| line.group == of.path());
            assert!(is_of, "of {}: {lines:?}", of.path());
        }
    });
    assert_eq!(runtime.root().live(), 0, "live at the end");
}
