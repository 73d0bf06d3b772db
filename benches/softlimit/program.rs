//! Options, and the order of the tables.

#![cfg(not(loom))]

mod cache;
mod device;
mod jobs;
mod lru;
mod policy;
mod proportion;
mod report;
mod scene;
mod series;
mod stream;
mod system;
mod trace;
mod tree;

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::Bytes;
use memcg_bench_rows::{Bench, Choice, Chosen, Goals, Measured, parse};

use self::jobs::Work;
use self::lru::PAGE;
use self::policy::Variant;
use self::report::{Of, Runs};
use self::scene::Run;
use self::series::Setup;
use self::stream::Stream;
use self::trace::Split;
use crate::common::clock;

/// Budgets in per cent of all blocks, for the table of refaults by budget.
const BUDGETS: [u64; 6] = [99, 95, 90, 80, 70, 50];

/// Refaults with soft limit 0, in per cent of base's.
const REFAULTS_MAX: f64 = 5.0;

/// The stream's time, in per cent of base's.
const STREAM_ELAPSED_MAX: f64 = 100.0;

const EVICTED_MAX: f64 = 1.1;

const BENCH: Bench = Bench {
    name: "softlimit",
    about: "The tables of the soft limit: two groups of jobs, refaults by budget, a stream, and what is in proportion.",
};

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    choice: Choice,
    /// The block trace of the jobs [default: in the folder that MEMCG_TRACES names]
    #[arg(long)]
    trace: Option<PathBuf>,
    /// How its requests are shared by the two groups
    #[arg(long, value_enum, default_value_t = Split::Alternate)]
    split: Split,
    /// Requests of it
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    requests: usize,
    /// Runs of each variant
    #[arg(long, default_value_t = 6)]
    runs: usize,
    /// Threads of each group
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The budget, in per cent of all blocks of both groups: the series' builds all but fitted, too
    #[arg(long, default_value_t = 95)]
    budget: u64,
    /// Work to read a block: rounds for each of its words
    #[arg(long, default_value_t = 16)]
    rounds: u32,
    /// stream: runs of each variant
    #[arg(long, default_value_t = 3)]
    stream_runs: usize,
    /// stream: the budget
    #[arg(long, default_value = "64MiB")]
    stream_budget: Bytes,
    /// stream: threads that write
    #[arg(long, default_value_t = 2)]
    stream_jobs: usize,
    /// stream: work to make a page
    #[arg(long, default_value_t = 4)]
    stream_rounds: u32,
    /// stream: bytes that the device writes in a second
    #[arg(long, default_value = "200MiB")]
    device: Bytes,
}

/// The tables, each a row.
const JOBS: &str = "softlimit/jobs";
const BUDGETS_OF_JOBS: &str = "softlimit/budgets";
const STREAM: &str = "softlimit/stream";
const PROPORTION: &str = "softlimit/proportion";

