//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use memcg::{Bytes, Limit, OnFull};
use memcg_report::terminal;

use crate::form::Form;
use crate::policy::{Policy, Promise, Share};
use crate::setup::Rule;

/// Budgets where none is given: of the main job, and of a comparison, which is many runs.
const BUDGET: Bytes = Bytes(256 << 20);
const BUDGET_COMPARED: Bytes = Bytes(64 << 20);

/// Requests of each run of a comparison where their number is not given.
const REQUESTS_COMPARED: u64 = 1_800_000;

/// Below the options.
const EXAMPLES: &str = "\
Examples:
  tenants                                   the main job: ten seconds
  tenants --noisy 1 --policy shared         one LRU for all beside a flood
  tenants --compare --html compared.html    the policies side by side
  tenants --trace shop.csv --budget 64MiB   a trace of your own

Exit status: 0, or 1 where a check or a file failed, or 2 for bad arguments.";

/// The time that a request waits where no tenant says.
const WAIT: Duration = Duration::from_millis(100);

/// Length of the main job. With the warm-up before it and the checks after it: ten seconds.
const SECONDS_DEFAULT: Duration = Duration::from_secs(8);

/// A cache service with many tenants under one memory budget.
///
/// Without a trace the tenants are 53 production caches of Twitter. Prints what each tenant got,
/// and fails when a count does not add up at the end.
///
/// A tenant's fair share is its max, but no more than a level that is the same for all and makes the shares fill the
/// budget. Beside tenants that flood, the others' shares are three quarters of the budget, and those get the rest.
#[derive(Debug, Parser)]
#[command(name = "tenants", after_help = EXAMPLES, max_term_width = 80)]
pub(crate) struct Args {
    /// A trace to replay, gzipped or not: CSV with the head line `key,size`, both whole numbers,
    /// size in bytes. One tenant each, named after the file; may be given several times.
    #[arg(help_heading = "Tenants")]
    #[arg(long = "trace", value_name = "FILE")]
    pub(crate) traces: Vec<PathBuf>,

    /// Serve the Twitter clusters beside the traces.
    #[arg(help_heading = "Tenants")]
    #[arg(long)]
    clusters: bool,

