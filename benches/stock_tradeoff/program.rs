//! Options, and the order of the tables.

#![cfg(not(loom))]

mod curve;
mod idle;
mod points;
mod resident;
mod typical;
mod worst;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, CounterConfig};
use memcg_bench_rows::{Bench, Choice, Progress, parse};

use self::idle::Scene;
use self::typical::Typical;
use crate::common::BATCH;
use crate::common::claims::Claims;
use crate::common::slots7::SLOTS;

/// A unit is a page here, as it is in the kernel.
const PAGE: u64 = 4_096;

/// The library's share of the root's max for stranded credit, when nothing else is said.
const BUDGET_SHARE: u64 = 16;

const BENCH: Bench = Bench {
    name: "stock_tradeoff",
    about: "What a stock for each counter strands, beside seven slots for each thread.\n\
            Rows: `curve` of cost against what is stranded, also as a picture; `stranded` for each number of counters;\n\
            `tables` of slots in memory; `sleepers`, what threads that sleep leave in usage; `points` of the patch series.",
};

const CURVE: &str = "stock_tradeoff/curve";
const STRANDED: &str = "stock_tradeoff/stranded";
const TABLES: &str = "stock_tradeoff/tables";
const SLEEPERS: &str = "stock_tradeoff/sleepers";
const POINTS: &str = "stock_tradeoff/points";

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Threads that charge
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The limit of the root
    #[arg(long, default_value = "64GiB")]
    max: Bytes,
    /// The time that the threads idle before credit is read again
    #[arg(long, default_value_t = 1_000)]
    idle_ms: u64,
    /// Measure one table in this process: THREADS COUNTERS
    #[arg(long, hide = true, num_args = 2)]
    resident: Option<Vec<usize>>,
}

/// The settings of all measurements.
pub(crate) struct Setup {
    threads: usize,
    /// Units.
    max: u64,
    idle: Duration,
    /// A task costs microseconds.
    tasks: usize,
}

impl Setup {
    fn config(&self) -> CounterConfig {
        CounterConfig::new().max(self.max)
    }

    fn unstocked(&self) -> CounterConfig {
        self.config().batch(0)
    }

    /// The formula for seven slots.
    fn bound_slots7(&self, _counters: usize) -> u64 {
        self.threads as u64 * SLOTS as u64 * BATCH
    }

    /// The formula for ours, before the budget cuts it.
    fn bound_uncut(&self, counters: usize) -> u64 {
        self.threads as u64 * counters as u64 * 2 * BATCH
    }

    fn bound_stock(&self, counters: usize) -> u64 {
        self.bound_uncut(counters).min(self.max / BUDGET_SHARE)
    }

    fn is_reached(&self, counters: usize, stocked: u64) -> bool {
        stocked as f64 >= self.bound_stock(counters) as f64 * REACHED
    }

    fn share(&self, units: u64) -> f64 {
        units as f64 / self.max as f64 * 100.0
    }

    fn cell(&self, units: u64) -> String {
        format!("{} ({:.3} %)", Bytes(units * PAGE), self.share(units))
    }
}

/// One line of the first table, for both policies.
pub(crate) struct Line {
    counters: usize,
    worst_slots7: u64,
    worst_stock: u64,
    typical_slots7: Typical,
    typical_stock: Typical,
}

pub(crate) fn main() -> ExitCode {
    let mut options: Options = parse(&BENCH);
    if let Some(resident) = &options.resident {
        return resident::measure_here(resident[0], resident[1]);
    }
    let mut counts = vec![1, 7, 8, 32, 1_000, 50_000];
    let mut tables = vec![(2, 1), (2, 50_000), (1_000, 1_000)];
    let mut tasks = 100_000;
    let mut scene = Scene {
        threads: 1_000,
        groups: 100,
    };
    let chosen = options.choice.choose(
        BENCH.name,
        [CURVE, STRANDED, TABLES, SLEEPERS, POINTS]
            .map(str::to_owned)
            .into(),
    );
    if options.choice.is_small() {
        counts.truncate(3);
        tables.truncate(1);
        tasks = 1_000;
        scene = Scene {
            threads: 20,
            groups: 10,
        };
        options.idle_ms = options.idle_ms.min(10);
    }
    let setup = Setup {
        threads: options.threads.max(1),
        max: (options.max.as_u64() / PAGE).max(1),
        idle: Duration::from_millis(options.idle_ms),
        tasks,
    };
    println!(
        "{} threads, max {}, batch {}; a unit is a page of {}\n\
         slots7: threads x {SLOTS} slots x 1 batch. stock: threads x counters x 2 batches, at most max / {BUDGET_SHARE}.\n",
        setup.threads,
        Bytes(setup.max * PAGE),
        Bytes(BATCH * PAGE),
        Bytes(PAGE),
    );
    if chosen.wants(CURVE)
        && let Err(error) = curve(&setup, options.choice.is_small())
    {
        eprintln!("{}: {error}", BENCH.name);
        return ExitCode::FAILURE;
    }
    let needs_lines = chosen.wants(STRANDED) || chosen.wants(POINTS);
    let counts = if needs_lines { counts } else { Vec::new() };
    let lines = lines(&setup, counts);
    let mut claims = Claims::new();
    if chosen.wants(STRANDED) {
        print(&setup, &lines);
        bound(&setup, &lines, &mut claims);
    }
    if chosen.wants(TABLES) {
        resident::print(&tables, &mut claims);
    }
    if chosen.wants(SLEEPERS) {
        idle::print(scene);
    }
    if chosen.wants(POINTS) {
        points::print(&setup, &lines, &mut claims);
    }
    println!();
    claims.print();
    ExitCode::SUCCESS
}

