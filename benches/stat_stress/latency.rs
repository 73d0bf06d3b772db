//! The patch series' second run: how long readers wait for exact figures of one of many groups that
//! a thread writes at full speed.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memcg::figures::TreeCounts;
use memcg::{Freshness, Runtime};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::report::{judge, print, print_goals, print_phases, record, times};
use super::writer::{Orders, Writer, Written};
use super::{Options, join, rate, spawn};
use crate::common::claims::Claims;
use crate::common::clock::{Latency, RunQueue};
use crate::common::statistics::Item;
use crate::common::statistics::library::Library;
use crate::common::statistics::shape::Shape;
use crate::common::stats::Summary;

/// Groups below one tenant.
const GROUPS_OF_A_TENANT: usize = 500;

/// The most that readers may slow the writer down, in per cent.
const SLOWER_MAX: f64 = 10.0;

/// Periods in which readers read before it counts.
const PERIODS_BEFORE: u32 = 4;

/// At rest: the flusher's period, and the time that is watched.
const REST_PERIOD: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_secs(1);

/// Phases that belong together.
const PHASES: usize = 3;

/// Times that are watched before, until idle groups have been taken for idle; more than enough.
const SETTLES_MAX: usize = 200;

/// A runtime with so many groups, and the writer's handles on those of the lowest level.
pub(crate) fn world(options: &Options) -> (Library, std::ops::Range<usize>) {
    let shape = Shape::tenants(options.many.div_ceil(GROUPS_OF_A_TENANT), options.many);
    let library = Library::new(&shape, Freshness::Exact);
    library
        .runtime
        .start_flusher(options.flush_period())
        .expect("a thread");
    (library, shape.leaves(options.many))
}

pub(crate) fn run(options: &Options, claims: &mut Claims) {
    let readers = options.reader_threads();
    println!(
        "latency: {} groups, one writer over all of them, {readers} threads that read exactly, a random group each {} ms;\n\
         {} times a phase without readers, one with them, and one with readers and no writer, {} s each. Not the wall\n\
         time counts, but that without the wait for a processor.\n",
        options.many, options.every_ms, options.phases, options.seconds,
    );
    let (library, leaves) = world(options);
    let writer = Writer::new(&library.groups[leaves]);
    let mut without = Vec::new();
    let mut with = Vec::new();
    let mut wall = times();
    let mut own = times();
    let mut quiet = times();
    let mut phases = Vec::new();
    thread::scope(|scope| {
        let orders = writer.start(scope);
        for _ in 0..options.phases {
            without.push(phase(options, &library, &writer, Some(&orders), 0).0);
            for latency in phase(options, &library, &writer, None, readers).1 {
                record(&mut quiet, latency.own);
            }
            let before = library.runtime.counts();
            let (written, latencies) = phase(options, &library, &writer, Some(&orders), readers);
            print_counts(
                "with readers",
                &before,
                &library.runtime.counts(),
                options.phase(),
            );
            with.push(written);
            let mut of_phase = times();
            for latency in latencies {
                record(&mut wall, latency.wall);
                record(&mut of_phase, latency.own);
            }
            own.add(&of_phase).expect("the same bounds");
            phases.push(of_phase);
        }
    });
    println!();
    print(&[
        ("without the wait for a processor", &own),
        ("wall", &wall),
        ("no writer, as the first", &quiet),
    ]);
    print_phases(&phases);
    judge(&phases, claims);
    let is_small = options.choice.is_small();
    if !is_small {
        print_goals(&own, &quiet);
    }
    print_writer(&without, &with, is_small);
    rest(&library.runtime);
}

/// So many phases, one with each, and what passes before each and at rest.
pub(crate) fn takes(options: &Options) -> Duration {
    let phase = options.phase() + options.every() * PERIODS_BEFORE;
    phase * (PHASES * options.phases) as u32 + REST
}

/// The state that the threads of one phase share.
struct Phase<'a> {
    options: &'a Options,
    library: &'a Library,
    writer: &'a Writer<'a>,
    recording: AtomicBool,
    stop: AtomicBool,
}

