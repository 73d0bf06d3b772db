//! The patch series' first run: workers that allocate and reclaim in their groups, each a fixed
//! amount, and readers beside them.

#![cfg(not(loom))]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, Charge, Freshness, Group};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Options, Way, join, rate, spawn};
use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::clock::thread_time;
use crate::common::statistics::folly::Folly;
use crate::common::statistics::library::Library;
use crate::common::statistics::rstat::{Policy, Rstat};
use crate::common::statistics::shape::Shape;
use crate::common::statistics::shared_map::SharedMap;
use crate::common::statistics::{Item, ROOT, Statistics};
use crate::common::stats::Summary;

/// Groups below one tenant.
const GROUPS_OF_A_TENANT: usize = 50;

/// Allocations of one round, and how many a worker holds at a time.
const ALLOCATIONS: usize = 1_000;
const HELD: usize = 32;

const PAGE: u64 = 4_096;

/// The runtime with readers against that without, in per cent.
const DELTA_MAX: f64 = 5.0;

/// A thread that is there beside the workers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Alone,
    /// As many threads as readers, which do everything but read: what the machine takes for their
    /// waking up.
    Sleepers,
    Readers,
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Beside::Alone => "none",
            Beside::Sleepers => "wake up only",
            Beside::Readers => "read",
        }
    }
}

/// Runs of one kind.
struct Kind {
    way: Way,
    beside: Beside,
    runs: Vec<Run>,
}

/// The result of one run.
struct Run {
    time: Duration,
    reads: u64,
    /// The processor time of the readers; nothing where the system does not say.
    reader_time: Duration,
    flushes: u64,
    visits: u64,
    barriers: u64,
    /// Flushed at the end, the root had all that the workers had counted. The kernel's way may have
    /// lost sight of the last change of a thread, and accepts that.
    exact: bool,
}

impl Kind {
    fn values(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.time.as_secs_f64()).collect()
    }

    fn seconds(&self) -> Summary {
        Summary::of(&self.values())
    }

    /// In a second, over all runs.
    fn rate(&self, count: impl Fn(&Run) -> u64) -> f64 {
        rate(
            self.runs.iter().map(count).sum(),
            self.runs.iter().map(|run| run.time).sum(),
        )
    }

    /// Processors that the readers kept busy.
    fn reader_share(&self) -> f64 {
        let busy: f64 = self
            .runs
            .iter()
            .map(|run| run.reader_time.as_secs_f64())
            .sum();
        busy / self
            .runs
            .iter()
            .map(|run| run.time.as_secs_f64())
            .sum::<f64>()
    }
}

pub(crate) fn run(options: &Options, claims: &mut Claims) {
    println!(
        "workers: {} threads in {} groups, {} rounds of {ALLOCATIONS} allocations each; {} readers, each every {} ms.\n\
         A worker that reclaims, once in {} rounds, reads the statistics of its group first, as the kernel does.\n",
        options.workers,
        options.groups,
        options.rounds,
        options.reader_threads(),
        options.every_ms,
        options.reclaim_every,
    );
    let mut kinds = kinds(options);
    for _ in 0..options.repeats {
        for kind in &mut kinds {
            kind.runs.push(once(options, kind.way, kind.beside));
        }
    }
    print(&kinds, options.choice.is_small());
    judge(&kinds, claims);
}

/// Each way without readers and with them, and what the machine takes for as many threads that wake
/// up.
fn kinds(options: &Options) -> Vec<Kind> {
    let beside = |way| match way {
        Way::Ours => vec![Beside::Alone, Beside::Sleepers, Beside::Readers],
        _ => vec![Beside::Alone, Beside::Readers],
    };
    let of = |way| {
        beside(way).into_iter().map(move |beside| Kind {
            way,
            beside,
            runs: Vec::new(),
        })
    };
    options.ways.iter().copied().flat_map(of).collect()
}

/// The time of all runs, as a run of two rounds shows for each way.
pub(crate) fn takes(options: &Options) -> Duration {
    const ROUNDS: usize = 2;
    let few = Options {
        rounds: ROUNDS.min(options.rounds),
        ..options.clone()
    };
    let times = options.rounds.div_ceil(few.rounds.max(1)) * options.repeats;
    let mut takes = Duration::ZERO;
    for &way in &options.ways {
        let runs = kinds(options).iter().filter(|kind| kind.way == way).count();
        takes += once(&few, way, Beside::Alone).time * (runs * times) as u32;
    }
    takes
}