    /// The most that all tenants together may hold [default: 256MiB, and 64MiB to compare].
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "BYTES", value_parser = budget)]
    budget: Option<Bytes>,

    /// The most that the tenant of a trace may hold: bytes, a percentage of the budget, or max.
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "LIMIT", default_value = "max", conflicts_with = "compare")]
    pub(crate) tenant_max: Limit,

    /// A tenant that has to go when the budget is full. The requests of a tenant are the same under each.
    #[arg(help_heading = "Limits")]
    #[arg(long, value_enum, default_value_t = Policy::Memcg)]
    pub(crate) policy: Policy,

    /// Under memcg and waiting, what a tenant keeps as long as others have something to give: a part of its fair share.
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "PERCENT", default_value = "90%", value_parser = Share::promised)]
    low: Share,

    /// Under memcg and waiting, from where on a tenant has to give first: a part of its fair share, more than 100% too,
    /// or max.
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    soft: Share,

    /// Under memcg, from where on a tenant's charges are slowed down: first it gives of its own, then it is delayed. A
    /// part of its fair share, or max [default: max].
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "PERCENT")]
    high: Option<Share>,

    /// Under waiting, how long a request waits for room at most, before it passes through uncached: 20ms, 1s
    /// [default: 100ms].
    #[arg(help_heading = "Limits")]
    #[arg(long, value_name = "TIME", value_parser = wait)]
    wait: Option<Duration>,

    /// Add tenants that flood: each scans keys of 4 KiB, none of them twice, and sends eight times as many requests as
    /// all others together. They are promised nothing [default: 0, and 1 to compare and to kill].
    #[arg(help_heading = "Tenants")]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    noisy: Option<u16>,

    /// Run three times each tenant alone, then all of them under each policy beside noisy ones; print one table.
    ///
    /// Without a trace the tenants are the clusters that mostly read and whose working sets are known. Their working
    /// sets together are 60 % of the budget, and their fair shares 75 %. Alone means: under one limit, the whole
    /// budget, with no other tenant, and the very same requests. Caches are filled first, and the first quarter of the
    /// requests does not count. A trace begins anew when it is over.
    #[arg(help_heading = "Other runs")]
    #[arg(long, conflicts_with_all = ["policy", "seconds", "live"])]
    pub(crate) compare: bool,

    /// Run the service without any limit, then under memcg and the budget, each in a memory control group of the
    /// operating system of its own, half again as large as the budget: the first is killed, the second is not.
    ///
    /// Both are sent the same requests, a flood of four times what the control group may hold unless --requests says
    /// otherwise. Where no control group can be made, as without permission, the run is skipped.
    #[arg(help_heading = "Other runs")]
    #[arg(long, conflicts_with_all = ["compare", "policy", "live"])]
    pub(crate) kill: bool,

    /// Which of the two this process is.
    #[arg(long, value_enum, hide = true, requires = "kill")]
    pub(crate) kill_form: Option<Form>,

    /// Worker threads, at most one for each tenant [default: the machine's].
    #[arg(help_heading = "Load and counters")]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Stop after this time [default: 8 with clusters or a flood and without --requests or --kill,
    /// else no limit].
    #[arg(help_heading = "Load and counters")]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Stop after this many requests, all tenants together; a trace stops at its end, too
    /// [default to compare: 1800000 in each run].
    #[arg(help_heading = "Load and counters")]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// The seed from which the requests are drawn; of the repeats of a comparison, the first.
    #[arg(help_heading = "Load and counters")]
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Bytes that a thread charges in advance.
    #[arg(help_heading = "Load and counters")]
    #[arg(long, value_name = "BYTES", default_value = "256KiB")]
    pub(crate) batch: Bytes,

    /// Charge every entry on the shared counters.
    #[arg(help_heading = "Load and counters")]
    #[arg(long, conflicts_with = "batch")]
    no_stock: bool,

    /// Keep an independent count for the verification at the end.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    #[arg(help_heading = "Load and counters")]
    #[arg(num_args = 0..=1, default_missing_value = "true")]
    pub(crate) audit: bool,

    /// The form of the report. In JSON and CSV nothing else is printed to stdout.
    #[arg(long, value_enum, default_value_t = Format::Text, help_heading = "The report")]
    pub(crate) format: Format,

    /// All tenants, not only the ten that hold most.
    #[arg(long, help_heading = "The report")]
    pub(crate) all: bool,

    /// Print the other measures and checks.
    #[arg(long, help_heading = "The report")]
    pub(crate) details: bool,

    /// Show a live table after this time. On a terminal it is drawn anew in its place; elsewhere the next ones follow
    /// after twice as long each time.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1.5", help_heading = "The report")]
    live: Duration,

    /// Write a page with charts: usage over time, hit ratio, and policies side by side with --compare.
    #[arg(long, value_name = "FILE", conflicts_with = "kill", help_heading = "The report")]
    pub(crate) html: Option<PathBuf>,

    /// Write the chart of the page's head alone, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with = "kill", help_heading = "The report")]
    pub(crate) svg: Option<PathBuf>,

    /// Columns of the report [default: the terminal's, or 80].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..), help_heading = "The report")]
    width: Option<u16>,

    /// Serve questions about the tenants at a Unix socket of that name while they run, and let this user set limits.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "kill"], help_heading = "The report")]
    pub(crate) serve: Option<PathBuf>,

    /// No progress bar and no live tables; there is no bar either where stderr is no terminal.
    #[arg(long, short, help_heading = "The report")]
    pub(crate) quiet: bool,
}

/// The readers of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// People: colours on a terminal, unless NO_COLOR is set.
    Text,
    /// Programs: sizes in bytes.
    Json,
    /// Programs, a row for each tenant, or for each policy and repeat: sizes in bytes.
    Csv,
}

