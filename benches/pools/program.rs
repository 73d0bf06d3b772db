//! Options, and the order of the tables.

#![cfg(not(loom))]

mod events;
mod machine;
mod series;
mod sizes;
mod weigh;

use clap::Parser;

use crate::common::alone;
use crate::common::host::describe;

/// What groups and their parts ask for, and what they are given
#[derive(Parser)]
struct Options {
    /// Groups that are weighed
    #[arg(long, default_value_t = 100_000)]
    groups: u32,
    /// Processes that are asked for one weight
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Given by `cargo bench`; without it few groups show that the program works
    #[arg(long, hide = true)]
    bench: bool,
}

pub(crate) fn main() {
    if let Some((what, args)) = alone::asked() {
        assert_eq!(what, weigh::WHAT, "nothing else is measured alone here");
        return weigh::here(&args);
    }
    let mut options = Options::parse();
    if !options.bench {
        (options.groups, options.runs) = (options.groups.min(1_000), 1);
    }
    println!("memcg {} on {}\nThe series: {}.\n", env!("CARGO_PKG_VERSION"), describe(), series::SOURCE);
    events::listen();
    let machines = machine::NODES.map(sizes::trace);
    sizes::print(&machines);
    weigh::print(&machines, options.groups, options.runs);
}
