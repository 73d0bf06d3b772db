//! The figures as instruments of OpenTelemetry.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use crate::exposition::{
    COUNTER_GAUGES, COUNTER_REFUSED, CounterGauge, EVENTS, Exposition, Figures, GAUGES, GroupGauge,
    OTHER, Process, REFUSED, STALLED, USAGE, events_of,
};
use crate::protocol::{CounterRow, Row};

/// Hands figures to OpenTelemetry until it is dropped: see [`Exposition::observe`].
#[must_use = "dropped, it hands out nothing"]
pub struct ObserveGuard {
    _source: Arc<Source>,
}

impl fmt::Debug for ObserveGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveGuard").finish_non_exhaustive()
    }
}

/// One reading for all instruments of a collection.
struct Source {
    exposition: Exposition,
    /// The newest reading, and its number.
    newest: Mutex<(u64, Arc<Figures>)>,
}

impl Source {
    /// Returns a reading that the instrument has not had yet.
    fn next(&self, had: &AtomicU64) -> Arc<Figures> {
        let newest = || self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, figures) = newest().clone();
        // Relaxed: the lock orders readings, and this is the instrument's own number.
        if number > had.load(Ordering::Relaxed) {
            had.store(number, Ordering::Relaxed);
            return figures;
        }
        // No lock is held over a reading. Where two threads read at once the later one counts.
        let figures = Arc::new(self.exposition.read());
        let mut newest = newest();
        *newest = (newest.0 + 1, Arc::clone(&figures));
        had.store(newest.0, Ordering::Relaxed);
        figures
    }
}

/// The callback of an instrument when it is collected; it does nothing once the [`ObserveGuard`] has
/// gone.
fn callback<T>(
    source: &Weak<Source>,
    observe: impl Fn(&Figures, &dyn AsyncInstrument<T>) + Send + Sync + 'static,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let source = source.clone();
    let had = AtomicU64::new(0);
    move |instrument| {
        if let Some(source) = source.upgrade() {
            observe(&source.next(&had), instrument);
        }
    }
}

fn labels(row: &Row) -> Vec<KeyValue> {
    labels_of(&row.path, row.depth)
}

fn labels_of(path: &str, depth: usize) -> Vec<KeyValue> {
    vec![
        KeyValue::new("group", path.to_string()),
        KeyValue::new("depth", depth.to_string()),
    ]
}

fn with(mut labels: Vec<KeyValue>, key: &'static str, value: &str) -> Vec<KeyValue> {
    labels.push(KeyValue::new(key, value.to_string()));
    labels
}

impl Exposition {
    /// Adds an observable instrument to `meter` for each metric of
    /// [`openmetrics`](Self::openmetrics), until the result is dropped. The SDK collects them when
    /// it exports; all instruments of one collection show one reading.
    ///
    /// The names have points and no units: `memcg.usage` (`By`), `memcg.refused_charges`.
    /// Attributes are the labels. Groups that are shown no more are not reported, so what the SDK
    /// keeps stays bounded.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let meter = opentelemetry::global::meter("service");
    /// let _observed = memcg_observe::Exposition::new(&runtime).observe(&meter);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn observe(self, meter: &Meter) -> ObserveGuard {
        let newest = Mutex::new((0, Arc::new(self.read())));
        let source = Arc::new(Source {
            exposition: self,
            newest,
        });
        let weak = Arc::downgrade(&source);
        observe_groups(meter, &weak);
        observe_counts(meter, &weak);
        observe_counters(meter, &weak);
        observe_process(meter, &weak);
        ObserveGuard { _source: source }
    }
}

fn unit(is_bytes: bool) -> &'static str {
    if is_bytes { "By" } else { "1" }
}

