//! As many readers as the patch series had: timers on a few threads, which put up with figures that
//! are nearly right.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use crossbeam::utils::CachePadded;
use memcg::Freshness;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::latency::{print_counts, world};
use super::report::{Times, print, record, times};
use super::writer::Writer;
use super::{Options, join, rate, spawn};
use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::statistics::Item;
use crate::common::statistics::library::Library;
use crate::common::stats::Summary;

/// Not worth to sleep for.
const NEAR: Duration = Duration::from_micros(100);

/// Windows, each as long as a phase, in which reads are counted.
pub(crate) const WINDOWS: usize = 5;

/// The series' machine, and its reads a second of each processor: 250,000 readers every 100 ms.
const PROCESSORS: f64 = 384.0;
const SERIES: f64 = 2_500_000.0 / PROCESSORS;

/// The record of the timers of one thread.
struct Seen {
    latencies: Times,
    /// The delay of a timer's read.
    lateness: Times,
    /// Grains by which figures may have been off, as they said themselves: the sum and the largest.
    errors: u64,
    error_max: u64,
}

impl Seen {
    fn new() -> Self {
        Seen {
            latencies: times(),
            lateness: times(),
            errors: 0,
            error_max: 0,
        }
    }

    fn merge(mut self, other: Seen) -> Seen {
        self.latencies
            .add(&other.latencies)
            .expect("the same bounds");
        self.lateness.add(&other.lateness).expect("the same bounds");
        self.errors += other.errors;
        self.error_max = self.error_max.max(other.error_max);
        self
    }
}

pub(crate) fn run(options: &Options, claims: &mut Claims) {
    println!(
        "timers: {} groups, one writer over all of them, {} readers as timers on {} threads, each every {} ms, a random\n\
         group, to within {} grains; {} s.\n",
        options.many,
        options.timers(),
        options.timer_threads,
        options.every_ms,
        options.within,
        options.seconds * WINDOWS as f64,
    );
    let (library, leaves) = world(options);
    let writer = Writer::new(&library.groups[leaves]);
    let stop = AtomicBool::new(false);
    // Of each thread, so that none writes a line of another's.
    let reads: Vec<CachePadded<AtomicU64>> = (0..options.timer_threads)
        .map(|_| CachePadded::default())
        .collect();
    let all_reads = || {
        reads
            .iter()
            .map(|reads| reads.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    let mut windows = Vec::new();
    let before = library.runtime.counts();
    let (written, seen) = thread::scope(|scope| {
        let timers: Vec<_> = (0..options.timer_threads)
            .map(|thread| {
                let library = &library;
                let stop = &stop;
                let reads = &reads[thread];
                spawn(scope, move || read(options, library, thread, stop, reads))
            })
            .collect();
        let orders = writer.start(scope);
        orders.begin();
        for _ in 0..WINDOWS {
            let start = Instant::now();
            let before = all_reads();
            thread::sleep(options.phase());
            windows.push(rate(all_reads() - before, start.elapsed()));
        }
        let written = orders.stop();
        stop.store(true, Ordering::Relaxed);
        (
            written,
            timers.into_iter().map(join).fold(Seen::new(), Seen::merge),
        )
    });
    let time = options.phase() * WINDOWS as u32;
    print_counts("timers", &before, &library.runtime.counts(), time);
    let reads = seen.latencies.len();
    println!(
        "{:.0} reads a second of {:.0} that were due; the writer {:.2} million adds in a second of its own\n\
         the figures may be off by {:.1} grains on average, {} at most, as they say themselves\n",
        rate(reads, time),
        options.timers() as f64 / options.every().as_secs_f64(),
        written.rate() / 1e6,
        seen.errors as f64 / reads.max(1) as f64,
        seen.error_max,
    );
    print(&[
        ("read, wall", &seen.latencies),
        ("behind time", &seen.lateness),
    ]);
    judge(&windows, claims);
}

/// Reads a second of each processor, window by window, and those of the series, which had a thread
/// for each reader.
fn judge(windows: &[f64], claims: &mut Claims) {
    let processors = thread::available_parallelism().map_or(1, |count| count.get()) as f64;
    let rounds: Vec<f64> = windows
        .iter()
        .map(|reads| reads / processors / SERIES)
        .collect();
    let Summary {
        min,
        max,
        mean,
        std,
    } = Summary::of(windows);
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["", "series", "min", "max", "avg", "std", "runs"]);
    for (what, series, by) in [
        ("reads a second", SERIES * PROCESSORS, 1.0),
        ("the same for each processor", SERIES, processors),
    ] {
        let figures =
            [series, min / by, max / by, mean / by, std / by].map(|figure| format!("{figure:.0}"));
        table.add_row(
            [what.to_owned()]
                .into_iter()
                .chain(figures)
                .chain([windows.len().to_string()]),
        );
    }
    println!("{}\n", table.trim_fmt());
    let ratios = [(
        "reads a second of a processor / the series'",
        Ratio::of_rounds(&rounds),
    )];
    claims.timed("stats-12", &ratios, Bound::AtLeast(1.0));
}

/// The timers of one thread, in the order of their times: each has its own in every period.
fn read(
    options: &Options,
    library: &Library,
    thread: usize,
    stop: &AtomicBool,
    reads: &AtomicU64,
) -> Seen {
    let timers = options
        .timers()
        .div_ceil(options.timer_threads.max(1))
        .max(1) as u32;
    let mut random = SmallRng::seed_from_u64(thread as u64);
    let first = library.groups.len() - options.many;
    let mut seen = Seen::new();
    let begin = Instant::now();
    for period in 0.. {
        for timer in 0..timers {
            let due = begin + options.every() * period + options.every() * timer / timers;
            let mut now = Instant::now();
            if due > now + NEAR {
                thread::sleep(due - now);
                now = Instant::now();
            }
            // Near enough: a timer that is a little early does not wait.
            record(&mut seen.lateness, now.saturating_duration_since(due));
            let group = &library.groups[first + random.random_range(0..options.many)];
            let start = Instant::now();
            let stats = black_box(group.read(Freshness::Within(options.within)));
            record(&mut seen.latencies, start.elapsed());
            reads.store(reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            black_box(stats.get(Item::Refault.stat()));
            let error = stats.max_error();
            assert!(
                error <= options.within,
                "off by {error} grains, asked for {}",
                options.within
            );
            seen.errors += error;
            seen.error_max = seen.error_max.max(error);
            if stop.load(Ordering::Relaxed) {
                return seen;
            }
        }
    }
    seen
}
