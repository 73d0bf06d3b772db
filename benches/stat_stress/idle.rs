//! Flushes where nothing is pending: what one costs beside a read of what is published.

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

/// Threads that have counted and are there, as the kernel has processors; and groups below the root.
const THREADS: usize = 64;
const GROUPS: usize = 500;

/// Flushes of one round, and as many reads.
const TIMES: u32 = 2_000;
const ROUNDS: usize = 9;

/// Flushes until threads that write no more are taken for idle: a few more than the library says.
const IDLE: usize = 16;

/// How much a flush takes, in reads, that is called not cheap.
const NOT_CHEAP: f64 = 2.0;

pub(crate) const TAKES: Duration = Duration::from_millis(200);

/// Nanoseconds of a flush and of a read, round by round.
#[derive(Default)]
struct Rounds {
    flush: Vec<f64>,
    read: Vec<f64>,
}

pub(crate) fn run(claims: &mut Claims) {
    println!("idle: {THREADS} threads have counted in {GROUPS} groups and are there; nothing is pending.\n");
    let shape = Shape::fan(GROUPS);
    let old = Rstat::new(Policy::Subtree, shape.clone());
    let old = measure(&old, || old.flush(1), || old.read(1, Item::Refault));
    let ours = Library::new(&shape, Freshness::Exact);
    let leaf = ours.groups[1].clone();
    let get = |freshness| leaf.read(freshness).get(Item::Refault.stat());
    let ours = measure(&ours, || _ = black_box(get(Freshness::Exact)), || get(Freshness::Stale));
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["ns", "min", "max", "avg", "std", "runs"]);
    for (what, rounds) in [
        ("the series' flush of a group", &old.flush),
        ("its read, no flush", &old.read),
        ("ours, an exact read", &ours.flush),
        ("ours, a stale read", &ours.read),
    ] {
        let Summary { min, max, mean, std } = Summary::of(rounds);
        let figures = [min, max, mean, std].map(|figure| format!("{figure:.1}"));
        table.add_row([what.to_owned()].into_iter().chain(figures).chain([rounds.len().to_string()]));
    }
    println!("{}\n", table.trim_fmt());
    let ratio = Ratio::of(&old.flush, &old.read);
    claims.timed("stats-14", &[("the series' flush of nothing / a read", ratio)], Bound::AtLeast(NOT_CHEAP));
}

fn measure(statistics: &dyn Statistics, flush: impl Fn(), read: impl Fn() -> i64) -> Rounds {
    let (counted, done) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (counted, done) = (&counted, &done);
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