fn observe_groups(meter: &Meter, source: &Weak<Source>) {
    let usage = meter
        .u64_observable_gauge("memcg.usage")
        .with_description(USAGE)
        .with_unit("By");
    let observe = callback(source, |figures, gauge| {
        for row in &figures.groups.rows {
            gauge.observe(row.usage, &labels(row));
        }
        for &(depth, bytes) in &figures.groups.others {
            gauge.observe(bytes, &labels_of(OTHER, depth));
        }
    });
    usage.with_callback(observe).build();
    for GroupGauge {
        name,
        about,
        is_bytes,
        figure,
    } in GAUGES
    {
        let gauge = meter.u64_observable_gauge(format!("memcg.{name}"));
        let observe = callback(source, move |figures, gauge| {
            for (row, figure) in figures
                .groups
                .rows
                .iter()
                .filter_map(|row| Some((row, figure(row)?)))
            {
                gauge.observe(figure, &labels(row));
            }
        });
        gauge
            .with_description(about)
            .with_unit(unit(is_bytes))
            .with_callback(observe)
            .build();
    }
    let stats = meter
        .i64_observable_gauge("memcg.stat")
        .with_description("Statistics, each in its own unit");
    let observe = callback(source, |figures, gauge| {
        for row in &figures.groups.rows {
            for (item, &figure) in &row.stats {
                gauge.observe(figure, &with(labels(row), "item", item));
            }
        }
    });
    stats.with_callback(observe).build();
}

fn observe_counts(meter: &Meter, source: &Weak<Source>) {
    let refused = meter
        .u64_observable_counter("memcg.refused_charges")
        .with_description(REFUSED)
        .with_unit("1");
    let observe = callback(source, |figures, counter| {
        figures
            .groups
            .rows
            .iter()
            .for_each(|row| counter.observe(row.refused, &labels(row)));
    });
    refused.with_callback(observe).build();
    for stalled in STALLED {
        let time = meter
            .f64_observable_counter(format!("memcg.pressure.{}", stalled.name))
            .with_unit("s");
        let about = stalled.about;
        let observe = callback(source, move |figures, counter| {
            figures
                .groups
                .rows
                .iter()
                .for_each(|row| counter.observe(stalled.seconds(row), &labels(row)));
        });
        time.with_description(about).with_callback(observe).build();
    }
    let events = meter
        .u64_observable_counter("memcg.events")
        .with_description(EVENTS)
        .with_unit("1");
    let observe = callback(source, |figures, counter| {
        for row in &figures.groups.rows {
            for (event, count) in events_of(row) {
                counter.observe(count, &with(labels(row), "event", event));
            }
        }
    });
    events.with_callback(observe).build();
}

/// Counters beside memory. An instrument has one unit, so that of each is an attribute.
fn observe_counters(meter: &Meter, source: &Weak<Source>) {
    let labels = |row: &Row, name: &str, counter: &CounterRow| {
        with(with(labels(row), "counter", name), "unit", &counter.unit)
    };
    for CounterGauge {
        name,
        about,
        figure,
    } in COUNTER_GAUGES
    {
        let gauge = meter
            .u64_observable_gauge(format!("memcg.counter.{name}"))
            .with_description(about);
        let observe = callback(source, move |figures, gauge| {
            for (row, name, counter) in figures.counters() {
                if let Some(figure) = figure(counter) {
                    gauge.observe(figure, &labels(row, name, counter));
                }
            }
        });
        gauge.with_callback(observe).build();
    }
    let refused = meter
        .u64_observable_counter("memcg.counter.refused_charges")
        .with_description(COUNTER_REFUSED);
    let observe = callback(source, move |figures, refused| {
        for (row, name, counter) in figures.counters() {
            refused.observe(counter.refused, &labels(row, name, counter));
        }
    });
    refused.with_unit("1").with_callback(observe).build();
}

fn observe_process(meter: &Meter, source: &Weak<Source>) {
    // Every reading has the same names in the same order.
    let names = Process::default();
    for (at, (name, about, _)) in names.gauges().into_iter().enumerate() {
        let observe = callback(source, move |figures, gauge| {
            gauge.observe(figures.process.gauges()[at].2, &[])
        });
        meter
            .u64_observable_gauge(format!("memcg.{name}"))
            .with_description(about)
            .with_callback(observe)
            .build();
    }
    for (at, (name, about, is_bytes, _)) in names.counters().into_iter().enumerate() {
        let counter = meter
            .u64_observable_counter(format!("memcg.{name}"))
            .with_description(about);
        let observe = callback(source, move |figures, counter| {
            counter.observe(figures.process.counters()[at].3, &[])
        });
        counter
            .with_unit(unit(is_bytes))
            .with_callback(observe)
            .build();
    }
}