impl Args {
    /// Of the command line; says what is wrong with it, and ends the program.
    pub(crate) fn get() -> Self {
        let args = Self::parse();
        let policies = |policy| args.compare || args.policy == policy;
        if args.wait.is_some() && (args.kill || !policies(Policy::Waiting)) {
            conflict("--wait is for --policy waiting and for --compare");
        }
        if (args.all || args.details) && (args.compare || args.kill) {
            conflict("--all and --details are for the job itself: leave them out with --compare and --kill");
        }
        if args.html.is_some() && args.html == args.svg {
            conflict("--html and --svg name the same file: give each one of its own");
        }
        if args.high.is_some() && !policies(Policy::Memcg) {
            conflict("--high is for --policy memcg, for --compare and for --kill");
        }
        args
    }

    /// True if the Twitter clusters are among the tenants.
    pub(crate) fn clusters(&self) -> bool {
        self.clusters || self.traces.is_empty()
    }

    pub(crate) fn budget(&self) -> Bytes {
        self.budget.unwrap_or(if self.compare { BUDGET_COMPARED } else { BUDGET })
    }

    /// Requests of each run of a comparison.
    pub(crate) fn requests_compared(&self) -> u64 {
        self.requests.unwrap_or(REQUESTS_COMPARED)
    }

    /// Tenants that flood.
    pub(crate) fn noisy(&self) -> u16 {
        self.noisy.unwrap_or((self.compare || self.kill).into())
    }

    pub(crate) fn promise(&self) -> Promise {
        Promise { low: self.low, soft: self.soft, high: self.high.unwrap_or(Promise::DEFAULT.high) }
    }

    /// The service under a policy.
    pub(crate) fn rule(&self, policy: Policy, seed: u64) -> Rule {
        Rule { policy, promise: self.promise(), wait: self.wait.unwrap_or(WAIT), seed }
    }

    /// The bytes that a thread charges in advance; 0 switches the stock off.
    pub(crate) fn batch(&self) -> Bytes {
        if self.no_stock { Bytes(0) } else { self.batch }
    }

    /// As many workers as asked for, or as the machine runs at once.
    pub(crate) fn threads(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// When the load ends, requests or none. The clusters' load has no end of its own, nor has a flood.
    pub(crate) fn time(&self) -> Option<Duration> {
        let endless = (self.clusters() || self.noisy() > 0) && self.requests.is_none() && !self.kill;
        self.seconds.or(endless.then_some(SECONDS_DEFAULT))
    }

    /// Columns of the report.
    pub(crate) fn columns(&self) -> usize {
        terminal::width(self.width)
    }

    /// When the first live table is due, if there is to be one.
    pub(crate) fn live(&self) -> Option<Duration> {
        let wanted = !self.quiet && self.format == Format::Text;
        wanted.then_some(self.live)
    }

    /// True if this is the run whose every limit was chosen to be met, not a part or a variation of it.
    pub(crate) fn is_main_job(&self) -> bool {
        let long_enough = self.time().is_some_and(|time| time >= SECONDS_DEFAULT);
        let is_whole = self.requests.is_none() && long_enough && self.budget() == BUDGET;
        let is_plain = self.traces.is_empty() && self.noisy.is_none() && self.policy == Policy::Memcg;
        is_whole && is_plain && self.promise() == Promise::DEFAULT
    }
}

fn conflict(message: &str) -> ! {
    Args::command().error(ErrorKind::ArgumentConflict, message).exit()
}

/// A budget of nothing would hold nothing, and its report would be of zeros.
fn budget(text: &str) -> Result<Bytes, String> {
    match text.parse() {
        Ok(Bytes(0)) => Err("expected more than 0 bytes".to_string()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("{error}")),
    }
}

/// As configurations write it, without the word before it.
fn wait(text: &str) -> Result<Duration, String> {
    match format!("wait({text})").parse() {
        Ok(OnFull::Wait(time)) => Ok(time),
        Ok(_) => Err("expected a time, as 20ms".to_string()),
        Err(error) => Err(format!("expected a time, as 20ms: {error}")),
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
