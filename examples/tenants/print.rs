//! The report for people: a row for each tenant, then the service.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanCount;
use memcg::Bytes;

use crate::agree::Agreement;
use crate::items::Exact;
use crate::policy::{Policy, Promise};
use crate::report::{Report, Row, Setting, Statistics};

impl Report {
    /// Both tables, and before them what the figures rest on.
    pub(crate) fn table(&self) -> String {
        let header = [
            "tenant",
            "requests",
            "hit ratio",
            "cached",
            "peak",
            "max",
            "met max",
            "evicted",
            "for others",
            "too large",
        ];
        let mut tenants = table();
        tenants.set_header(header);
        for row in &self.tenants {
            tenants.add_row(row.cells());
        }
        let mut service = table();
        service.add_rows(self.lines());
        for table in [&mut tenants, &mut service] {
            table.column_iter_mut().skip(1).for_each(|column| {
                column.set_cell_alignment(CellAlignment::Right);
            });
        }
        format!("{}{tenants}\n{service}{}", self.head(), self.foot())
    }

    /// Where the load comes from.
    fn head(&self) -> String {
        let (Some(scale), Some(part)) = (self.setting.scale, self.setting.part) else { return String::new() };
        format!(
            "{}\nWorking sets scaled by {scale:.6} (1 : {:.0}); each tenant may hold {:.1} % of its own.\n",
            source(&self.setting.left_out),
            1.0 / scale,
            part * 100.0,
        )
    }

    /// What a reader should know about the figures above.
    fn foot(&self) -> String {
        let mut foot = "\nHit ratio, cached and evicted are the groups' statistics, read exactly.\n\
                        A charge was timed at depth 4 in slices between requests, all workers at once, in a runtime \
                        without audit."
            .to_string();
        if !self.unmet.is_empty() {
            foot += &format!("\nNever met a max: {}.", self.unmet.join(", "));
        }
        foot
    }

    fn lines(&self) -> Vec<[String; 2]> {
        let verify = match (self.verify_ok && self.faults.is_empty(), self.audited) {
            (true, true) => "ok, audited",
            (true, false) => "ok, without audit",
            (false, _) => "FAULTS",
        };
        let equal = self.tenants.iter().filter(|row| row.live == row.cache_bytes).count();
        let gain = self.charge_ns_no_stock / self.charge_ns_stock.max(f64::MIN_POSITIVE);
        [
            ("policy", self.setting.rule()),
            ("threads", self.setting.threads.to_string()),
            ("seconds of requests", format!("{:.3}", self.seconds)),
            ("requests", count(self.sums.requests)),
            ("requests/s", count(self.requests_per_second as u64)),
            ("hit ratio", format!("{:.4}", self.sums.hit_ratio)),
            ("budget", Bytes(self.setting.budget_bytes).to_string()),
            ("live, resident for it", format!("{}, {}", Bytes(self.live_bytes), self.resident())),
            ("peak", Bytes(self.peak_bytes).to_string()),
            ("most above a max", format!("{} in {} samples", Bytes(self.max_budget_excess_bytes), count(self.samples))),
            ("met a max: tenants, service", format!("{}, {}", count(self.sums.met_max), count(self.met_budget))),
            (
                "evicted, of them for others",
                format!("{}, {}", count(self.sums.evicted), count(self.sums.evicted_for_others)),
            ),
            ("went below low, above high", format!("{}, {}", count(self.below_low), count(self.above_high))),
            ("delayed, in all", format!("{}, {:.1} s", count(self.sums.delayed), self.sums.delay_ms as f64 / 1e3)),
            ("waited, of them in vain", format!("{}, {}", count(self.sums.waited), count(self.sums.timed_out))),
            ("a wait: p50, p99, longest", self.wait_times.map_or_else(|| "-".to_string(), |times| times.to_string())),
            ("refused after all", count(self.sums.refused.saturating_sub(self.sums.waited))),
            (
                "too large, passed through",
                format!("{}, {}", count(self.sums.too_large), count(self.sums.passed_through)),
            ),
            ("stocked", Bytes(self.stocked_bytes).to_string()),
            ("drains", format!("{}, {}", count(self.drains), Bytes(self.drained_bytes))),
            ("barriers", format!("{}, {}", count(self.barriers), self.barrier)),
            ("a charge with the stock", format!("{:.2} ns", self.charge_ns_stock)),
            ("a charge without", format!("{:.1} ns, {gain:.0} times as much", self.charge_ns_no_stock)),
            ("statistics, live", self.statistics.looks()),
            ("statistics, exact", self.statistics.compared()),
            ("live = the cache's own sum", format!("in {equal} of {} tenants", self.tenants.len())),
            ("verify", verify.to_string()),
        ]
        .map(|(name, value)| [name.to_string(), value])
        .into()
    }

    /// Growth of resident memory since before the first entry.
    fn resident(&self) -> String {
        match self.rss_growth_bytes() {
            // Beside less, what the program itself needs is all there is to see.
            Some(growth) if self.live_bytes >= 1 << 20 => {
                let more = (growth as f64 / self.live_bytes as f64 - 1.0) * 100.0;
                format!("{} ({more:+.1} %)", Bytes(growth))
            }
            Some(growth) => Bytes(growth).to_string(),
            None => "not known here".to_string(),
        }
    }
}

impl Setting {
    fn rule(&self) -> String {
        let Promise { low, soft, high } = self.promise;
        let high = if high == Promise::DEFAULT.high { String::new() } else { format!(", high {high}") };
        match (self.policy, &self.wait) {
            (Policy::Memcg, _) => format!("{}, low {low}, soft {soft}{high}", self.policy),
            (policy, Some(wait)) => format!("{policy}, low {low}, soft {soft}, {wait}"),
            (policy, None) => policy.to_string(),
        }
    }
}

impl Statistics {
    fn looks(&self) -> String {
        let Agreement { figures, off, beyond, nearest, largest_error, its_bound, .. } = &self.agreement;
        let read = format!("{} figures in {} looks", count(*figures), count(self.looks));
        if *off == 0 {
            return read;
        }
        let (off, beyond) = (count(*off), count(*beyond));
        let (error, bound) = (count(*largest_error), count(*its_bound));
        format!("{read}\n{off} off, {beyond} by more than said\nnearest to it: {error} of {bound} ({nearest})")
    }

    fn compared(&self) -> String {
        let Agreement { exact, unequal, .. } = self.agreement;
        format!("{} of {} as counted\n{} flushes", count(exact - unequal), count(exact), count(self.flushes))
    }
}

impl Row {
    fn cells(&self) -> [String; 10] {
        let Exact { cached_bytes, gets, hits, evictions } = self.statistics;
        [
            self.tenant.clone(),
            count(self.sums.requests),
            if gets == 0 { "-".to_string() } else { format!("{:.4}", hits as f64 / gets as f64) },
            Bytes(cached_bytes.max(0).unsigned_abs()).to_string(),
            Bytes(self.peak).to_string(),
            self.max.map_or_else(|| "max".to_string(), |max| Bytes(max).to_string()),
            count(self.sums.met_max),
            count(evictions.max(0).unsigned_abs()),
            count(self.sums.evicted_for_others),
            count(self.sums.too_large),
        ]
    }
}

/// Where the clusters come from.
pub(crate) fn source(left_out: &[String]) -> String {
    format!(
        "Clusters of Yang, Yue, Rashmi, OSDI 2020 (github.com/twitter/cache-trace, CC-BY-4.0), without {}, for which \
         no figures were published.",
        left_out.join(", "),
    )
}

pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table
}

/// A number with separated thousands.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}
