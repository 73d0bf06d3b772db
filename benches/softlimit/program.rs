//! The order of the tables.

#![cfg(not(loom))]

mod cache;
mod device;
mod jobs;
mod lru;
mod options;
mod policy;
mod proportion;
mod report;
mod scene;
mod series;
mod stream;
mod synthetic;
mod system;
mod trace;
mod tree;
mod verdicts;

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::Bytes;
use memcg_bench_rows::{Bench, Chosen, Goals, Measured, Progress};

use self::jobs::Work;
use self::lru::PAGE;
use self::options::Options;
use self::policy::Variant;
use self::report::Runs;
use self::scene::Run;
use self::series::Setup;
use self::stream::Stream;
use self::trace::Trace;
use crate::common::clock;

/// Budgets in per cent of all blocks, for the table of refaults by budget.
const BUDGETS: [u64; 6] = [99, 95, 90, 80, 70, 50];

/// The results of the tables that were made.
#[derive(Default)]
struct Results {
    no_limit: Option<Runs>,
    zero_limit: Option<Runs>,
    stream: Option<Runs>,
}

/// The tables, each a row.
const JOBS: &str = "softlimit/jobs";
const BUDGETS_OF_JOBS: &str = "softlimit/budgets";
const STREAM: &str = "softlimit/stream";
const PROPORTION: &str = "softlimit/proportion";
const TABLES: [&str; 4] = [JOBS, BUDGETS_OF_JOBS, STREAM, PROPORTION];

const BENCH: Bench = Bench {
    name: "softlimit",
    about: "The tables of the soft limit: two groups of jobs, refaults by budget, a stream, and what is in proportion.",
};

pub(crate) fn main() -> ExitCode {
    let options = Options::from_args(&BENCH);
    let chosen = options
        .choice
        .choose(BENCH.name, TABLES.map(str::to_owned).into());
    let wants_trace = chosen.wants(JOBS) || chosen.wants(BUDGETS_OF_JOBS);
    let trace = match wants_trace
        .then(|| Trace::find(options.trace.as_deref()))
        .transpose()
    {
        Ok(trace) => trace,
        Err(error) => {
            eprintln!("softlimit: {error}");
            return ExitCode::FAILURE;
        }
    };
    let tables = chosen.ids().len();
    let takes = chosen.ids().iter().map(|id| options.takes(id)).sum();
    let mut progress = Progress::start(BENCH.name, &format!("{tables} of 4 tables"), tables, takes);
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    println!(
        "{processors} processors; pages of {PAGE} bytes. Averages within one std of base are noise, and called so.\n"
    );
    let start = Instant::now();
    let others = clock::others();
    let no_rows = Measured {
        is_small: options.choice.is_small(),
        ..Measured::default()
    };
    let mut goals = Goals::titled("goal (averages of this run)", &no_rows);
    let mut results = Results::default();
    if let Some(trace) = &trace {
        jobs(&options, &chosen, trace, &mut results, &mut progress);
    }
    if chosen.wants(STREAM) {
        progress.next();
        results.stream = Some(stream(&options));
        progress.step();
    }
    if chosen.wants(PROPORTION) {
        progress.next();
        proportion::run(&mut goals);
        progress.step();
    }
    series::print();
    verdicts::goals(&results, &mut goals);
    goals.print();
    if let (Some(before), Some(after)) = (others, clock::others()) {
        let share = after.saturating_sub(before).as_secs_f64()
            / start.elapsed().as_secs_f64()
            / processors as f64;
        println!(
            "\nMeanwhile other processes took {:.1} % of the processors.",
            share * 100.0
        );
    }
    verdicts::claims(&results).print();
    ExitCode::SUCCESS
}

fn jobs(
    options: &Options,
    chosen: &Chosen,
    trace: &Trace,
    results: &mut Results,
    progress: &mut Progress,
) {
    let requests = trace.split(options.requests, options.split);
    let work = Work {
        requests,
        jobs: options.jobs.max(1),
        rounds: options.rounds,
    };
    if chosen.wants(JOBS) {
        progress.next();
        let budget = work.budget(options.budget);
        println!(
            "{}: two groups, {} threads each, {} requests for {} blocks and {} for {};\n\
             a budget of {}, {} % of all blocks.\n",
            trace.name,
            work.jobs,
            work.requests[0].requests.len(),
            work.requests[0].blocks,
            work.requests[1].requests.len(),
            work.requests[1].blocks,
            Bytes(budget),
            options.budget,
        );
        for (setup, soft) in [(Setup::NoLimit, u64::MAX), (Setup::ZeroLimit, 0)] {
            let runs = repeat(setup, options.runs, |variant| {
                work.run(variant, budget, soft)
            });
            let what = if soft == 0 {
                "0 limit both"
            } else {
                "no limit"
            };
            runs.print(&format!("{what}, {}", trace.name));
            let place = if soft == 0 {
                &mut results.zero_limit
            } else {
                &mut results.no_limit
            };
            *place = Some(runs);
        }
        progress.step();
    }
    if chosen.wants(BUDGETS_OF_JOBS) {
        progress.next();
        budgets(&work, &trace.name);
        progress.step();
    }
}

/// Runs of every variant, in turns: each is first, second and so on equally often.
fn repeat(setup: Setup, runs: usize, run: impl Fn(Variant) -> Run) -> Runs {
    let variants = Variant::value_variants();
    let mut of: Vec<_> = variants
        .iter()
        .map(|&variant| (variant, Vec::new()))
        .collect();
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

/// One run each, with blocks that cost nothing to read: how much of the difference is due to the
/// budget.
fn budgets(work: &Work, trace: &str) {
    println!("0 limit both, refaults by budget, in per cent of all blocks; one run each.\n");
    let mut table = Table::new();
    let variants = Variant::value_variants();
    let mut head = vec![format!("budget, {trace}")];
    head.extend(variants.iter().map(|variant| variant.name()));
    head.extend(["of base".to_owned(), "of base_quarter".to_owned()]);
    table.load_style(ASCII_MARKDOWN).set_header(head);
    for per_cent in BUDGETS {
        let refaults = |&variant: &Variant| work.run(variant, work.budget(per_cent), 0).refaults;
        let refaults: Vec<f64> = variants.iter().map(refaults).collect();
        let mut row = vec![format!("{per_cent} %")];
        row.extend(refaults.iter().map(f64::to_string));
        row.extend(
            refaults[..2]
                .iter()
                .map(|base| format!("{:.1} %", refaults[3] / base.max(1.0) * 100.0)),
        );
        table.add_row(row);
    }
    println!("{}\n", table.trim_fmt());
}

fn stream(options: &Options) -> Runs {
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
    let runs = repeat(Setup::Stream, options.stream_runs, |variant| {
        stream.run(variant)
    });
    runs.print("stream");
    println!(
        "The price in system time: {:.1} % of base.\n",
        runs.ours(|run| run.system)
    );
    runs
}
