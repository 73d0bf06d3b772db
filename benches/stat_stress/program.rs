//! Options, and the order of the runs.

#![cfg(not(loom))]

mod idle;
mod latency;
mod report;
mod timers;
mod workers;
mod writer;

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use memcg_bench_rows::{Bench, Choice, Progress, parse};

use crate::common::claims::Claims;
use crate::common::clock::{self, RunQueue};

/// More readers than this are timers.
const READER_THREADS_MAX: usize = 10_000;

/// Threads of which there are thousands.
const STACK: usize = 128 << 10;

const BENCH: Bench = Bench {
    name: "stat_stress",
    about: "Statistics under thousands of threads.\n\
            Rows: `workers` allocate beside readers, `latency` of exact reads beside a writer, `timers` by the\n\
            hundred thousand, `idle` flushes of nothing. With --readers above 10000, timers alone.",
};

#[derive(Clone, Parser)]
struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Threads that read, or timers [default: 1000, and 250000 timers]
    #[arg(long)]
    readers: Option<usize>,
    /// Milliseconds between two reads of one reader
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// Milliseconds between two flushes by the periodic flusher
    #[arg(long, default_value_t = 2_000)]
    flush_ms: u64,
    /// workers: threads that charge and count
    #[arg(long, default_value_t = 5_000)]
    workers: usize,
    /// workers: groups that they do it in
    #[arg(long, default_value_t = 500)]
    groups: usize,
    /// workers: rounds of each worker: its fixed amount of work
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// workers: rounds from one reclaim to the next, which reads the statistics of its group
    #[arg(long, default_value_t = 4)]
    reclaim_every: usize,
    /// workers: runs of each kind
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// workers: what keeps the statistics
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ours,global_threshold,unified_skip,unified_wait"
    )]
    ways: Vec<Way>,
    /// latency, timers: groups that the writer goes over
    #[arg(long, default_value_t = 50_000)]
    many: usize,
    /// latency, timers: seconds of one phase
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// latency: pairs of a phase without readers and one with them
    #[arg(long, default_value_t = 5)]
    phases: usize,
    /// timers: threads that they run on
    #[arg(long, default_value_t = 2)]
    timer_threads: usize,
    /// timers: the error that a reader puts up with, in grains
    #[arg(long, default_value_t = 1_024)]
    within: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    Workers,
    Latency,
    Timers,
    Idle,
}

impl Which {
    fn id(self) -> String {
        let name = match self {
            Which::Workers => "workers",
            Which::Latency => "latency",
            Which::Timers => "timers",
            Which::Idle => "idle",
        };
        format!("stat_stress/{name}")
    }

    fn takes(self, options: &Options) -> Duration {
        match self {
            Which::Workers => workers::takes(options),
            Which::Latency => latency::takes(options),
            Which::Timers => options.phase() * timers::WINDOWS as u32,
            Which::Idle => idle::TAKES,
        }
    }
}

/// The keeper of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Way {
    Ours,
    /// The kernel as the series has made it
    Subtree,
    GlobalThreshold,
    UnifiedSkip,
    UnifiedWait,
    SharedMap,
    Folly,
}

impl Way {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Options {
    fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms.max(1))
    }

    fn flush_period(&self) -> Duration {
        Duration::from_millis(self.flush_ms.max(1))
    }

    fn phase(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn reader_threads(&self) -> usize {
        self.readers.unwrap_or(1_000)
    }

    fn timers(&self) -> usize {
        self.readers.unwrap_or(250_000)
    }

    fn which(&self) -> Vec<Which> {
        match self.readers {
            Some(readers) if readers > READER_THREADS_MAX => vec![Which::Timers],
            Some(_) if !self.choice.is_small() => vec![Which::Workers, Which::Latency, Which::Idle],
            _ => vec![Which::Workers, Which::Latency, Which::Timers, Which::Idle],
        }
    }

    /// A tenth of everything, and the runs that a verdict needs.
    fn quick(self) -> Self {
        Options {
            workers: self.workers.min(500),
            groups: self.groups.min(50),
            rounds: self.rounds.min(4),
            repeats: self.repeats.min(5),
            many: self.many.min(5_000),
            seconds: self.seconds.min(0.4),
            phases: self.phases.min(5),
            ..self
        }
    }

    /// As many of everything as show that the program works.
    fn tiny(self) -> Self {
        Options {
            readers: Some(self.readers.unwrap_or(20).min(20)),
            workers: self.workers.min(50),
            groups: self.groups.min(10),
            rounds: self.rounds.min(4),
            repeats: 1,
            many: self.many.min(100),
            seconds: self.seconds.min(0.05),
            phases: 1,
            every_ms: self.every_ms.min(5),
            ..self
        }
    }
}

pub(crate) fn main() {
    let options: Options = parse(&BENCH);
    let options = match (options.choice.is_trial(), options.choice.is_small()) {
        (true, _) => options.tiny(),
        (false, true) => options.quick(),
        (false, false) => options,
    };
    let mut which = options.which();
    let chosen = options
        .choice
        .choose(BENCH.name, which.iter().map(|which| which.id()).collect());
    which.retain(|which| chosen.wants(&which.id()));
    let takes = which.iter().map(|which| which.takes(&options)).sum();
    let mut progress = Progress::start(
        BENCH.name,
        &format!("{} of 4 runs", which.len()),
        which.len(),
        takes,
    );
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    println!(
        "{processors} processors; the series had 384. Threads here are real, and wait for a processor where those of the\n\
         series had one.\n"
    );
    if RunQueue::of_this_thread().is_none() {
        println!(
            "No /proc/thread-self/schedstat here: latencies are wall time, the wait for a processor included.\n"
        );
    }
    let mut claims = Claims::new();
    for which in which {
        progress.next();
        let start = Instant::now();
        let others = clock::others();
        match which {
            Which::Workers => workers::run(&options, &mut claims),
            Which::Latency => latency::run(&options, &mut claims),
            Which::Timers => timers::run(&options, &mut claims),
            Which::Idle => idle::run(&mut claims),
        }
        if let (Some(before), Some(after)) = (others, clock::others()) {
            let share = after.saturating_sub(before).as_secs_f64()
                / start.elapsed().as_secs_f64()
                / processors as f64;
            println!(
                "Meanwhile other processes took {:.1} % of the processors.\n",
                share * 100.0
            );
        }
        progress.step();
    }
    claims.print();
}

/// A thread with a small stack.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    thread::Builder::new()
        .stack_size(STACK)
        .spawn_scoped(scope, body)
        .expect("a thread")
}

fn join<T>(handle: ScopedJoinHandle<'_, T>) -> T {
    handle
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The number in a second.
fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}
