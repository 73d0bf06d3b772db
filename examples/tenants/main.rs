//! Several tenants' caches under one budget, each entry charged before its bytes are allocated.
//!
//! Every tenant replays a request trace through an LRU cache of real bytes. A cache charges each
//! entry to its own counter, all counters hang below one root, and the root's max is the budget:
//! what one tenant holds the others cannot have. A refused charge evicts the tenant's own oldest
//! entries and is tried again; what does not fit then passes through uncached.
//!
//! ```text
//! cargo run --release --example tenants                                # a generated load
//! cargo run --release --example tenants -- --trace a.csv.gz --trace b.csv --budget 1GiB
//! ```
//!
//! At the end each tenant's `live()` must be its cache's bytes, exactly, and `verify()` must hold.

mod args;
mod cache;
mod load;
mod replay;
mod report;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use memcg::{Busy, CounterConfig, Limit, PageCounter};
use thiserror::Error;

use crate::args::{Args, Format};
use crate::cache::{Cache, Corrupt};
use crate::replay::Tenant;
use crate::report::Report;
use crate::trace::{Trace, TraceError};

/// Why there is no report.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("the tenant's max was not accepted: {0}")]
    Busy(#[from] Busy),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("cannot print the report: {0}")]
    Print(#[from] io::Error),
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("tenants: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Reads or makes the traces, replays them, reports; `false` when the count does not add up.
fn run(args: &Args) -> Result<bool, Failure> {
    let traces = traces(args)?;
    let root = PageCounter::root(CounterConfig::new().batch(args.batch()).audit(args.audit).max(args.budget.as_u64()));
    let tenants = tenants(args, &root, traces)?;

    let threads = args.threads().min(tenants.len());
    let total = tenants.iter().map(Tenant::requests).sum();
    let progress = progress(args, total);
    let (tenants, elapsed) = replay::replay(tenants, threads, &progress)?;
    progress.finish_and_clear();

    let report = Report::gather(&root, tenants, threads, elapsed);
    print(&match args.format {
        Format::Table => report.table(),
        Format::Json => report.json(),
    })?;
    for fault in &report.faults {
        eprintln!("tenants: {fault}");
    }
    Ok(report.faults.is_empty())
}

/// The traces named on the command line, or a generated load where there is none.
fn traces(args: &Args) -> Result<Vec<Trace>, TraceError> {
    if args.traces.is_empty() {
        return Ok(load::generate(args.seed, args.requests));
    }
    let mut traces: Vec<Trace> = Vec::with_capacity(args.traces.len());
    for path in &args.traces {
        let mut trace = Trace::read(path, args.requests)?;
        let namesakes = traces.iter().filter(|other| other.file_name == trace.file_name).count();
        if namesakes > 0 {
            trace.name = format!("{}#{}", trace.name, namesakes + 1);
        }
        traces.push(trace);
    }
    Ok(traces)
}

/// One counter and one empty cache for each trace.
fn tenants(args: &Args, root: &PageCounter, traces: Vec<Trace>) -> Result<Vec<Tenant>, Busy> {
    let budget = args.budget.as_u64();
    let max = match args.tenant_max {
        Limit::Max => PageCounter::UNLIMITED,
        Limit::Bytes(bytes) => bytes,
        Limit::Percent(share) => share.of(budget),
    };
    let mut tenants = Vec::with_capacity(traces.len());
    for (index, trace) in traces.into_iter().enumerate() {
        let counter = root.child();
        counter.set_max(max)?;
        // The salt keeps equal keys of two tenants apart: an entry in the wrong cache shows.
        let cache = Cache::new(counter, max.min(budget), index as u64);
        tenants.push(Tenant::new(trace, cache));
    }
    Ok(tenants)
}

/// A bar on the terminal; `indicatif` itself hides it where stderr is none.
fn progress(args: &Args, total: u64) -> ProgressBar {
    if args.quiet {
        return ProgressBar::hidden();
    }
    let template = "{bar:40} {human_pos} of {human_len} requests, {eta} left";
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
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
