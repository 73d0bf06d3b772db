//! Two tenants on a cluster of Ballista: a scheduler and two executors as processes of this
//! machine, with tables of TPC-H. First with the pools that Ballista gives its tasks, then with
//! groups.
//!
//! ```text
//! cargo run --release --manifest-path crates/Cargo.toml -p memcg-examples-ballista         both, some minutes
//! ... -- --only groups                                                                     one of them
//! ... -- --quick                                                                           small tables, no limit
//! ```
//!
//! `gold` asks three short queries in turns, a task for each. One of them joins, and a join cannot
//! spill. `heavy` runs two jobs over all rows, again and again: one groups them and can spill, one
//! has a window over all rows, which DataFusion keeps in memory that it reserves nowhere.
//!
//! Each executor is in a control group of the system with a hard limit, where the system lets the
//! program make one: the kernel kills an executor that takes more. The program fails where, with
//! groups, an executor dies or a query of `gold` is not answered.

mod control_group;
mod data;
mod load;
mod process;
mod report;
mod roles;

use std::alloc::System;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};
use memcg::Bytes;
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc};
use tempfile::TempDir;

use crate::load::Outcome;
use crate::process::Cluster;

/// In all processes, under both policies. Without a group it charges nothing.
#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);

/// The way in which the tasks of an executor share its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Sharing {
    /// Ballista's own: each task has a pool of its slot's share.
    Pools,
    /// One tree for all tasks.
    Groups,
}

#[derive(Clone, Parser)]
#[command(about = "Two tenants on a cluster of Ballista, with its own pools and with groups")]
struct Options {
    /// TPC-H's scale factor: 1 has 6 million rows in its largest table
    #[arg(long, default_value_t = 0.2, value_parser = scale)]
    scale: f64,
    /// The limit of each executor's control group
    #[arg(long, default_value = "256MiB", value_parser = limit)]
    limit: Bytes,
    /// The number of times that gold asks its three queries: 3 times, or once with --quick
    #[arg(long, value_parser = value_parser!(u32).range(1..=1_000_000))]
    rounds: Option<u32>,
    /// Seconds that a query may take
    #[arg(long, default_value_t = 120, value_parser = value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// Only one of the two
    #[arg(long)]
    only: Option<Sharing>,
    /// Small tables, one round, and no control groups: it shows that all works, and compares
    /// nothing
    #[arg(long, conflicts_with_all = ["scale", "limit"])]
    quick: bool,
}

impl Options {
    fn scale(&self) -> f64 {
        if self.quick { 0.01 } else { self.scale }
    }

    fn rounds(&self) -> usize {
        self.rounds
            .map_or(if self.quick { 1 } else { 3 }, |rounds| rounds as usize)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

fn scale(text: &str) -> Result<f64, &'static str> {
    text.parse()
        .ok()
        .filter(|scale| (0.001..=10.0).contains(scale))
        .ok_or("expected a number from 0.001 to 10")
}

fn limit(text: &str) -> Result<Bytes, String> {
    match text.parse() {
        Ok(limit) if limit >= Bytes(64 << 20) => Ok(limit),
        Ok(_) => Err(
            "expected at least 64 MiB: an executor takes some 40 before its first task".to_string(),
        ),
        Err(error) => Err(format!("{error}")),
    }
}

fn main() -> ExitCode {
    let done = match process::role() {
        Some(role) => roles::run(&role).map(|()| true),
        None => run(Options::parse()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // Told to end, it drops what it has made: processes, control groups, files.
    runtime.block_on(async {
        tokio::select! {
            done = compare(&options) => done,
            told = told_to_end() => Err(told.into()),
        }
    })
}

async fn told_to_end() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    }
}

/// Returns whether it went with groups as it should.
async fn compare(options: &Options) -> Result<bool, Box<dyn Error>> {
    let tables = TempDir::new()?;
    eprintln!("writing the tables of TPC-H at scale {}", options.scale());
    data::write(options.scale(), tables.path()).await?;
    let mut outcomes: Vec<(Sharing, Outcome)> = Vec::new();
    for sharing in [Sharing::Pools, Sharing::Groups] {
        if options.only.is_some_and(|only| only != sharing) {
            continue;
        }
        eprintln!("running with {}", report::name(sharing));
        let mut cluster = Cluster::start(sharing, options).await?;
        let outcome = load::run(&mut cluster, tables.path(), options).await?;
        outcomes.push((sharing, outcome));
    }
    print!("{}", report::table(options, &outcomes));
    Ok(outcomes
        .iter()
        .all(|(sharing, outcome)| *sharing == Sharing::Pools || outcome.is_as_it_should_be()))
}