/// The writer, if it gets orders, and so many readers, for the time of a phase.
fn phase(
    options: &Options,
    library: &Library,
    writer: &Writer<'_>,
    orders: Option<&Orders<'_>>,
    readers: usize,
) -> (Written, Vec<Latency>) {
    let phase = Phase {
        options,
        library,
        writer,
        recording: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let phase = &phase;
        let readers: Vec<_> = (0..readers)
            .map(|reader| spawn(scope, move || phase.read(reader)))
            .collect();
        // A thousand threads that start at once are not what is measured.
        thread::sleep(options.every() * PERIODS_BEFORE);
        phase.recording.store(true, Ordering::Relaxed);
        orders.inspect(|orders| orders.begin());
        thread::sleep(options.phase());
        let written = orders.map_or_else(Written::default, Orders::stop);
        phase.stop.store(true, Ordering::Relaxed);
        (written, readers.into_iter().flat_map(join).collect())
    })
}

impl Phase<'_> {
    /// One reader's reads.
    fn read(&self, reader: usize) -> Vec<Latency> {
        let mut random = SmallRng::seed_from_u64(reader as u64);
        let first = self.library.groups.len() - self.options.many;
        let run_queue = RunQueue::of_this_thread();
        let waited = || {
            run_queue
                .as_ref()
                .and_then(RunQueue::waited)
                .unwrap_or_default()
        };
        let every = self.options.every();
        let mut latencies = Vec::new();
        let mut due = Instant::now() + every.mul_f64(random.random());
        loop {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Relaxed) {
                return latencies;
            }
            let group = &self.library.groups[first + random.random_range(0..self.options.many)];
            let rounds = self.writer.rounds();
            let before = waited();
            let start = Instant::now();
            let events = black_box(group.read(Freshness::Exact)).get(Item::Refault.stat());
            let wall = start.elapsed();
            let waited = waited().saturating_sub(before);
            if self.recording.load(Ordering::Relaxed) {
                latencies.push(Latency::new(wall, waited));
            }
            let most = self.writer.rounds() + 1;
            assert!(
                (rounds..=most).contains(&events),
                "{events} events, written {rounds} to {most} times"
            );
            due = (due + every).max(Instant::now());
        }
    }
}

pub(crate) fn print_counts(what: &str, before: &TreeCounts, after: &TreeCounts, time: Duration) {
    println!(
        "{what}: in a second {:.2} barriers, {:.0} flushes, {:.0} pairs (thread, group) visited",
        rate(after.barriers - before.barriers, time),
        rate(after.flushes - before.flushes, time),
        rate(after.flush_visits - before.flush_visits, time),
    );
}

/// The writer's rate with readers against that without.
fn print_writer(without: &[Written], with: &[Written], is_small: bool) {
    let rates = |written: &[Written]| {
        let rates: Vec<f64> = written.iter().map(|written| written.rate() / 1e6).collect();
        Summary::of(&rates)
    };
    let without = rates(without);
    let with = rates(with);
    let slower = -with.delta(&without);
    let verdict = if slower <= SLOWER_MAX {
        "met"
    } else if with.is_noise(&without) {
        "inside one std: noise"
    } else {
        "missed"
    };
    for (name, rate) in [("without", without), ("with", with)] {
        println!(
            "writer {name} readers: mean {:.2}, std {:.2}, min {:.2}, max {:.2} million adds in a second of its own",
            rate.mean, rate.std, rate.min, rate.max
        );
    }
    if !is_small {
        println!("goal: at most {SLOWER_MAX} % slower with readers: {slower:+.2} %, {verdict}\n");
    }
}

/// No thread writes and no thread reads, and the flusher runs.
fn rest(runtime: &Runtime) {
    runtime.stop_flusher();
    runtime.start_flusher(REST_PERIOD).expect("a thread");
    for _ in 0..SETTLES_MAX {
        let before = runtime.counts();
        thread::sleep(REST_PERIOD * 2);
        let after = runtime.counts();
        if after.flushes > before.flushes && after.flush_visits == before.flush_visits {
            break;
        }
    }
    let before = runtime.counts();
    thread::sleep(REST);
    print_counts(
        "at rest, the flusher running",
        &before,
        &runtime.counts(),
        REST,
    );
    println!();
}
