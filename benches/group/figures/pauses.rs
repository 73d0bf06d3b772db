//! The longest that a charge, an addition to the statistics, and a group's life take while another
//! thread takes snapshots of all groups, one after the other; beside the same without.
//!
//! A step is timed by itself, the slow one among thousands of fast ones: that is a pause. The part
//! of it in which the thread waited for a processor is no part of it.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use hdrhistogram::Histogram;
use memcg::{Bytes, Group, Limits, Runtime, StatKey};

use super::Options;
use crate::common::clock::{Latency, RunQueue};
use crate::common::host::Others;
use crate::program::names::Names;
use crate::program::snapshot::{Watcher, charged};
use crate::program::{create, pair};

/// Steps shorter than this are not asked for their wait: to ask takes as long as many of them.
const PAUSE: Duration = Duration::from_micros(20);

/// What is done meanwhile.
#[derive(Clone, Copy)]
enum Step {
    /// A charge from the stock, and its return.
    Charge,
    /// The same of more than a stock holds: both walk to the root.
    Walk,
    StatAdd,
    /// From create to release, with a charge.
    Life,
}

const STEPS: [(Step, &str); 4] = [
    (Step::Charge, "charge from the stock"),
    (Step::Walk, "charge up the tree"),
    (Step::StatAdd, "`stat_add`"),
    (Step::Life, "create, charge, offline, drop"),
];

/// More than a thread charges in advance.
const LARGE: Bytes = Bytes(8 << 20);

pub(crate) fn print(options: &Options) {
    println!(
        "The longest steps of a thread while another one takes snapshots of {} groups all the time, in microseconds,\n\
         without its waits for a processor; each for {} s.\n",
        options.groups,
        time(options).as_secs_f64()
    );
    let others = Others::watch();
    let (runtime, held) = charged(options.groups.into());
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "us",
        "snapshots",
        "count",
        "50 %",
        "99.9 %",
        "99.99 %",
        "max",
    ]);
    for (step, name) in STEPS {
        for is_watched in [false, true] {
            let watcher = is_watched.then(|| Watcher::start(&runtime));
            let times = run(&runtime, step, time(options));
            let taken = watcher.map_or(0, Watcher::stop);
            let at = |quantile| format!("{:.1}", times.value_at_quantile(quantile) as f64 / 1e3);
            let quantiles = [0.5, 0.999, 0.999_9, 1.0].map(at);
            let head = [name.to_owned(), taken.to_string(), times.len().to_string()];
            table.add_row(head.into_iter().chain(quantiles));
        }
    }
    println!("{}\n{others}\n", table.trim_fmt());
    drop(held);
}

/// The time of both of each kind.
pub(crate) fn takes(options: &Options) -> Duration {
    time(options) * 2 * STEPS.len() as u32
}

/// As long as some snapshots of a million groups.
fn time(options: &Options) -> Duration {
    options.slice() * options.turns as u32 * 4
}

/// Nanoseconds of each step.
fn run(runtime: &Arc<Runtime>, step: Step, time: Duration) -> Histogram<u64> {
    let root = runtime.root();
    let group = root
        .create("paused", Limits::new())
        .expect("no group has the name");
    let mut names = Names::new(0);
    let mut step = || match step {
        Step::Charge => pair(&group),
        Step::Walk => drop(group.charge(black_box(LARGE)).expect("no limit is set")),
        Step::StatAdd => group.stat_add(StatKey::FILE, black_box(4_096)),
        Step::Life => life(&root, &mut names),
    };
    let mut times =
        Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that a histogram can have");
    let run_queue = RunQueue::of_this_thread();
    let waited = || run_queue.as_ref().and_then(RunQueue::waited);
    // Pools and stocks first.
    (0..1_000).for_each(|_| step());
    let mut waited_before = waited();
    let start = Instant::now();
    // A step begins where the one before has ended, so that each wait is in one of them.
    let mut began = start;
    while began - start < time {
        step();
        let ended = Instant::now();
        let mut took = ended - began;
        began = ended;
        if took >= PAUSE {
            let waited_now = waited();
            let spent = waited_now
                .zip(waited_before)
                .map(|(now, before)| now.saturating_sub(before));
            took = Latency::new(took, spent.unwrap_or_default()).own;
            waited_before = waited_now;
            began = Instant::now();
        }
        times.saturating_record(took.as_nanos() as u64);
    }
    group.offline().expect("no child is online");
    times
}

fn life(root: &Group, names: &mut Names) {
    let group = create(root, names);
    pair(&group);
    group.offline().expect("no child is online");
}
