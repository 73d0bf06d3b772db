//! The arguments.

#![cfg(not(loom))]

use clap::Parser;
use memcg_bench_rows::{Bench, Choice, Chosen, parse};

pub(crate) const BENCH: Bench = Bench {
    name: "pools",
    about: "What groups and their parts ask for, and what they are given.\n\
            Rows: `sizes` from the events of the pools, `weights` from what is resident.",
};

pub(crate) const SIZES: &str = "pools/sizes";
pub(crate) const WEIGHTS: &str = "pools/weights";

#[derive(Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Groups that are weighed
    #[arg(long, default_value_t = 100_000)]
    pub(crate) groups: u32,
    /// Processes that are asked for one weight
    #[arg(long, default_value_t = 3)]
    pub(crate) runs: usize,
}

impl Options {
    /// Reads the command line.
    pub(crate) fn read() -> Options {
        let mut options: Options = parse(&BENCH);
        if options.choice.is_small() {
            options.groups = options.groups.min(1_000);
            options.runs = 1;
        }
        options
    }

    pub(crate) fn chosen(&self) -> Chosen {
        self.choice
            .choose(BENCH.name, [SIZES, WEIGHTS].map(str::to_owned).into())
    }
}
