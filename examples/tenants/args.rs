//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use memcg::{Bytes, Limit};

/// Length of the main job. With the warm-up before it and the checks after it: ten seconds.
const SECONDS_DEFAULT: Duration = Duration::from_secs(8);

/// A cache service with many tenants under one memory budget.
///
/// Without a trace the tenants are 53 production caches of Twitter. Prints what each tenant got,
/// and fails when a count does not add up at the end.
#[derive(Debug, Parser)]
#[command(name = "tenants")]
pub(crate) struct Args {
    /// A trace to replay, gzipped or not: CSV with the head line `key,size`, both whole numbers,
    /// size in bytes. One tenant each, named after the file; may be given several times.
    #[arg(long = "trace", value_name = "FILE")]
    pub(crate) traces: Vec<PathBuf>,

    /// Serve the Twitter clusters beside the traces.
    #[arg(long)]
    clusters: bool,

    /// What all tenants together may hold.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) budget: Bytes,

    /// What the tenant of a trace may hold: bytes, a percentage of the budget, or max.
    #[arg(long, value_name = "LIMIT", default_value = "max")]
    pub(crate) tenant_max: Limit,

    /// Worker threads, at most one for each tenant [default: the machine's].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Stop after this time [default: 8 with clusters and without --requests, else no limit].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Stop after this many requests, all tenants together; a trace stops at its end, too.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// What the load of the clusters is drawn from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Bytes that a thread charges in advance.
    #[arg(long, value_name = "BYTES", default_value = "256KiB")]
    pub(crate) batch: Bytes,

    /// Charge every entry on the shared counters.
    #[arg(long, conflicts_with = "batch")]
    no_stock: bool,

    /// Keep an independent count for the verification at the end.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, default_missing_value = "true")]
    pub(crate) audit: bool,

    /// Who reads the report.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,

    /// Show the first live table after this time, the next ones after twice as long each time; none in JSON.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1.5")]
    live: Duration,

    /// No progress bar and no live tables; there is no bar either where stderr is no terminal.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The two readers of a report.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// People.
    Table,
    /// Programs: sizes in bytes.
    Json,
}

impl Args {
    /// Whether the Twitter clusters are among the tenants.
    pub(crate) fn clusters(&self) -> bool {
        self.clusters || self.traces.is_empty()
    }

    /// What a thread charges in advance; 0 switches the stock off.
    pub(crate) fn batch(&self) -> Bytes {
        if self.no_stock { Bytes(0) } else { self.batch }
    }

    /// As many workers as asked for, or as the machine runs at once.
    pub(crate) fn threads(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// When the load ends, requests or none. The clusters' load has no end of its own.
    pub(crate) fn time(&self) -> Option<Duration> {
        let endless = self.clusters() && self.requests.is_none();
        self.seconds.or(endless.then_some(SECONDS_DEFAULT))
    }

    /// When the first live table is due, if there is to be one.
    pub(crate) fn live(&self) -> Option<Duration> {
        let wanted = !self.quiet && matches!(self.format, Format::Table);
        wanted.then_some(self.live)
    }

    /// Whether this is the run whose every limit was chosen to be met, not a part or a variation of it.
    pub(crate) fn is_main_job(&self) -> bool {
        let long_enough = self.time().is_some_and(|time| time >= SECONDS_DEFAULT);
        self.traces.is_empty() && self.requests.is_none() && long_enough && self.budget == Bytes(256 << 20)
    }
}

/// Seconds with or without a fraction, more than none.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_string())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("expected more than 0 seconds".to_string()),
    }
}
