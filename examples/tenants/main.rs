//! A cache service: many tenants under one memory budget, every entry charged before its bytes are allocated.
//!
//! Each tenant is a cache of a group of its own; all groups hang below one root, and the root's max
//! is the budget: what one tenant holds the others cannot have. A refused charge makes old entries
//! go (`service` says whose) and is tried again; what does not fit then passes through uncached.
//!
//! ```text
//! cargo run --release --example tenants                                # 53 caches of Twitter, ten seconds
//! cargo run --release --example tenants -- --trace a.csv.gz --trace b.csv --budget 1GiB
//! cargo run --release --example tenants -- --trace a.csv.gz --clusters # both
//! ```
//!
//! Tenants count bytes, look-ups, hits and evictions in the statistics of their groups. While it runs a live table shows
//! those who hold most, each figure with the error that it may have.
//!
//! At the end each tenant's `live()` must be its cache's bytes, exactly, and `verify()` must hold. No live figure
//! may have been further off than it said, and the exact statistics must be the service's own counts.

mod agree;
mod args;
mod cache;
mod clusters;
mod entry;
mod exact;
mod items;
mod live;
mod load;
mod lru;
mod memory;
mod plan;
mod print;
mod probe;
mod report;
mod sampler;
mod service;
mod setup;
mod trace;
mod work;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use thiserror::Error;

use crate::args::{Args, Format};
use crate::cache::Corrupt;
use crate::live::{Live, Looks};
use crate::probe::{Probe, ProbeError};
use crate::report::{Measured, Report};
use crate::sampler::{End, Samples};
use crate::setup::{Setup, SetupError};
use crate::work::{Done, Extent, Work};

/// Why there is no report.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("the groups for the cost of a charge were not accepted: {0}")]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("cannot print the report: {0}")]
    Print(#[from] io::Error),
}

fn main() -> ExitCode {
    memory::one_heap();
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("tenants: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Sets up, serves, reports; `false` when the count does not add up.
fn run(args: &Args) -> Result<bool, Failure> {
    let setup = Setup::new(args)?;
    let probe = Probe::new(args.batch)?;
    let threads = args.threads().min(setup.service.tenants.len());
    let extent = Extent { threads, time: args.time(), requests: args.requests, seed: args.seed };
    let work = Work {
        service: &setup.service,
        probe: &probe,
        extent,
        arrivals: setup.arrivals.clone(),
        taken: AtomicU64::new(0),
        started: OnceLock::new(),
        broken: AtomicBool::new(false),
    };

    let rss_before = memory::resident();
    let (done, samples, looks) = watched(args, &setup, &work)?;
    let measured = Measured { done, samples, looks, rss_before };
    let setting = setup.setting(threads, args.batch());
    let mut report = Report::gather(setting, &setup, &probe, measured);
    if args.is_main_job() {
        report.expect_main_job();
    }
    print(&match args.format {
        Format::Table => report.table(),
        Format::Json => report.json(),
    })?;
    for fault in &report.faults {
        eprintln!("tenants: {fault}");
    }
    Ok(report.faults.is_empty())
}

/// Warms up and serves, while another thread looks at the limits and the statistics and moves the bar.
fn watched(args: &Args, setup: &Setup, work: &Work<'_>) -> Result<(Done, Samples, Looks), Corrupt> {
    let groups: Vec<_> = setup.groups();
    let (end, progress) = (AtomicBool::new(false), Progress::new(args, setup.requests(args.requests)));
    let mut live = Live::new(&setup.service, setup.runtime.root(), setup.items, args.live());
    let mut tick = || {
        if let Some(table) = live.look(work.started.get().map(Instant::elapsed)) {
            // Who cannot print it says so when it comes to the report.
            progress.bar.suspend(|| drop(print(&table)));
        }
        progress.show(work);
    };
    let (done, samples) = thread::scope(|scope| {
        let sampler = scope.spawn(|| sampler::sample(&groups, &end, &mut tick));
        let running = End(&end);
        work.warm_up(&setup.largest_first());
        let done = work.serve();
        drop(running);
        let samples = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        progress.bar.finish_and_clear();
        (done, samples)
    });
    Ok((done?, samples, live.into_looks()))
}

/// How far it is.
struct Progress {
    bar: ProgressBar,
    /// Requests that there will be; `None`: the time tells.
    requests: Option<u64>,
}

impl Progress {
    /// A bar on the terminal; `indicatif` itself hides it where stderr is none.
    fn new(args: &Args, requests: Option<u64>) -> Self {
        let time = args.time().map_or(0, |time| time.as_millis() as u64);
        let template = match requests {
            Some(_) => "{bar:40} {human_pos} of {human_len} requests, {eta} left",
            None => "{bar:40} {eta} left",
        };
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(requests.unwrap_or(time)) };
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self { bar, requests }
    }

    fn show(&self, work: &Work<'_>) {
        let at = match self.requests {
            Some(all) => work.taken.load(Ordering::Relaxed).min(all),
            None => work.started.get().map_or(0, |started| started.elapsed().as_millis() as u64),
        };
        self.bar.set_position(at);
    }
}

/// Prints to stdout; a reader that has closed the pipe has seen what it wanted.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
