//! Every figure that README gives of groups, with the machine that they belong to, and the goals.
//!
//! What depends on the memory of the process is measured in processes of its own; what is compared takes turns.

#![cfg(not(loom))]

mod align;
mod cycles;
mod footprint;
mod lives;

use std::env;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::common::alone;
use crate::common::goals::Goals;
use crate::common::host::describe;
use crate::common::rows::Medians;

/// The word that asks for this.
pub(crate) const WORD: &str = "figures";

/// Every figure that README gives of groups
#[derive(Parser)]
#[command(name = WORD)]
pub(crate) struct Options {
    /// Idle groups: how many are weighed, and how many the most siblings are
    #[arg(long, default_value_t = 1_000_000)]
    groups: u32,
    /// Lives whose memory is watched
    #[arg(long, default_value_t = 10_000_000)]
    cycles: u64,
    /// Turns of what is timed
    #[arg(long, default_value_t = 41)]
    turns: usize,
    /// Milliseconds of a slice of what is timed
    #[arg(long, default_value_t = 60)]
    slice: u64,
    /// Processes that are asked for one weight
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// A hundredth of it all: shows that it works, in seconds
    #[arg(long)]
    quick: bool,
    /// One part alone
    #[arg(long)]
    only: Option<Part>,
    /// Given by `cargo bench`; without it all is quick
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Bytes of an idle group
    Footprint,
    /// Time from create to release, beside few siblings and many
    Lives,
    /// Memory and barriers of many lives
    Cycles,
    /// Groups at whole cache lines, and packed
    Align,
}

impl Options {
    fn slice(&self) -> Duration {
        Duration::from_millis(self.slice)
    }

    /// `None` where the command line does not ask for figures.
    fn from_args() -> Option<Options> {
        let word = env::args().skip(1).find(|arg| !arg.starts_with('-'))?;
        if word != WORD {
            return None;
        }
        let mut options = Options::parse_from(env::args().filter(|arg| arg != WORD));
        if options.quick || !options.bench {
            options.groups = options.groups.min(10_000);
            options.cycles = options.cycles.min(100_000);
            (options.turns, options.slice, options.runs) = (options.turns.min(3), options.slice.min(5), 1);
        }
        Some(options)
    }
}

/// Whether this process is one of those, or is asked for them. Then it has done so.
pub(crate) fn run() -> bool {
    if let Some((what, args)) = alone::asked() {
        match what.as_str() {
            footprint::WHAT => footprint::here(&args),
            lives::WHAT => lives::here(&args),
            cycles::WHAT => cycles::here(&args),
            _ => panic!("nothing here is called {what}"),
        }
        return true;
    }
    let Some(options) = Options::from_args() else { return false };
    print(&options);
    true
}

fn print(options: &Options) {
    println!("memcg {} on {}\n", env!("CARGO_PKG_VERSION"), describe());
    let none = Medians::new();
    let mut goals = Goals::titled("goal", &none);
    let wants = |part| options.only.is_none_or(|only| only == part);
    if wants(Part::Footprint) {
        footprint::print(options, &mut goals);
    }
    if wants(Part::Lives) {
        lives::print(options, &mut goals);
    }
    if wants(Part::Cycles) {
        cycles::print(options, &mut goals);
    }
    if wants(Part::Align) {
        align::print(options);
    }
    goals.print();
}