fn once(options: &Options, way: Way, beside: Beside) -> Run {
    let shape = Shape::tenants(options.groups.div_ceil(GROUPS_OF_A_TENANT), options.groups);
    let library = Library::new(&shape, Freshness::Threshold);
    let old = |policy| {
        Scene::new(
            options,
            &library,
            &Rstat::new(policy, shape.clone()),
            &shape,
            beside,
        )
        .play(true)
    };
    match way {
        Way::Ours => {
            library
                .runtime
                .start_flusher(options.flush_period())
                .expect("a thread");
            Scene::new(options, &library, &library, &shape, beside).play(false)
        }
        Way::Subtree => old(Policy::Subtree),
        Way::GlobalThreshold => old(Policy::GlobalThreshold),
        Way::UnifiedSkip => old(Policy::UnifiedSkip),
        Way::UnifiedWait => old(Policy::UnifiedWait),
        Way::SharedMap => Scene::new(
            options,
            &library,
            &SharedMap::new(shape.clone()),
            &shape,
            beside,
        )
        .play(false),
        Way::Folly => Scene::new(
            options,
            &library,
            &Folly::new(shape.clone()),
            &shape,
            beside,
        )
        .play(false),
    }
}

/// All that the threads of one run share.
struct Scene<'a, S> {
    options: &'a Options,
    /// The library that is charged, whichever thread keeps the statistics.
    library: &'a Library,
    statistics: &'a S,
    /// The groups that workers are in and readers read.
    leaves: std::ops::Range<usize>,
    beside: Beside,
    done: AtomicBool,
    /// All have come; all may go.
    come: Barrier,
    go: Barrier,
}

impl<'a, S: Statistics> Scene<'a, S> {
    fn new(
        options: &'a Options,
        library: &'a Library,
        statistics: &'a S,
        shape: &Shape,
        beside: Beside,
    ) -> Self {
        let readers = if beside == Beside::Alone {
            0
        } else {
            options.reader_threads()
        };
        let all = options.workers + readers + 1;
        Scene {
            options,
            library,
            statistics,
            leaves: shape.leaves(options.groups),
            beside,
            done: AtomicBool::new(false),
            come: Barrier::new(all),
            go: Barrier::new(all),
        }
    }

    /// `periodic`: a thread flushes every now and then, for the policy has no flusher of its own.
    fn play(&self, periodic: bool) -> Run {
        let readers = if self.beside == Beside::Alone {
            0
        } else {
            self.options.reader_threads()
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.options.workers)
                .map(|worker| {
                    spawn(scope, move || {
                        self.start();
                        self.work(worker);
                        Instant::now()
                    })
                })
                .collect();
            let readers: Vec<_> = (0..readers)
                .map(|reader| spawn(scope, move || self.read(reader)))
                .collect();
            self.come.wait();
            let events = self.statistics.events();
            let barriers = self.library.runtime.counts().barriers;
            let flusher = periodic.then(|| spawn(scope, || self.flush()));
            let start = Instant::now();
            self.go.wait();
            let end = workers.into_iter().map(join).max().unwrap_or(start);
            self.done.store(true, Ordering::Relaxed);
            let barriers = self.library.runtime.counts().barriers - barriers;
            let now = self.statistics.events();
            if let Some(flusher) = flusher {
                flusher.thread().unpark();
            }
            let read: Vec<_> = readers.into_iter().map(join).collect();
            Run {
                exact: self.is_exact(),
                time: end - start,
                reads: read.iter().map(|&(reads, _)| reads).sum(),
                reader_time: read.iter().map(|&(_, time)| time).sum(),
                flushes: now.flushes - events.flushes,
                visits: now.visits - events.visits,
                barriers,
            }
        })
    }

    fn start(&self) {
        self.come.wait();
        self.go.wait();
    }

    fn work(&self, worker: usize) {
        let leaf = self.leaves.start + worker % self.leaves.len();
        let mut hands = Hands {
            group: &self.library.groups[leaf],
            leaf,
            statistics: self.statistics,
            held: VecDeque::with_capacity(HELD),
            random: SmallRng::seed_from_u64(worker as u64),
        };
        for round in 1..=self.options.rounds {
            for _ in 0..ALLOCATIONS {
                if hands.held.len() == HELD {
                    hands.free();
                }
                hands.allocate();
            }
            self.statistics.add(leaf, Item::Refault, 1);
            if round % self.options.reclaim_every.max(1) == 0 {
                hands.reclaim();
            }
            // A round is what one worker does before it is another's turn, on a machine with few
            // processors too.
            thread::yield_now();
        }
        while !hands.held.is_empty() {
            hands.free();
        }
    }

    fn read(&self, reader: usize) -> (u64, Duration) {
        let mut random = SmallRng::seed_from_u64(!(reader as u64));
        let every = self.options.every();
        self.start();
        let before = thread_time().unwrap_or_default();
        let mut due = Instant::now() + every.mul_f64(random.random());
        let mut reads = 0;
        loop {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if self.done.load(Ordering::Relaxed) {
                break;
            }
            let group = black_box(random.random_range(self.leaves.clone()));
            if self.beside == Beside::Readers {
                black_box(self.statistics.read(group, Item::Anon));
                reads += 1;
            }
            due = (due + every).max(Instant::now());
        }
        (
            reads,
            thread_time().unwrap_or_default().saturating_sub(before),
        )
    }

    fn flush(&self) {
        loop {
            thread::park_timeout(self.options.flush_period());
            if self.done.load(Ordering::Relaxed) {
                break;
            }
            self.statistics.flush(ROOT);
        }
    }

    /// When no thread counts any more, everything has been counted.
    fn is_exact(&self) -> bool {
        self.statistics.flush(ROOT);
        let read =
            [Item::Anon, Item::File, Item::Refault].map(|item| self.statistics.read(ROOT, item));
        read == [0, 0, (self.options.workers * self.options.rounds) as i64]
    }
}

