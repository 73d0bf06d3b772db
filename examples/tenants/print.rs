//! The report for people: the verdict, a row for each tenant, the service's details.

use indicatif::HumanCount;
use memcg::Bytes;
use memcg_report::table::{Cell, Column, Table};
use memcg_report::terminal::{self, State};

use crate::agree::Agreement;
use crate::args::Args;
use crate::items::Exact;
use crate::policy::{Policy, Promise};
use crate::report::{Report, Row, Setting, Statistics, Sums};

/// Tenants in the report without `--all`.
const SHOWN: usize = 10;

impl Report {
    /// The verdict, the tenants that hold most, and what was asked for besides.
    pub(crate) fn text(&self, args: &Args) -> String {
        let columns = args.columns();
        let mut text = String::new();
        for (line, state) in self.verdict() {
            text += &state.paint(&terminal::wrap(&line, columns));
            text.push('\n');
        }
        let shown = if args.all { self.tenants.len() } else { SHOWN };
        text += &format!("\n{}\n", self.tenant_rows(shown).text(columns));
        if shown < self.tenants.len() {
            text += &format!("and {} tenants that hold less (--all)\n", self.tenants.len() - shown);
        }
        match args.details {
            true => {
                text += &format!("\n{}\n", self.service_rows().text(columns));
                text += &terminal::wrap(&self.notes(), columns);
            }
            false => {
                text += &terminal::wrap("--details for what was measured and checked, --html FILE for charts", columns)
            }
        }
        text
    }

    /// The verdict on limits and counts, and the figures of the service.
    pub(crate) fn verdict(&self) -> Vec<(String, State)> {
        let mut lines = match self.faults.len() {
            0 => vec![(self.held(), State::Good)],
            faults => vec![(format!("FAULTS: {faults} checks failed, a line each on stderr."), State::Bad)],
        };
        let (ratio, rate) = (self.sums.hit_ratio * 100.0, count(self.requests_per_second as u64));
        let (refused, state) = self.refusals();
        lines.push((format!("Hit ratio {ratio:.2} %, {rate} requests/s; {refused}."), state));
        let [stock, no_stock] = [self.charge_ns_stock, self.charge_ns_no_stock];
        lines.push((
            format!("A charge and its return: {stock:.1} ns, and {no_stock:.1} ns without the stock."),
            State::Plain,
        ));
        lines
    }

    fn held(&self) -> String {
        let false_refusals = match self.refused_in_transit {
            0 => "no false refusal".to_owned(),
            refused => format!("{} refusals beside credit under way", count(refused)),
        };
        let (groups, samples) = (self.tenants.len() + 1, count(self.samples));
        format!("ok: {groups} groups held their limits ({samples} samples); {false_refusals}; sums add up.")
    }

    /// Which tenants were refused, the most often refused first.
    fn refusals(&self) -> (String, State) {
        let mut refused: Vec<_> = self.tenants.iter().filter(|row| row.sums.refused > 0).collect();
        if refused.is_empty() {
            return ("no tenant was refused".to_owned(), State::Plain);
        }
        refused.sort_by_key(|row| std::cmp::Reverse(row.sums.refused));
        let named = refused.iter().take(3).map(|row| format!("{} ({})", row.tenant, count(row.sums.refused)));
        let more = if refused.len() > 3 { format!(" and {} more", refused.len() - 3) } else { String::new() };
        (format!("refused: {}{more}", named.collect::<Vec<_>>().join(", ")), State::Tense)
    }

    /// A row for each tenant, for programs: sizes in bytes, numbers as they are.
    pub(crate) fn csv(&self) -> String {
        let heads = [
            "tenant",
            "requests",
            "gets",
            "hits",
            "hit_ratio",
            "live_bytes",
            "peak_bytes",
            "max_bytes",
            "met_max",
            "evicted",
            "evicted_for_others",
            "refused",
            "waited",
            "timed_out",
            "delayed",
            "too_large",
        ];
        let mut table = Table::new(heads.map(Column::words));
        for Row { tenant, sums, live, peak, max, .. } in &self.tenants {
            table.add([
                tenant.clone(),
                sums.requests.to_string(),
                sums.gets.to_string(),
                sums.hits.to_string(),
                sums.hit_ratio.to_string(),
                live.to_string(),
                peak.to_string(),
                max.map_or_else(String::new, |max| max.to_string()),
                sums.met_max.to_string(),
                sums.evicted.to_string(),
                sums.evicted_for_others.to_string(),
                sums.refused.to_string(),
                sums.waited.to_string(),
                sums.timed_out.to_string(),
                sums.delayed.to_string(),
                sums.too_large.to_string(),
            ]);
        }
        table.csv()
    }