impl Options {
    fn small(self) -> Self {
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
}

pub(crate) fn main() {
    let options: Options = parse(&BENCH);
    let options = if options.choice.is_small() { options.small() } else { options };
    let ids = [JOBS, BUDGETS_OF_JOBS, STREAM, PROPORTION].map(str::to_owned);
    let chosen = options.choice.choose(BENCH.name, ids.into());
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    println!(
        "{processors} processors; pages of {PAGE} bytes. Averages within one std of base are noise, and called so.\n"
    );
    let (start, others) = (Instant::now(), clock::others());
    let no_rows = Measured { is_small: options.choice.is_small(), ..Measured::default() };
    let mut goals = Goals::titled("goal (averages of this run)", &no_rows);
    if chosen.wants(JOBS) || chosen.wants(BUDGETS_OF_JOBS) {
        jobs(&options, &chosen, &mut goals);
    }
    if chosen.wants(STREAM) {
        stream(&options, &mut goals);
    }
    if chosen.wants(PROPORTION) {
        proportion::run(&mut goals);
    }
    series::print();
    goals.print();
    if let (Some(before), Some(after)) = (others, clock::others()) {
        let share = after.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64() / processors as f64;
        println!("\nMeanwhile other processes took {:.1} % of the processors.", share * 100.0);
    }
}

fn jobs(options: &Options, chosen: &Chosen, goals: &mut Goals<'_>) {
    let Some(path) = options.trace.clone().or_else(trace::default_path) else {
        println!("No trace: the tables of the jobs are left out. --trace FILE, or MEMCG_TRACES for its folder.\n");
        return;
    };
    let requests = match trace::read(&path, options.requests, options.split) {
        Ok(requests) => requests,
        Err(error) => {
            println!("{}: {error}. The tables of the jobs are left out.\n", path.display());
            return;
        }
    };
    let work = Work { requests, jobs: options.jobs.max(1), rounds: options.rounds };
    if chosen.wants(JOBS) {
        let budget = work.budget(options.budget);
        println!(
            "Two groups, {} threads each, {} requests for {} blocks and {} for {};\n\
             a budget of {}, {} % of all blocks.\n",
            work.jobs,
            work.requests[0].requests.len(),
            work.requests[0].blocks,
            work.requests[1].requests.len(),
            work.requests[1].blocks,
            Bytes(budget),
            options.budget,
        );
        for (setup, soft) in [(Setup::NoLimit, u64::MAX), (Setup::ZeroLimit, 0)] {
            let runs = repeat(setup, options.runs, |variant| work.run(variant, budget, soft));
            println!("{}\n", if soft == 0 { "0 limit both" } else { "No limit" });
            runs.print();
            jobs_goals(&runs, goals);
        }
    }
    if chosen.wants(BUDGETS_OF_JOBS) {
        budgets(&work);
    }
}

/// Runs of every variant, in turns: each is first, second and so on equally often.
fn repeat(setup: Setup, runs: usize, run: impl Fn(Variant) -> Run) -> Runs {
    let variants = Variant::value_variants();
    let mut of: Vec<_> = variants.iter().map(|&variant| (variant, Vec::new())).collect();
    for turn in 0..=runs {
        for place in 0..variants.len() {
            let (variant, runs) = &mut of[(turn + place) % variants.len()];
            let run = run(*variant);
            // The first of each is the warm-up.
            if turn > 0 {
                runs.push(run);
            }
        }
    }
    Runs { setup, of }
}

fn jobs_goals(runs: &Runs, goals: &mut Goals<'_>) {
    // One run has no deviation to be compared with.
    if runs.setup == Setup::NoLimit && runs.count() > 1 {
        let measures: [(&str, Of); 2] = [("system", |run| run.system), ("elapsed", |run| run.elapsed)];
        for (name, of) in measures {
            let (base, ours) = (runs.summary(Variant::Base, of), runs.summary(Variant::Reworkoptim, of));
            let away = (ours.mean - base.mean).max(0.0) / ours.std.max(base.std);
            goals.at_most(format!("no limit, {name}: reworkoptim above base"), away, "std", 1.0);
        }
    }
    if runs.setup == Setup::ZeroLimit {
        goals.at_most("0 limit both, refaults: of base", runs.ours(|run| run.refaults), "%", REFAULTS_MAX);
    }
    let evicted = runs.summary(Variant::Reworkoptim, Run::evicted_per_asked).max;
    let setup = if runs.setup == Setup::NoLimit { "no limit" } else { "0 limit both" };
    goals.at_most(format!("{setup}: evicted / asked, reworkoptim"), evicted, "x", EVICTED_MAX);
}

/// One run each, with blocks that cost nothing to read: how much of the difference is due to the budget.
fn budgets(work: &Work) {
    println!("0 limit both, refaults by budget, in per cent of all blocks; one run each.\n");
    let mut table = Table::new();
    let variants = Variant::value_variants();
    let mut head = vec!["budget".to_owned()];
    head.extend(variants.iter().map(|variant| variant.name()));
    head.extend(["of base".to_owned(), "of base_quarter".to_owned()]);
    table.load_style(ASCII_MARKDOWN).set_header(head);
    for per_cent in BUDGETS {
        let refaults = |&variant: &Variant| work.run(variant, work.budget(per_cent), 0).refaults;
        let refaults: Vec<f64> = variants.iter().map(refaults).collect();
        let mut row = vec![format!("{per_cent} %")];
        row.extend(refaults.iter().map(f64::to_string));
        row.extend(refaults[..2].iter().map(|base| format!("{:.1} %", refaults[3] / base.max(1.0) * 100.0)));
        table.add_row(row);
    }
    println!("{}\n", table.trim_fmt());
}

fn stream(options: &Options, goals: &mut Goals<'_>) {
    let stream = Stream {
        budget: (options.stream_budget.0 / PAGE) as usize,
        jobs: options.stream_jobs.max(1),
        rounds: options.stream_rounds,
        bytes_per_second: options.device.0.max(1) as f64,
    };
    println!(
        "Stream: {} threads write 4 x {} with soft limit 0, to a device that takes {:.2} s for it, all the while, and\n\
         that reclaim waits for; beside it a group without limit that holds all but an eighth, and uses it. Refaults\n\
         are that group's; elapsed is the time until all is on the device.\n",
        stream.jobs,
        options.stream_budget,
        (4 * options.stream_budget.0) as f64 / stream.bytes_per_second,
    );
    let runs = repeat(Setup::Stream, options.stream_runs, |variant| stream.run(variant));
    runs.print();
    if runs.count() > 1 {
        let elapsed = |variant| runs.summary(variant, |run| run.elapsed);
        let (base, ours) = (elapsed(Variant::Base), elapsed(Variant::Reworkoptim));
        let most = STREAM_ELAPSED_MAX + base.std.max(ours.std) / base.mean * 100.0;
        goals.at_most("stream, elapsed: of base, one std being noise", ours.mean / base.mean * 100.0, "%", most);
    }
    println!("The price in system time: {:.1} % of base.\n", runs.ours(|run| run.system));
}