/// The charges of a worker, and the place where it counts them.
struct Hands<'a, S> {
    group: &'a Group,
    leaf: usize,
    statistics: &'a S,
    held: VecDeque<(Charge, Item)>,
    random: SmallRng,
}

impl<S: Statistics> Hands<'_, S> {
    /// One to four pages, of which a quarter are a file's.
    #[inline(always)]
    fn allocate(&mut self) {
        let bits: u32 = self.random.random();
        let bytes = u64::from(1 + bits % 4) * PAGE;
        let item = if bits >> 30 == 0 {
            Item::File
        } else {
            Item::Anon
        };
        let charge = self.group.charge(Bytes(bytes)).expect("no limit is set");
        self.statistics.add(self.leaf, item, bytes as i64);
        self.held.push_back((charge, item));
    }

    /// Frees the memory that has been held for longest.
    #[inline(always)]
    fn free(&mut self) {
        if let Some((charge, item)) = self.held.pop_front() {
            self.statistics
                .add(self.leaf, item, -(charge.bytes() as i64));
            drop(charge);
        }
    }

    /// As `prepare_scan_control`: look at the statistics, then give half of it back.
    fn reclaim(&mut self) {
        black_box(self.statistics.read(self.leaf, Item::Anon));
        for _ in 0..HELD / 2 {
            self.free();
        }
    }
}

fn print(kinds: &[Kind], is_small: bool) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "statistics",
        "readers",
        "runs",
        "min",
        "max",
        "mean, s",
        "std",
        "to none",
        "reads / s",
        "readers' processors",
        "flushes / s",
        "visits / s",
        "barriers / s",
        "exact at the end",
    ]);
    for kind in kinds {
        let seconds = kind.seconds();
        let to_none = base(kinds, kind.way)
            .filter(|_| kind.beside != Beside::Alone)
            .map(|none| {
                let noise = if seconds.is_noise(&none) {
                    " (noise)"
                } else {
                    ""
                };
                format!("{:+.2} %{noise}", seconds.delta(&none))
            });
        table.add_row([
            kind.way.name(),
            kind.beside.name().to_owned(),
            kind.runs.len().to_string(),
            format!("{:.3}", seconds.min),
            format!("{:.3}", seconds.max),
            format!("{:.3}", seconds.mean),
            format!("{:.3}", seconds.std),
            to_none.unwrap_or_default(),
            format!("{:.0}", kind.rate(|run| run.reads)),
            format!("{:.3}", kind.reader_share()),
            format!("{:.0}", kind.rate(|run| run.flushes)),
            format!("{:.0}", kind.rate(|run| run.visits)),
            format!("{:.1}", kind.rate(|run| run.barriers)),
            format!(
                "{} of {}",
                kind.runs.iter().filter(|run| run.exact).count(),
                kind.runs.len()
            ),
        ]);
        assert!(
            kind.way != Way::Ours || kind.runs.iter().all(|run| run.exact),
            "figures of the library are exact"
        );
    }
    println!("{}\n", table.trim_fmt());
    if is_small {
        return;
    }
    let ours = kinds
        .iter()
        .find(|kind| kind.way == Way::Ours && kind.beside == Beside::Readers);
    if let Some((ours, none)) = ours.zip(base(kinds, Way::Ours)) {
        let seconds = ours.seconds();
        let delta = seconds.delta(&none);
        let verdict = if delta <= DELTA_MAX {
            "met"
        } else if seconds.is_noise(&none) {
            "inside one std: noise"
        } else {
            "missed"
        };
        println!(
            "goal: with readers at most {DELTA_MAX} % above without: {delta:+.2} %, {verdict}\n"
        );
    }
}

/// The series' claims about its first run (`docs/src/series/stats.md`).
fn judge(kinds: &[Kind], claims: &mut Claims) {
    let find = |beside: Beside| {
        kinds
            .iter()
            .find(|kind| kind.way == Way::Ours && kind.beside == beside)
    };
    if let Some((with, without)) = find(Beside::Readers).zip(find(Beside::Alone)) {
        let ratio = Ratio::of(&with.values(), &without.values());
        claims.timed(
            "stats-8",
            &[("ours, with readers / without", ratio)],
            Bound::AtMost(1.0 + DELTA_MAX / 100.0),
        );
    }
}

/// The runs of the same statistics that no thread read.
fn base(kinds: &[Kind], way: Way) -> Option<Summary> {
    kinds
        .iter()
        .find(|kind| kind.way == way && kind.beside == Beside::Alone)
        .map(Kind::seconds)
}
