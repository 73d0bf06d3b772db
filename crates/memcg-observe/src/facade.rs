//! The figures for the recorder of the crate `metrics`.

use memcg::Unit;
use metrics::{counter, gauge};

use crate::exposition::{
    COUNTER_GAUGES, CounterGauge, Exposition, GAUGES, GroupGauge, OTHER, STALLED, events_of,
};
use crate::protocol::{CounterRow, Row};

impl Exposition {
    /// Hands the figures to the recorder of the crate `metrics`: call it from time to time. Nothing
    /// is recorded between two calls.
    ///
    /// The names are those of [`openmetrics`](Self::openmetrics) with their units. What that shows
    /// no more is not recorded: a group that has gone, a limit that is unset, a statistic that is
    /// 0. Most recorders keep the last value, so have the recorder forget what it has not heard of
    /// for a while.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// memcg_observe::Exposition::new(&runtime).record();
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn record(&self) {
        let figures = self.read();
        for row in &figures.groups.rows {
            record(row);
            record_stats(row, &figures.items);
        }
        for &(depth, bytes) in &figures.groups.others {
            gauge!("memcg_usage_bytes", "group" => OTHER, "depth" => depth.to_string())
                .set(bytes as f64);
        }
        for (row, name, counter) in figures.counters() {
            record_counter(row, name, counter);
        }
        for (name, _, figure) in figures.process.gauges() {
            gauge!(format!("memcg_{name}")).set(figure as f64);
        }
        for (name, _, is_bytes, count) in figures.process.counters() {
            counter!(format!(
                "memcg_{name}{}_total",
                if is_bytes { "_bytes" } else { "" }
            ))
            .absolute(count);
        }
    }
}

fn record(row: &Row) {
    let labels = || {
        [
            ("group", row.path.clone()),
            ("depth", row.depth.to_string()),
        ]
    };
    gauge!("memcg_usage_bytes", &labels()).set(row.usage as f64);
    for GroupGauge {
        name,
        is_bytes,
        figure,
        ..
    } in GAUGES
    {
        if let Some(figure) = figure(row) {
            let name = format!("memcg_{name}{}", if is_bytes { "_bytes" } else { "" });
            gauge!(name, &labels()).set(figure as f64);
        }
    }
    counter!("memcg_refused_charges_total", &labels()).absolute(row.refused);
    for stalled in STALLED {
        // A counter of the facade has no fraction.
        gauge!(
            format!("memcg_pressure_{}_seconds_total", stalled.name),
            &labels()
        )
        .set(stalled.seconds(row));
    }
    for (event, count) in events_of(row) {
        let [group, depth] = labels();
        counter!(
            "memcg_events_total",
            &[group, depth, ("event", event.to_string())]
        )
        .absolute(count);
    }
}

/// Items by unit: one metric has one unit.
fn record_stats(row: &Row, items: &[(String, Unit)]) {
    for (item, unit) in items {
        let Some(&figure) = row.stats.get(item) else {
            continue;
        };
        let (name, scale) = match unit {
            Unit::Bytes => ("memcg_stat_bytes", 1.0),
            Unit::Nanoseconds => ("memcg_stat_time_seconds", 1e-9),
            _ => ("memcg_stat_events", 1.0),
        };
        let labels = [
            ("group", row.path.clone()),
            ("depth", row.depth.to_string()),
            ("item", item.clone()),
        ];
        gauge!(name, &labels).set(figure as f64 * scale);
    }
}

fn record_counter(row: &Row, name: &str, counter: &CounterRow) {
    let labels = [
        ("group", row.path.clone()),
        ("depth", row.depth.to_string()),
        ("counter", name.to_string()),
    ];
    let (suffix, scale) = match counter.unit.as_str() {
        "bytes" => ("_bytes", 1.0),
        "nanoseconds" => ("_seconds", 1e-9),
        _ => ("", 1.0),
    };
    for CounterGauge { name, figure, .. } in COUNTER_GAUGES {
        if let Some(figure) = figure(counter) {
            gauge!(format!("memcg_counter_{name}{suffix}"), &labels).set(figure as f64 * scale);
        }
    }
    counter!("memcg_counter_refused_charges_total", &labels).absolute(counter.refused);
}
