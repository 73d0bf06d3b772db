//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;

use clap::{ArgAction, Parser, ValueEnum};
use memcg::{Bytes, Limit};

/// Replays request traces through LRU caches, one tenant each, under one memory budget.
///
/// Prints what each tenant got, and fails when a count does not add up at the end.
#[derive(Debug, Parser)]
#[command(name = "tenants")]
pub(crate) struct Args {
    /// A trace to replay, gzipped or not: CSV with the head line `key,size`, both whole numbers,
    /// size in bytes. One tenant each, named after the file; may be given several times. Without
    /// a trace, a Zipf load is generated.
    #[arg(long = "trace", value_name = "FILE")]
    pub(crate) traces: Vec<PathBuf>,

    /// What all tenants together may hold.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) budget: Bytes,

    /// What one tenant may hold: bytes, a percentage of the budget, or max.
    #[arg(long, value_name = "LIMIT", default_value = "max")]
    pub(crate) tenant_max: Limit,

    /// Worker threads, at most one for each tenant [default: the machine's].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Requests of each tenant to replay [default: the whole trace, 400,000 when generated].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// What the generated load is drawn from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Bytes that a thread charges in advance.
    #[arg(long, value_name = "BYTES", default_value = "256KiB")]
    batch: Bytes,

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

    /// No progress bar; there is none either where stderr is no terminal.
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
    /// Units in a batch; 0 switches the stock off.
    pub(crate) fn batch(&self) -> u64 {
        if self.no_stock { 0 } else { self.batch.as_u64() }
    }

    /// As many workers as asked for, or as the machine runs at once.
    pub(crate) fn threads(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }
}
