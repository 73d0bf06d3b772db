//! The figures for the recorder of the crate `metrics`.

use metrics::{counter, gauge};

use crate::exposition::{Exposition, OTHER};
use crate::protocol::Row;

impl Exposition {
    /// Hands the figures to the recorder of the crate `metrics`: call it from time to time. Nothing is recorded between
    /// two calls.
    ///
    /// The names are those of [`openmetrics`](Self::openmetrics) with their units. Most recorders keep the last value of
    /// a group that is shown no more, so have the recorder forget what it has not heard of for a while.
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
        }
        for &(depth, bytes) in &figures.groups.others {
            gauge!("memcg_usage_bytes", "group" => OTHER, "depth" => depth.to_string()).set(bytes as f64);
        }
        let process = &figures.process;
        gauge!("memcg_groups").set(process.groups as f64);
        gauge!("memcg_dying_groups").set(process.dying as f64);
        gauge!("memcg_barrier_degraded").set(if process.degraded { 1.0 } else { 0.0 });
        counter!("memcg_drains_total").absolute(process.drains);
        counter!("memcg_drained_bytes_total").absolute(process.drained);
        counter!("memcg_barriers_total").absolute(process.barriers);
        counter!("memcg_stat_flushes_total").absolute(process.flushes);
    }
}

fn record(row: &Row) {
    let labels = || [("group", row.path.clone()), ("depth", row.depth.to_string())];
    let gauges = [
        ("memcg_usage_bytes", Some(row.usage)),
        ("memcg_stocked_bound_bytes", Some(row.stocked_bound)),
        ("memcg_peak_bytes", Some(row.peak)),
        ("memcg_forced_bytes", Some(row.forced)),
        ("memcg_max_bytes", Some(row.max).filter(|&max| max < u64::MAX)),
        ("memcg_high_bytes", Some(row.high).filter(|&high| high < u64::MAX)),
        ("memcg_soft_bytes", Some(row.soft).filter(|&soft| soft < u64::MAX)),
        ("memcg_low_bytes", Some(row.low).filter(|&low| low > 0)),
        ("memcg_min_bytes", Some(row.min).filter(|&min| min > 0)),
        ("memcg_waiting_charges", Some(row.waiting)),
    ];
    for (name, figure) in gauges {
        if let Some(figure) = figure {
            gauge!(name, &labels()).set(figure as f64);
        }
    }
    counter!("memcg_refused_charges_total", &labels()).absolute(row.refused);
    for (event, count) in &row.events {
        let [group, depth] = labels();
        counter!("memcg_events_total", &[group, depth, ("event", event.clone())]).absolute(*count);
    }
}
