//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use memcg::Bytes;
use serde::Serialize;

/// Budgets where none is given: of the main job, and of a comparison, which is many runs.
const BUDGET: Bytes = Bytes(256 << 20);
const BUDGET_COMPARED: Bytes = Bytes(64 << 20);

/// Requests of each run of a comparison where their number is not given.
const REQUESTS_COMPARED: u64 = 1_800_000;

/// Length of the main job. With the warm-up before it and the checks after it: ten seconds.
const SECONDS: Duration = Duration::from_secs(8);

/// A cache service with 53 tenants under one memory budget, shaped after production caches of
/// Twitter.
///
/// Prints what each tenant got, and fails when a count does not add up at the end.
#[derive(Debug, Parser)]
#[command(name = "tenants", max_term_width = 80)]
pub(crate) struct Args {
    /// Bytes that all tenants together may hold [default: 256MiB, and 64MiB to compare].
    #[arg(long, value_name = "BYTES", value_parser = budget)]
    budget: Option<Bytes>,

    /// A tenant that has to go when the budget is full. The requests of a tenant are the same under
    /// each.
    #[arg(long, value_enum, default_value_t = Policy::Memcg)]
    pub(crate) policy: Policy,

    /// Under memcg, what a tenant keeps as long as others have something to give: a percentage of
    /// its fair share.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u64).range(..=100))]
    pub(crate) low: u64,

    /// Under memcg, from where on a tenant has to give first: a percentage of its fair share.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    pub(crate) soft: u64,

    /// Tenants that flood: each asks for keys of 4 KiB, none of them twice, and sends eight times
    /// as many requests as all others together. They are promised nothing [default: 0, and 1 to
    /// compare].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    noisy: Option<u16>,

    /// Run three times each tenant alone, then all of them under each policy beside those that
    /// flood; print one table.
    ///
    /// The tenants are the clusters that mostly read and whose working sets are known. Alone means:
    /// the whole budget, with no other tenant, and the very same requests. Caches are filled first,
    /// and the first quarter of the requests does not count.
    #[arg(long, conflicts_with_all = ["policy", "seconds"])]
    pub(crate) compare: bool,

    /// Worker threads, at most one for each tenant [default: the machine's].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Stop after this time [default: 8 without --requests].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Stop after this many requests, all tenants together [default to compare: 1800000 in each
    /// run].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// The seed of the requests; of the repeats of a comparison, the first.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// All tenants, not only the ten that hold most.
    #[arg(long)]
    pub(crate) all: bool,

    /// The report in JSON, sizes in bytes; nothing else is printed to stdout.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a chart of what the tenants hold over time; with --compare of the policies side by
    /// side.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Serve questions about the tenants at a Unix socket of that name while they run, and let this
    /// user set limits.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub(crate) serve: Option<PathBuf>,

    /// No progress bar and no live tables; there is no bar either where stderr is no terminal.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The way in which tenants share the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// The oldest entry of all goes: one LRU under one limit.
    Shared,
    /// The tenant's own: each is held to its fair share, whether or not others use theirs.
    Static,
    /// Groups under one limit, and a share for each: those above their part give first. A tenant
    /// that floods has the least share.
    Shares,
    /// Groups under one limit. Those above their soft limit give first, then those above their low.
    Memcg,
}

impl Policy {
    pub(crate) const ALL: [Self; 4] = [Self::Shared, Self::Static, Self::Shares, Self::Memcg];

    pub(crate) fn name(self) -> &'static str {
        ["shared", "static", "shares", "memcg"][self as usize]
    }
}

impl Args {
    pub(crate) fn budget(&self) -> Bytes {
        let default = if self.compare {
            BUDGET_COMPARED
        } else {
            BUDGET
        };
        self.budget.unwrap_or(default)
    }

    /// Requests of each run of a comparison.
    pub(crate) fn requests_compared(&self) -> u64 {
        self.requests.unwrap_or(REQUESTS_COMPARED)
    }

    /// Tenants that flood.
    pub(crate) fn noisy(&self) -> u16 {
        self.noisy.unwrap_or(self.compare.into())
    }

    /// As many workers as asked for, or as the machine runs at once.
    pub(crate) fn threads(&self) -> usize {
        self.threads
            .or_else(|| thread::available_parallelism().ok())
            .map_or(1, NonZeroUsize::get)
    }

    /// When the load ends, requests or none.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.seconds.or(self.requests.is_none().then_some(SECONDS))
    }

    /// True if there are live tables.
    pub(crate) fn is_live(&self) -> bool {
        !self.quiet && !self.json
    }

    /// True for the run whose every limit was chosen to be met, not a part or a variation of it.
    pub(crate) fn is_main_job(&self) -> bool {
        let is_whole =
            self.requests.is_none() && self.time() >= Some(SECONDS) && self.budget() == BUDGET;
        is_whole
            && self.noisy() == 0
            && self.policy == Policy::Memcg
            && (self.low, self.soft) == (90, 100)
    }
}

/// A budget of nothing would hold nothing, and its report would be of zeros.
fn budget(text: &str) -> Result<Bytes, String> {
    match text.parse() {
        Ok(Bytes(0)) => Err("expected more than 0 bytes".to_string()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("{error}")),
    }
}

/// Seconds with or without a fraction, more than none.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_string())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("expected more than 0 seconds".to_string()),
    }
}
