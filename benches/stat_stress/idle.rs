//! The visits of a flush for the sake of one group, and its cost where nothing is pending.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::Freshness;

use super::spawn;
use crate::common::claims::{Bound, Claims, Ratio};
use crate::common::statistics::library::Library;
use crate::common::statistics::rstat::{Policy, Rstat};
use crate::common::statistics::shape::Shape;
use crate::common::statistics::{Item, ROOT, Statistics};
use crate::common::stats::Summary;

/// Threads that have counted and are there, as the kernel has processors; and groups below the
/// root.
const THREADS: usize = 64;
const GROUPS: usize = 500;

/// Flushes of one round, and as many reads.
const TIMES: u32 = 2_000;
const ROUNDS: usize = 9;

/// Flushes until threads that write no more are taken for idle: a few more than the library says.
const IDLE: usize = 16;

/// Changes of the busy group between two reads of others: several thresholds.
const BUSY: usize = 1_024;

/// The factor that makes a way too expensive: pairs that a flush visits, flushes for reads.
const MANY: u64 = 10;

/// The time of a flush, in reads, that is called not cheap.
const NOT_CHEAP: f64 = 2.0;

pub(crate) const TAKES: Duration = Duration::from_millis(200);

/// Nanoseconds of a flush and of a read, round by round.
#[derive(Default)]
struct Rounds {
    flush: Vec<f64>,
    read: Vec<f64>,
}

pub(crate) fn run(claims: &mut Claims) {
    visits(claims);
    thresholds(claims);
    nothing_pending(claims);
}

/// All groups have been written, and one is read.
fn visits(claims: &mut Claims) {
    let shape = Shape::fan(GROUPS);
    let written = |statistics: &dyn Statistics, read: &dyn Fn()| {
        (1..=GROUPS).for_each(|group| statistics.add(group, Item::Refault, 1));
        let before = statistics.events().visits;
        read();
        statistics.events().visits - before
    };
    let old = Rstat::new(Policy::UnifiedWait, shape.clone());
    let all = written(&old, &|| old.flush(1));
    let ours = Library::new(&shape, Freshness::Exact);
    let one = written(&ours, &|| _ = black_box(ours.read(1, Item::Refault)));
    println!(
        "{GROUPS} groups have been written, and one is read: {all} pairs of a thread and a group visited where a flush is\n\
         one of everything, {one} ours\n"
    );
    let text = format_args!(
        "pairs visited to read one of {GROUPS} groups: {all} in a flush of everything, {one} ours"
    );
    claims.holds("stats-1", all >= one * MANY, text);
}

/// One group is written all the time, and the others are read.
fn thresholds(claims: &mut Claims) {
    let flushes = |policy| {
        let statistics = Rstat::new(policy, Shape::fan(GROUPS));
        for group in 1..GROUPS {
            (0..BUSY).for_each(|_| statistics.add(GROUPS, Item::Refault, 1));
            black_box(statistics.read(group, Item::Refault));
        }
        statistics.events().flushes
    };
    let global = flushes(Policy::GlobalThreshold);
    let own = flushes(Policy::Subtree);
    let text = format_args!(
        "{} reads of idle groups beside one that is written flush {global} times with one threshold for all, {own} \
         times with one for each group",
        GROUPS - 1
    );
    println!("{text}\n");
    claims.holds("stats-7", global >= MANY * own.max(1), text);
}

fn nothing_pending(claims: &mut Claims) {
    println!(
        "idle: {THREADS} threads have counted in {GROUPS} groups and are there; nothing is pending.\n"
    );
    let shape = Shape::fan(GROUPS);
    let old = Rstat::new(Policy::Subtree, shape.clone());
    let old = measure(&old, || old.flush(1), || old.read(1, Item::Refault));
    let ours = Library::new(&shape, Freshness::Exact);
    let leaf = ours.groups[1].clone();
    let get = |freshness| leaf.read(freshness).get(Item::Refault.stat());
    let ours = measure(
        &ours,
        || _ = black_box(get(Freshness::Exact)),
        || get(Freshness::Stale),
    );
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["ns", "min", "max", "avg", "std", "runs"]);
    for (what, rounds) in [
        ("the series' flush of a group", &old.flush),
        ("its read, no flush", &old.read),
        ("ours, an exact read", &ours.flush),
        ("ours, a stale read", &ours.read),
    ] {
        let Summary {
            min,
            max,
            mean,
            std,
        } = Summary::of(rounds);
        let figures = [min, max, mean, std].map(|figure| format!("{figure:.1}"));
        table.add_row(
            [what.to_owned()]
                .into_iter()
                .chain(figures)
                .chain([rounds.len().to_string()]),
        );
    }
    println!("{}\n", table.trim_fmt());
    let ratio = Ratio::of(&old.flush, &old.read);
    claims.timed(
        "stats-14",
        &[("the series' flush of nothing / a read", ratio)],
        Bound::AtLeast(NOT_CHEAP),
    );
}

fn measure(statistics: &dyn Statistics, flush: impl Fn(), read: impl Fn() -> i64) -> Rounds {
    let counted = Barrier::new(THREADS + 1);
    let done = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let counted = &counted;
            let done = &done;
            spawn(scope, move || {
                statistics.add(1 + thread % GROUPS, Item::Refault, 1);
                counted.wait();
                done.wait();
            });
        }
        counted.wait();
        (0..IDLE).for_each(|_| statistics.flush(ROOT));
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            rounds.flush.push(nanos(&flush));
            rounds.read.push(nanos(|| _ = black_box(read())));
        }
        done.wait();
        rounds
    })
}

fn nanos(work: impl Fn()) -> f64 {
    let start = Instant::now();
    (0..TIMES).for_each(|_| work());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
}
