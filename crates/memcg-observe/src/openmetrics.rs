//! The figures in the text format of OpenMetrics, by `prometheus-client`.

use std::fmt;

use memcg::Unit as ItemUnit;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::exposition::{
    COUNTER_GAUGES, COUNTER_REFUSED, CounterGauge, EVENTS, Exposition, Figures, GAUGES, GroupGauge,
    OTHER, REFUSED, STALLED, USAGE, events_of, name_of,
};
use crate::page;
use crate::protocol::{CounterRow, Row};

/// Nanoseconds of a second.
const NANOS: f64 = 1e9;

/// The unit as OpenMetrics has it in names.
fn unit_of(unit: ItemUnit) -> Option<Unit> {
    match unit {
        ItemUnit::Bytes => Some(Unit::Bytes),
        ItemUnit::Nanoseconds => Some(Unit::Seconds),
        _ => None,
    }
}

/// A gauge of that unit. The sample of a time is in seconds.
fn encode_gauge(
    sample: &mut MetricEncoder<'_>,
    unit: ItemUnit,
    figure: i64,
) -> Result<(), fmt::Error> {
    match unit {
        ItemUnit::Nanoseconds => sample.encode_gauge(&(figure as f64 / NANOS)),
        _ => sample.encode_gauge(&figure),
    }
}

/// A figure that has no sign. Protocol buffers have whole numbers with a sign alone, so a larger
/// one has a fraction there, and in the text, too.
fn encode_unsigned(sample: &mut MetricEncoder<'_>, figure: u64) -> Result<(), fmt::Error> {
    match i64::try_from(figure) {
        Ok(figure) => sample.encode_gauge(&figure),
        Err(_) => sample.encode_gauge(&(figure as f64)),
    }
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
    /// [`CONTENT_TYPE`](crate::CONTENT_TYPE). To add them to a registry of your own, register the
    /// value as its [`Collector`].
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
        let _ = encode_registry(&mut text, &registry);
        let of_layers = page::beside(&text, &self.layers);
        text.push_str(&of_layers);
        let _ = encode_eof(&mut text);
        text
    }

    /// Returns the same figures in the older text format of Prometheus (0.0.4), whose content type
    /// is [`TEXT_CONTENT_TYPE`](crate::TEXT_CONTENT_TYPE): for what reads plain text alone.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let text = memcg_observe::Exposition::new(&runtime).text();
    /// assert!(text.contains("# TYPE memcg_refused_charges_total counter\n"));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn text(&self) -> String {
        page::plain(&self.openmetrics())
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.read().encode(encoder)
    }
}