/// The curve, with its own bar.
fn curve(setup: &Setup, is_small: bool) -> Result<(), String> {
    let scale = curve::Scale::new(is_small);
    let steps = curve::COUNTERS.len();
    let what = format!("the curve over {steps} numbers of counters");
    let mut progress = Progress::bar(BENCH.name, &what, steps, scale.takes());
    curve::run(setup, scale, || progress.step())
}

/// All numbers of counters. What one takes is most of all the wait at its end, so the first shows
/// what all take.
fn lines(setup: &Setup, counts: Vec<usize>) -> Vec<Line> {
    let start = Instant::now();
    let mut lines: Vec<Line> = counts
        .first()
        .map(|&counters| line(setup, counters))
        .into_iter()
        .collect();
    if lines.is_empty() {
        return lines;
    }
    let what = format!("{} numbers of counters", counts.len());
    let mut progress = Progress::bar(
        BENCH.name,
        &what,
        counts.len(),
        start.elapsed() * counts.len() as u32,
    );
    for counters in counts.into_iter().skip(1) {
        progress.step();
        lines.push(line(setup, counters));
    }
    lines
}

fn line(setup: &Setup, counters: usize) -> Line {
    Line {
        counters,
        worst_slots7: worst::slots7(setup, counters),
        worst_stock: worst_stock(setup, counters),
        typical_slots7: typical::slots7(setup, counters),
        typical_stock: typical::stock(setup, counters),
    }
}

/// A stock that has just been closed by a margin strands nothing, so a few of a thousand are
/// missing now and then.
const REACHED: f64 = 0.9;

const TRIES_MAX: usize = 5;

/// The worst of some runs, mostly the first. Where the machine lets a thread stand still, its credit
/// goes back as any that is idle, and the run is not the worst that there is.
fn worst_stock(setup: &Setup, counters: usize) -> u64 {
    let mut worst = 0;
    for _ in 0..TRIES_MAX {
        worst = worst.max(worst::stock(setup, counters));
        if setup.is_reached(counters, worst) {
            break;
        }
    }
    worst
}

/// The stranded credit grows with the counters, where seven slots hold the same for any number of
/// them.
fn bound(setup: &Setup, lines: &[Line], claims: &mut Claims) {
    let Some(most) = lines.iter().max_by_key(|line| line.counters) else {
        return;
    };
    let grows = lines
        .windows(2)
        .all(|two| two[0].worst_stock <= two[1].worst_stock);
    let reached = lines
        .iter()
        .all(|line| setup.is_reached(line.counters, line.worst_stock));
    let slots7 = lines
        .iter()
        .all(|line| line.worst_slots7 <= setup.bound_slots7(line.counters));
    claims.holds(
        "stock-6",
        grows && reached && slots7 && most.worst_stock > most.worst_slots7,
        format_args!(
            "{} counters and {} threads strand {}, seven slots {}",
            most.counters,
            setup.threads,
            Bytes(most.worst_stock * PAGE),
            Bytes(most.worst_slots7 * PAGE)
        ),
    );
}

fn print(setup: &Setup, lines: &[Line]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "counters".to_owned(),
        "policy".to_owned(),
        "bound (of max)".to_owned(),
        "worst: every thread, every counter".to_owned(),
        "typical: work stealing, peak".to_owned(),
        format!("after {} ms idle", setup.idle.as_millis()),
    ]);
    for line in lines {
        let policies = [
            (
                "slots7",
                setup.bound_slots7(line.counters),
                line.worst_slots7,
                &line.typical_slots7,
            ),
            (
                "stock",
                setup.bound_stock(line.counters),
                line.worst_stock,
                &line.typical_stock,
            ),
        ];
        for (name, bound, worst, typical) in policies {
            table.add_row([
                line.counters.to_string(),
                name.to_owned(),
                setup.cell(bound),
                setup.cell(worst),
                setup.cell(typical.peak),
                setup.cell(typical.idle),
            ]);
            assert!(
                worst <= bound,
                "{name}: {worst} units stocked, above the bound of {bound}"
            );
        }
    }
    println!("{}\n", table.trim_fmt());
}
