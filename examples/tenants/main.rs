//! A cache service: 53 tenants under one memory budget, every entry charged before its bytes are
//! allocated.
//!
//! Each tenant is a cache with a group of its own. All groups hang below one root, whose max is the
//! budget: what one tenant holds the others cannot have. If a charge does not fit, caches are asked
//! to evict: first those above their soft limits, then those above their low ones. An entry that
//! does not fit after all passes through uncached.
//!
//! ```text
//! cargo run --release --example tenants                        # the main job: ten seconds
//! cargo run --release --example tenants -- --noisy 1           # beside a tenant that floods
//! cargo run --release --example tenants -- --compare           # beside one LRU for all, and fixed splits
//! ```
//!
//! At the end each tenant's `live()` must be its cache's bytes, exactly, `verify()` must hold, the
//! exact statistics must be the caches' own counts, and resident memory must have grown by what is
//! charged.

mod args;
mod cache;
mod clusters;
mod compare;
mod entry;
mod job;
mod load;
mod memory;
mod plan;
mod report;
mod scene;
mod service;
mod setup;
mod shelf;
mod work;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use thiserror::Error;

use crate::args::Args;
use crate::scene::Scene;
use crate::setup::SetupError;

/// The reason that there is no report.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Setup(#[from] SetupError),
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
    let args = Args::parse();
    let run = || {
        if args.compare {
            compare::run(&args, &Scene::new(&args)?)
        } else {
            job::run(&args, &Scene::new(&args)?)
        }
    };
    match run() {
        Ok(faults) => {
            faults
                .iter()
                .for_each(|fault| eprintln!("tenants: {fault}"));
            if faults.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(failure) => {
            eprintln!("tenants: {failure}");
            ExitCode::FAILURE
        }
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
