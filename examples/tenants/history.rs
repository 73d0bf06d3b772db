//! The bytes of the tenants over time, for charts.

use std::time::{Duration, Instant};

use memcg::Bytes;
use memcg_report::chart::{Axis, Chart, Series, Unit};
use memcg_report::page::Page;
use memcg_report::terminal::State;

use crate::report::{Report, ratio};
use crate::service::Service;

/// Samples at most; when there are more, every second goes, and the next ones come half as often.
const SAMPLES_MAX: usize = 240;

/// Between two samples at first.
const PAUSE: Duration = Duration::from_millis(20);

/// Tenants with a layer of their own; the others share one.
const LAYERS: usize = 7;

/// Points of the hit ratio: fewer than samples, so that each has some look-ups.
const POINTS: usize = 60;

/// Samples, one after the other.
pub(crate) struct History {
    /// True if a chart is drawn.
    wanted: bool,
    began: Instant,
    pause: Duration,
    next: Duration,
    samples: Vec<Sample>,
}

/// One look at all tenants.
struct Sample {
    at: Duration,
    /// Bytes charged.
    live: Vec<u64>,
    /// All look-ups so far, and those that hit.
    gets: u64,
    hits: u64,
}

impl History {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { wanted, began: Instant::now(), pause: PAUSE, next: Duration::ZERO, samples: Vec::new() }
    }

    /// Takes a sample if it is time to.
    pub(crate) fn take(&mut self, service: &Service) {
        let at = self.began.elapsed();
        if !self.wanted || at < self.next {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            let mut stays = false;
            self.samples.retain(|_| {
                stays = !stays;
                stays
            });
            self.pause *= 2;
        }
        self.next = at + self.pause;
        let own = service.owners.iter().map(|own| own.read().map(|figure| figure.max(0).unsigned_abs()));
        let (gets, hits) = own.fold((0, 0), |(gets, hits), own| (gets + own[0], hits + own[1]));
        let live = service.tenants.iter().map(|tenant| tenant.group.live()).collect();
        self.samples.push(Sample { at, live, gets, hits });
    }

    /// The bytes of the tenants, one above the other, under the limit.
    pub(crate) fn usage(&self, report: &Report) -> Chart {
        let xs: Vec<f64> = self.samples.iter().map(|sample| sample.at.as_secs_f64()).collect();
        let mut order: Vec<usize> = (0..report.tenants.len()).collect();
        let mean = |&tenant: &usize| self.samples.iter().map(|sample| sample.live[tenant]).sum::<u64>();
        order.sort_by_key(|tenant| std::cmp::Reverse(mean(tenant)));
        let own = if order.len() > LAYERS + 1 { LAYERS } else { order.len() };
        let layer = |tenants: &[usize]| -> Vec<f64> {
            let sum = |sample: &Sample| tenants.iter().map(|&tenant| sample.live[tenant]).sum::<u64>() as f64;
            self.samples.iter().map(sum).collect()
        };
        let named = order[..own].iter().map(|&tenant| (report.tenants[tenant].tenant.clone(), layer(&[tenant])));
        let others = (own < order.len()).then(|| (format!("{} others", order.len() - own), layer(&order[own..])));
        let budget = report.setting.budget_bytes;
        Chart::new(format!("{} tenants under one limit of {}", order.len(), Bytes(budget)))
            .note("bytes charged over time, stacked by tenant; the caches are filled first")
            .x(Axis::new("").unit(Unit::Seconds).from(0.0))
            .y(Axis::new("").unit(Unit::Bytes))
            .stack(&xs, named.chain(others))
            .rule(format!("max of the service: {}", Bytes(budget)), budget as f64)
    }

    /// Hits among the look-ups of some samples.
    fn hit_ratio(&self) -> Chart {
        let some: Vec<&Sample> = self.samples.iter().step_by(self.samples.len().div_ceil(POINTS).max(1)).collect();
        let line = some.windows(2).fold(Series::line("all tenants"), |line, pair| {
            let (gets, hits) = (pair[1].gets - pair[0].gets, pair[1].hits.saturating_sub(pair[0].hits));
            if gets == 0 { line } else { line.at(pair[1].at.as_secs_f64(), ratio(hits.min(gets), gets) * 100.0) }
        });
        Chart::new("Hit ratio over time")
            .note("of the look-ups since the point before")
            .x(Axis::new("").unit(Unit::Seconds).from(0.0))
            .y(Axis::new("").unit(Unit::Percent).to(100.0))
            .with(line)
    }

    /// A page of its own.
    pub(crate) fn page(&self, report: &Report) -> String {
        let page = Page::new(format!("{} tenants under one budget", report.tenants.len()));
        let page = report.verdict().into_iter().fold(page, |page, (line, state)| page.line(&line, state));
        let page = page.chart(&self.usage(report)).chart(&self.hit_ratio());
        let page = page.part("Tenants, the one that holds most first").table(&report.tenant_rows(report.tenants.len()));
        let page = page.part("The service").table(&report.service_rows());
        report.notes().lines().fold(page, |page, line| page.line(line, State::Plain)).html()
    }
}
