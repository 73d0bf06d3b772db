//! A cache service: many tenants under one memory budget, every entry charged before its bytes are allocated.
//!
//! Each tenant is a cache of a group of its own; all groups hang below one root, and the root's max
//! is the budget: what one tenant holds the others cannot have. Where a charge does not fit, caches are
//! asked to evict: first those above their soft limits, then those above their low ones. What does not fit
//! after all passes through uncached. Under `--policy waiting` a request waits in line instead, while another thread
//! evicts.
//!
//! ```text
//! cargo run --release --example tenants                                # 53 caches of Twitter, ten seconds
//! cargo run --release --example tenants -- --trace a.csv.gz --trace b.csv --budget 1GiB
//! cargo run --release --example tenants -- --trace a.csv.gz --clusters # both
//! cargo run --release --example tenants -- --compare           # beside one LRU, and fixed splits
//! cargo run --release --example tenants -- --kill              # beside no limit, where that is deadly
//! ```
//!
//! Tenants count bytes, look-ups, hits and evictions in the statistics of their groups. While it runs a live table
//! shows the tenants that hold most, each figure with the error that it may have.
//!
//! `--kill` shows what a limit is for: the same flood, with no limit and with one, in a control group of the
//! operating system each. One of the two is killed.
//!
//! `--policy` has the same requests served in other ways, `--noisy` adds tenants that flood.
//!
//! At the end each tenant's `live()` must be its cache's bytes, exactly, and `verify()` must hold. No live figure
//! may have been further off than it said, and the exact statistics must be the service's own counts.

mod agree;
mod args;
mod cache;
mod clusters;
mod compare;
mod control_group;
mod entry;
mod evictor;
mod exact;
mod form;
mod hierarchy;
mod history;
mod items;
mod job;
mod kill;
mod live;
mod load;
mod lru;
mod memory;
mod plan;
mod policy;
mod print;
mod probe;
mod report;
mod sampler;
mod scene;
mod service;
mod setup;
mod shelf;
mod tabulate;
mod trace;
mod waits;
mod work;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;

use crate::args::Args;
use crate::cache::Corrupt;
use crate::kill::KillError;
use crate::probe::ProbeError;
use crate::scene::Scene;
use crate::setup::SetupError;

/// Why there is no report.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("the groups for the cost of a charge were not accepted: {0}")]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error(transparent)]
    Kill(#[from] KillError),
    #[error("cannot print the report: {0}")]
    Print(#[from] io::Error),
    #[cfg(feature = "serve")]
    #[error("{}: cannot serve a socket there: {fault}", path.display())]
    Serve { path: PathBuf, fault: io::Error },
    #[error("{}: cannot write it: {fault}; name a file in a folder that exists and may be written", path.display())]
    Write { path: PathBuf, fault: io::Error },
}

fn main() -> ExitCode {
    memory::one_heap();
    match run(&Args::get()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("tenants: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the job, the comparison or the kill; `false` when a count does not add up, or a form did not end as it must.
fn run(args: &Args) -> Result<bool, Failure> {
    args.html.iter().chain(&args.svg).try_for_each(|path| writable(path))?;
    let faults = match (args.kill, args.kill_form) {
        (true, Some(form)) => form::run(args, form)?,
        (true, None) => kill::run(args)?,
        _ if args.compare => compare::run(args, &Scene::new(args)?)?,
        _ => job::run(args, &Scene::new(args)?)?,
    };
    for fault in &faults {
        eprintln!("tenants: {fault}");
    }
    Ok(faults.is_empty())
}

/// Writes a file that an argument names.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|fault| Failure::Write { path: path.to_owned(), fault })
}

/// Before a run, that what it draws can be written: a run takes long.
fn writable(path: &Path) -> Result<(), Failure> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|fault| Failure::Write { path: path.to_owned(), fault })
}

/// Prints to stdout; a reader that has closed the pipe has seen what it wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
