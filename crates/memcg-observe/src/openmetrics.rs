//! The figures in the text format of OpenMetrics, by `prometheus-client`.

use std::fmt;

use memcg::Unit as ItemUnit;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::exposition::{Exposition, Figures, OTHER};
use crate::protocol::Row;

/// Nanoseconds of a second.
const NANOS: f64 = 1e9;

type Gauge = (&'static str, &'static str, Option<Unit>, fn(&Row) -> Option<u64>);

/// What each group has as a gauge. A limit that is not set has no sample.
const GAUGES: [Gauge; 9] = [
    ("memcg_stocked_bound", "The most credit of threads in usage", Some(Unit::Bytes), |row| Some(row.stocked_bound)),
    ("memcg_peak", "The highest usage", Some(Unit::Bytes), |row| Some(row.peak)),
    ("memcg_forced", "Usage above max", Some(Unit::Bytes), |row| Some(row.forced)),
    ("memcg_max", "The limit that charges do not pass", Some(Unit::Bytes), |row| below_max(row.max)),
    ("memcg_high", "The limit above which charges are delayed", Some(Unit::Bytes), |row| below_max(row.high)),
    ("memcg_soft", "The limit above which reclaim asks first", Some(Unit::Bytes), |row| below_max(row.soft)),
    ("memcg_low", "What reclaim touches last", Some(Unit::Bytes), |row| above_zero(row.low)),
    ("memcg_min", "What reclaim never touches", Some(Unit::Bytes), |row| above_zero(row.min)),
    ("memcg_waiting_charges", "Charges in line", None, |row| Some(row.waiting)),
];

fn below_max(limit: u64) -> Option<u64> {
    (limit < u64::MAX).then_some(limit)
}

fn above_zero(limit: u64) -> Option<u64> {
    (limit > 0).then_some(limit)
}

/// The labels of a group.
fn labels(row: &Row) -> [(&'static str, String); 2] {
    labels_of(&row.path, row.depth)
}

fn labels_of(path: &str, depth: usize) -> [(&'static str, String); 2] {
    [("group", path.to_string()), ("depth", depth.to_string())]
}

impl Exposition {
    /// Returns the figures in the text format of OpenMetrics 1.0, whose content type is
    /// [`CONTENT_TYPE`](crate::CONTENT_TYPE). To add them to a registry of your own, register the value as its
    /// [`Collector`].
    ///
    /// ```
    /// use memcg_observe::Exposition;
    /// use prometheus_client::registry::Registry;
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let mut registry = Registry::default();
    /// registry.register_collector(Box::new(Exposition::new(&runtime).depth(1)));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn openmetrics(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // A text takes whatever is written to it.
        let _ = encode_registry(&mut text, &registry).and_then(|()| encode_eof(&mut text));
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.read().encode(encoder)
    }
}

impl Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let about =
            "Live charge and credit of threads, what limits compare; other: what no group shown at that depth uses";
        let mut usage = encoder.encode_descriptor("memcg_usage", about, Some(&Unit::Bytes), MetricType::Gauge)?;
        for row in &self.groups.rows {
            usage.encode_family(&labels(row))?.encode_gauge(&row.usage)?;
        }
        for &(depth, bytes) in &self.groups.others {
            usage.encode_family(&labels_of(OTHER, depth))?.encode_gauge(&bytes)?;
        }
        for (name, about, unit, figure) in GAUGES {
            if self.groups.rows.iter().all(|row| figure(row).is_none()) {
                continue;
            }
            let mut gauge = encoder.encode_descriptor(name, about, unit.as_ref(), MetricType::Gauge)?;
            for (row, figure) in self.groups.rows.iter().filter_map(|row| Some((row, figure(row)?))) {
                gauge.encode_family(&labels(row))?.encode_gauge(&figure)?;
            }
        }
        let about = "Charges refused because this group was full";
        let mut refused = encoder.encode_descriptor("memcg_refused_charges", about, None, MetricType::Counter)?;
        for row in &self.groups.rows {
            refused.encode_family(&labels(row))?.encode_counter::<NoLabelSet, _, u64>(&row.refused, None)?;
        }
        let about = "What happened to the limits of the group and of the groups below";
        let mut events = encoder.encode_descriptor("memcg_events", about, None, MetricType::Counter)?;
        for row in &self.groups.rows {
            for (event, count) in &row.events {
                let labels = (labels(row), [("event", event.as_str())]);
                events.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        self.encode_stats(&mut encoder)?;
        self.encode_process(&mut encoder)
    }

    /// Items by unit: one metric has one unit.
    fn encode_stats(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let units = [
            ("memcg_stat", "Statistics in bytes", Some(Unit::Bytes), ItemUnit::Bytes),
            ("memcg_stat_events", "Statistics that count", None, ItemUnit::Events),
            ("memcg_stat_time", "Statistics of time", Some(Unit::Seconds), ItemUnit::Nanoseconds),
        ];
        for (name, about, unit, of) in units {
            let items: Vec<&str> =
                self.items.iter().filter(|item| item.1 == of).map(|(name, _)| name.as_str()).collect();
            let figures = |row: &Row| items.iter().filter_map(|&item| Some((item, *row.stats.get(item)?))).collect();
            let rows: Vec<(&Row, Vec<(&str, i64)>)> = self.groups.rows.iter().map(|row| (row, figures(row))).collect();
            if rows.iter().all(|(_, figures)| figures.is_empty()) {
                continue;
            }
            let mut gauge = encoder.encode_descriptor(name, about, unit.as_ref(), MetricType::Gauge)?;
            for (row, figures) in rows {
                for (item, figure) in figures {
                    let labels = (labels(row), [("item", item)]);
                    let mut sample = gauge.encode_family(&labels)?;
                    match of {
                        ItemUnit::Nanoseconds => sample.encode_gauge(&(figure as f64 / NANOS))?,
                        _ => sample.encode_gauge(&figure)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let process = &self.process;
        let gauges = [
            ("memcg_groups", "Groups that are online", process.groups),
            ("memcg_dying_groups", "Groups that went offline and still hold something", process.dying),
            (
                "memcg_barrier_degraded",
                "1: the system refuses the barrier, so credit of threads cannot be drained",
                u64::from(process.degraded),
            ),
        ];
        for (name, about, figure) in gauges {
            encoder.encode_descriptor(name, about, None, MetricType::Gauge)?.encode_gauge(&figure)?;
        }
        let counters = [
            ("memcg_drains", "Times credit of threads was taken back", None, process.drains),
            ("memcg_drained", "Credit of threads that was taken back", Some(Unit::Bytes), process.drained),
            ("memcg_barriers", "Heavy barriers", None, process.barriers),
            ("memcg_stat_flushes", "Flushes of the statistics", None, process.flushes),
        ];
        for (name, about, unit, count) in counters {
            let mut counter = encoder.encode_descriptor(name, about, unit.as_ref(), MetricType::Counter)?;
            counter.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}
