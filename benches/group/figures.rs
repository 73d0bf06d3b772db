//! Every figure that README gives of groups, with the machine that they belong to, and the goals.
//!
//! Figures that depend on the memory of the process are measured in processes of their own; figures
//! that are compared take turns.

#![cfg(not(loom))]

mod align;
mod cycles;
mod footprint;
mod lives;
mod pauses;

use std::time::{Duration, Instant};

use clap::Parser;
use memcg_bench_rows::{Chosen, Goals, Measured, Progress, RowOptions};

use super::BENCH;
use crate::common::alone;
use crate::common::host::describe;

/// The parts, which run only when a filter asks for them and for no row of criterion.
const FOOTPRINT: &str = "group/figures/footprint";
const LIVES: &str = "group/figures/lives";
const CYCLES: &str = "group/figures/cycles";
const ALIGN: &str = "group/figures/align";
const PAUSES: &str = "group/figures/pauses";

const PARTS: [&str; 5] = [FOOTPRINT, LIVES, CYCLES, ALIGN, PAUSES];

/// The arguments of the rows, and of the figures.
#[derive(Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) rows: RowOptions,
    /// figures: idle groups: how many are weighed, and how many the most siblings are
    #[arg(long, default_value_t = 1_000_000)]
    groups: u32,
    /// figures: lives whose memory is watched
    #[arg(long, default_value_t = 10_000_000)]
    cycles: u64,
    /// figures: turns of what is timed
    #[arg(long, default_value_t = 41)]
    turns: usize,
    /// figures: milliseconds of a slice of what is timed
    #[arg(long, default_value_t = 60)]
    slice: u64,
    /// figures: processes that are asked for one weight
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

impl Options {
    fn slice(&self) -> Duration {
        Duration::from_millis(self.slice)
    }

    /// A hundredth of it all, in seconds.
    fn small(&self) -> Options {
        Options {
            rows: self.rows.clone(),
            groups: self.groups.min(10_000),
            cycles: self.cycles.min(100_000),
            turns: self.turns.min(3),
            slice: self.slice.min(5),
            runs: 1,
        }
    }
}

/// True if this process is one of those that measure one thing alone. Then it has done so.
pub(crate) fn is_alone() -> bool {
    let Some((what, args)) = alone::asked() else {
        return false;
    };
    match what.as_str() {
        footprint::WHAT => footprint::here(&args),
        lives::WHAT => lives::here(&args),
        cycles::WHAT => cycles::here(&args),
        _ => panic!("nothing here is called {what}"),
    }
    true
}

/// True if figures are asked for, beside rows of these ids. Then they have been printed. Lists and
/// wrong filters are answered here, too, with the ids of both.
pub(crate) fn run(options: &Options, rows: Vec<String>) -> bool {
    let choice = &options.rows.choice;
    let parts = PARTS.map(str::to_owned);
    let chosen = choice.choose(BENCH.name, rows.iter().cloned().chain(parts).collect());
    if !choice.is_filtered() || rows.iter().any(|id| chosen.wants(id)) {
        return false;
    }
    if choice.is_small() {
        print(&options.small(), &chosen)
    } else {
        print(options, &chosen)
    }
    true
}

fn print(options: &Options, chosen: &Chosen) {
    let wants = |part| chosen.wants(part);
    let steps = chosen.ids().len();
    let mut progress = Progress::start(
        BENCH.name,
        &format!("{steps} of {} sets of figures", PARTS.len()),
        steps,
        takes(options, chosen),
    );
    println!("memcg {} on {}\n", env!("CARGO_PKG_VERSION"), describe());
    let measured = Measured {
        is_small: options.rows.choice.is_small(),
        ..Measured::default()
    };
    let mut goals = Goals::titled("goal", &measured);
    for part in PARTS.into_iter().filter(|part| wants(part)) {
        progress.next();
        match part {
            FOOTPRINT => footprint::print(options, &mut goals),
            LIVES => lives::print(options, &mut goals),
            CYCLES => cycles::print(options, &mut goals),
            PAUSES => pauses::print(options),
            _ => align::print(options),
        }
        progress.step();
    }
    goals.print();
}

/// The time of the chosen parts: by the clock where slices are timed, and from a hundredth where
/// work is fixed.
fn takes(options: &Options, chosen: &Chosen) -> Duration {
    let small = Options {
        groups: options.groups.div_ceil(100),
        cycles: options.cycles.div_ceil(100),
        ..options.small()
    };
    let of = |part: &str, takes: &dyn Fn() -> Duration| {
        if chosen.wants(part) {
            takes()
        } else {
            Duration::ZERO
        }
    };
    let timed = |run: &dyn Fn()| {
        let start = Instant::now();
        run();
        start.elapsed() * 100
    };
    let footprint = || timed(&|| footprint::once(&small)).mul_f64(options.runs as f64);
    of(FOOTPRINT, &footprint)
        + of(LIVES, &|| lives::takes(options))
        + of(CYCLES, &|| timed(&|| cycles::once(&small)))
        + of(ALIGN, &|| align::takes(options))
        + of(PAUSES, &|| pauses::takes(options))
}
