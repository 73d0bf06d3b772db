//! As many readers as the patch series had: timers on a few threads, which put up with figures that are nearly right.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memcg::Freshness;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::latency::{print_counts, world};
use super::report::{Times, print, record, times};
use super::writer::Writer;
use super::{Options, join, rate, spawn};
use crate::common::statistics::Item;
use crate::common::statistics::library::Library;

/// Not worth to sleep for.
const NEAR: Duration = Duration::from_micros(100);

/// What the timers of one thread have seen.
struct Seen {
    latencies: Times,
    /// How long after its time a timer came to read.
    lateness: Times,
    /// Grains by which figures may have been off, as they said themselves: the sum and the largest.
    errors: u64,
    error_max: u64,
}

impl Seen {
    fn new() -> Self {
        Seen { latencies: times(), lateness: times(), errors: 0, error_max: 0 }
    }

    fn merge(mut self, other: Seen) -> Seen {
        self.latencies.add(&other.latencies).expect("the same bounds");
        self.lateness.add(&other.lateness).expect("the same bounds");
        self.errors += other.errors;
        self.error_max = self.error_max.max(other.error_max);
        self
    }
}

pub(crate) fn run(options: &Options) {
    println!(
        "timers: {} groups, one writer over all of them, {} readers as timers on {} threads, each every {} ms, a random\n\
         group, to within {} grains; {} s.\n",
        options.many,
        options.timers(),
        options.timer_threads,
        options.every_ms,
        options.within,
        options.seconds,
    );
    let (library, leaves) = world(options);
    let writer = Writer::new(&library.groups[leaves]);
    let stop = AtomicBool::new(false);
    let before = library.runtime.counts();
    let (written, seen) = thread::scope(|scope| {
        let timers: Vec<_> = (0..options.timer_threads)
            .map(|thread| {
                let (library, stop) = (&library, &stop);
                spawn(scope, move || read(options, library, thread, stop))
            })
            .collect();
        let orders = writer.start(scope);
        orders.begin();
        thread::sleep(options.phase());
        let written = orders.stop();
        stop.store(true, Ordering::Relaxed);
        (written, timers.into_iter().map(join).fold(Seen::new(), Seen::merge))
    });
    print_counts("timers", &before, &library.runtime.counts(), options.phase());
    let reads = seen.latencies.len();
    println!(
        "{:.0} reads a second of {:.0} that were due; the writer {:.2} million adds in a second of its own\n\
         the figures may be off by {:.1} grains on average, {} at most, as they say themselves\n",
        rate(reads, options.phase()),
        options.timers() as f64 / options.every().as_secs_f64(),
        written.rate() / 1e6,
        seen.errors as f64 / reads.max(1) as f64,
        seen.error_max,
    );
    print(&[("read, wall", &seen.latencies), ("behind time", &seen.lateness)]);
}

/// The timers of one thread, in the order of their times: each has its own in every period.
fn read(options: &Options, library: &Library, thread: usize, stop: &AtomicBool) -> Seen {
    let timers = options.timers().div_ceil(options.timer_threads.max(1)).max(1) as u32;
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
            black_box(stats.get(Item::Refault.stat()));
            let error = stats.max_error();
            assert!(error <= options.within, "off by {error} grains, asked for {}", options.within);
            seen.errors += error;
            seen.error_max = seen.error_max.max(error);
            if stop.load(Ordering::Relaxed) {
                return seen;
            }
        }
    }
    seen
}