impl Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut usage = encoder.encode_descriptor(
            "memcg_usage",
            USAGE,
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        for row in &self.groups.rows {
            encode_unsigned(&mut usage.encode_family(&labels(row))?, row.usage)?;
        }
        for &(depth, bytes) in &self.groups.others {
            encode_unsigned(&mut usage.encode_family(&labels_of(OTHER, depth))?, bytes)?;
        }
        for GroupGauge {
            name,
            about,
            is_bytes,
            figure,
        } in GAUGES
        {
            if self.groups.rows.iter().all(|row| figure(row).is_none()) {
                continue;
            }
            let name = format!("memcg_{name}");
            let unit = is_bytes.then_some(Unit::Bytes);
            let mut gauge =
                encoder.encode_descriptor(&name, about, unit.as_ref(), MetricType::Gauge)?;
            for (row, figure) in self
                .groups
                .rows
                .iter()
                .filter_map(|row| Some((row, figure(row)?)))
            {
                encode_unsigned(&mut gauge.encode_family(&labels(row))?, figure)?;
            }
        }
        let mut refused = encoder.encode_descriptor(
            "memcg_refused_charges",
            REFUSED,
            None,
            MetricType::Counter,
        )?;
        for row in &self.groups.rows {
            refused
                .encode_family(&labels(row))?
                .encode_counter::<NoLabelSet, _, u64>(&row.refused, None)?;
        }
        let mut events =
            encoder.encode_descriptor("memcg_events", EVENTS, None, MetricType::Counter)?;
        for row in &self.groups.rows {
            for (event, count) in events_of(row) {
                let labels = (labels(row), [("event", event)]);
                events
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        for stalled in STALLED {
            let name = format!("memcg_pressure_{}", stalled.name);
            let unit = Some(&Unit::Seconds);
            let mut time =
                encoder.encode_descriptor(&name, stalled.about, unit, MetricType::Counter)?;
            for row in &self.groups.rows {
                let seconds = stalled.seconds(row);
                time.encode_family(&labels(row))?
                    .encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
            }
        }
        self.encode_counters(&mut encoder)?;
        self.encode_stats(&mut encoder)?;
        self.encode_process(&mut encoder)
    }

    /// Counters beside memory, by unit: one metric has one unit.
    fn encode_counters(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all: Vec<(&Row, &str, &CounterRow)> = self.counters().collect();
        for CounterGauge {
            name,
            about,
            figure,
        } in COUNTER_GAUGES
        {
            for of in [ItemUnit::Bytes, ItemUnit::Events, ItemUnit::Nanoseconds] {
                let of_unit = all
                    .iter()
                    .filter(|(.., counter)| counter.unit == name_of(of));
                let samples: Vec<_> = of_unit
                    .filter_map(|&(row, name, is)| Some((row, name, figure(is)?)))
                    .collect();
                if samples.is_empty() {
                    continue;
                }
                let name = format!("memcg_counter_{name}");
                let unit = unit_of(of);
                let mut gauge =
                    encoder.encode_descriptor(&name, about, unit.as_ref(), MetricType::Gauge)?;
                for (row, name, figure) in samples {
                    let labels = (labels(row), [("counter", name)]);
                    let figure = i64::try_from(figure).unwrap_or(i64::MAX);
                    encode_gauge(&mut gauge.encode_family(&labels)?, of, figure)?;
                }
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        let name = "memcg_counter_refused_charges";
        let mut refused =
            encoder.encode_descriptor(name, COUNTER_REFUSED, None, MetricType::Counter)?;
        for (row, name, counter) in all {
            let labels = (labels(row), [("counter", name)]);
            refused
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&counter.refused, None)?;
        }
        Ok(())
    }

    /// Items by unit: one metric has one unit.
    fn encode_stats(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let units = [
            ("memcg_stat", "Statistics in bytes", ItemUnit::Bytes),
            (
                "memcg_stat_events",
                "Statistics that count",
                ItemUnit::Events,
            ),
            (
                "memcg_stat_time",
                "Statistics of time",
                ItemUnit::Nanoseconds,
            ),
        ];
        for (name, about, of) in units {
            let items: Vec<&str> = self
                .items
                .iter()
                .filter(|item| item.1 == of)
                .map(|(name, _)| name.as_str())
                .collect();
            let figures = |row: &Row| {
                items
                    .iter()
                    .filter_map(|&item| Some((item, *row.stats.get(item)?)))
                    .collect()
            };
            let rows: Vec<(&Row, Vec<(&str, i64)>)> = self
                .groups
                .rows
                .iter()
                .map(|row| (row, figures(row)))
                .collect();
            // Mutation: a-metric-without-samples-ends-the-page
            if rows.iter().all(|(_, figures)| figures.is_empty()) {
                continue;
            }
            let unit = unit_of(of);
            let mut gauge =
                encoder.encode_descriptor(name, about, unit.as_ref(), MetricType::Gauge)?;
            for (row, figures) in rows {
                for (item, figure) in figures {
                    let labels = (labels(row), [("item", item)]);
                    encode_gauge(&mut gauge.encode_family(&labels)?, of, figure)?;
                }
            }
        }
        Ok(())
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, about, figure) in self.process.gauges() {
            let name = format!("memcg_{name}");
            encode_unsigned(
                &mut encoder.encode_descriptor(&name, about, None, MetricType::Gauge)?,
                figure,
            )?;
        }
        for (name, about, is_bytes, count) in self.process.counters() {
            let name = format!("memcg_{name}");
            let unit = is_bytes.then_some(Unit::Bytes);
            let mut counter =
                encoder.encode_descriptor(&name, about, unit.as_ref(), MetricType::Counter)?;
            counter.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}