    /// The tenants that hold most, those that hold more before.
    pub(crate) fn tenant_rows(&self, shown: usize) -> Table {
        let mut table = Table::new([
            Column::words("tenant"),
            Column::figures("hit ratio"),
            Column::figures("cached"),
            Column::figures("max"),
            Column::figures("met max").leaves(2),
            Column::figures("evicted").leaves(3),
            Column::figures("refused").leaves(1),
            Column::figures("requests").leaves(4),
            Column::figures("peak").leaves(5),
            Column::figures("for others").leaves(6),
            Column::figures("too large").leaves(7),
            Column::words("state"),
        ]);
        let mut rows: Vec<_> = self.tenants.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.live));
        rows.into_iter().take(shown).for_each(|row| table.add(row.cells()));
        table
    }

    /// The source of the load, and notes on the figures.
    pub(crate) fn notes(&self) -> String {
        format!("{}{}", self.head(), self.foot())
    }

    pub(crate) fn service_rows(&self) -> Table {
        let mut table = Table::new([Column::words("service"), Column::words("")]);
        self.lines().into_iter().for_each(|line| table.add(line));
        table
    }

    /// The source of the load.
    fn head(&self) -> String {
        let (Some(scale), Some(part)) = (self.setting.scale, self.setting.part) else { return String::new() };
        format!(
            "{}\nWorking sets scaled by {scale:.6} (1 : {:.0}); each tenant may hold {:.1} % of its own.\n",
            source(&self.setting.left_out),
            1.0 / scale,
            part * 100.0,
        )
    }

    /// Notes on the figures above.
    fn foot(&self) -> String {
        let mut foot = "Hit ratio, cached and evicted are the groups' statistics, read exactly.\n\
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
    fn cells(&self) -> [Cell; 12] {
        let Exact { cached_bytes, gets, hits, evictions } = self.statistics;
        [
            Cell::from(&*self.tenant),
            Cell::from(if gets == 0 { "-".to_string() } else { format!("{:.4}", hits as f64 / gets as f64) }),
            Cell::from(Bytes(cached_bytes.max(0).unsigned_abs()).to_string()),
            Cell::from(self.max.map_or_else(|| "max".to_string(), |max| Bytes(max).to_string())),
            Cell::from(count(self.sums.met_max)),
            Cell::from(count(evictions.max(0).unsigned_abs())),
            Cell::from(count(self.sums.refused)),
            Cell::from(count(self.sums.requests)),
            Cell::from(Bytes(self.peak).to_string()),
            Cell::from(count(self.sums.evicted_for_others)),
            Cell::from(count(self.sums.too_large)),
            self.state(),
        ]
    }

    /// The worst that happened to the tenant.
    fn state(&self) -> Cell {
        match self.sums {
            Sums { timed_out: 1.., .. } => Cell::new("timed out", State::Bad),
            Sums { refused: 1.., .. } => Cell::new("refused", State::Bad),
            Sums { delayed: 1.., .. } => Cell::new("delayed", State::Tense),
            Sums { met_max: 1.., .. } => Cell::new("at max", State::Tense),
            _ => Cell::new("ok", State::Good),
        }
    }
}

/// The source of the clusters.
pub(crate) fn source(left_out: &[String]) -> String {
    format!(
        "Clusters of Yang, Yue, Rashmi, OSDI 2020 (github.com/twitter/cache-trace, CC-BY-4.0), without {}, for which \
         no figures were published.",
        left_out.join(", "),
    )
}

/// A number with separated thousands.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}
