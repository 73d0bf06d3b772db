//! The command line, and the time of the run.

#![cfg(not(loom))]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use memcg::Bytes;
use memcg_bench_rows::{Bench, Choice, parse};

use super::policy::Variant;
use super::trace::Split;

/// Seconds of a request, and of a round of work for each word of a block.
const REQUEST: f64 = 0.3e-6;
const ROUND: f64 = 0.7e-6;

#[derive(Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) choice: Choice,
    /// The block trace of the jobs, gzipped CSV [default: block-cloudphysics-w106.csv.gz in the
    /// folder that MEMCG_TRACES names; without it a synthetic trace]
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    /// The share of its requests for the two groups
    #[arg(long, value_enum, default_value_t = Split::Alternate)]
    pub(crate) split: Split,
    /// Requests of it
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub(crate) requests: usize,
    /// Runs of each variant
    #[arg(long, default_value_t = 6)]
    pub(crate) runs: usize,
    /// Threads of each group
    #[arg(long, default_value_t = 2)]
    pub(crate) jobs: usize,
    /// The budget, in per cent of all blocks of both groups: the series' builds all but fitted, too
    #[arg(long, default_value_t = 95)]
    pub(crate) budget: u64,
    /// Work to read a block: rounds for each of its words
    #[arg(long, default_value_t = 16)]
    pub(crate) rounds: u32,
    /// stream: runs of each variant
    #[arg(long, default_value_t = 6)]
    pub(crate) stream_runs: usize,
    /// stream: the budget
    #[arg(long, default_value = "64MiB")]
    pub(crate) stream_budget: Bytes,
    /// stream: threads that write
    #[arg(long, default_value_t = 2)]
    pub(crate) stream_jobs: usize,
    /// stream: work to make a page
    #[arg(long, default_value_t = 4)]
    pub(crate) stream_rounds: u32,
    /// stream: bytes that the device writes in a second
    #[arg(long, default_value = "200MiB")]
    pub(crate) device: Bytes,
}

impl Options {
    pub(crate) fn from_args(bench: &Bench) -> Self {
        let options: Options = parse(bench);
        match (options.choice.is_trial(), options.choice.is_small()) {
            (true, _) => options.tiny(),
            (false, true) => options.quick(),
            (false, false) => options,
        }
    }

    /// A quarter of the requests, which bring half of the blocks, quickly read; the rounds that a
    /// verdict needs.
    fn quick(self) -> Self {
        Options {
            requests: self.requests.min(400_000),
            rounds: self.rounds.min(4),
            runs: self.runs.min(5),
            stream_runs: self.stream_runs.min(5),
            stream_budget: Bytes(self.stream_budget.0.min(16 << 20)),
            device: Bytes(self.device.0.max(400 << 20)),
            ..self
        }
    }

    fn tiny(self) -> Self {
        Options {
            requests: self.requests.min(20_000),
            runs: 1,
            rounds: 0,
            stream_runs: 1,
            stream_budget: Bytes(8 << 20),
            device: Bytes(2 << 30),
            ..self
        }
    }

    /// About what a table takes on two processors.
    pub(crate) fn takes(&self, table: &str) -> Duration {
        let variants = Variant::value_variants().len() as f64;
        let requests = self.requests.min(super::synthetic::REQUESTS) as f64;
        // Of a request, and of a block that is read, which is one in twenty.
        let run = requests * (REQUEST + f64::from(self.rounds) * ROUND / 20.0);
        let seconds = match table {
            super::JOBS => 2.0 * variants * (self.runs + 1) as f64 * run,
            super::BUDGETS_OF_JOBS => super::BUDGETS.len() as f64 * variants * run,
            super::STREAM => {
                let write = 4.0 * self.stream_budget.0 as f64 / self.device.0.max(1) as f64;
                variants * (self.stream_runs + 1) as f64 * write
            }
            _ => 1.0,
        };
        Duration::from_secs_f64(seconds)
    }
}
