//! `counter/at_limit/…`: a counter that lives at its limit. `counter/refused/…`: refusals alone,
//! which find no credit that would help. `counter/cross_thread_free/…`: one thread charges, another
//! frees.

#![cfg(not(loom))]

use std::hint::black_box;
use std::time::{Duration, Instant};

use memcg::{CounterConfig, PageCounter};

use crate::common::BATCH;
use crate::common::rows::Rows;
use crate::common::team::{Station, Team};
use crate::common::tree::{chain, unstocked};

/// The limit of the root, in units.
const MAX: u64 = 4_096;

/// The limit of a root that is nearly empty.
const LARGE: u64 = 1 << 40;

/// Units handed from one thread to the other at a time.
const HANDED: u64 = 1_024;

pub(crate) fn rows(rows: &mut Rows) {
    for depth in [1, 4] {
        for threads in [1, 2] {
            rows.wall(
                &format!("counter/at_limit/depth{depth}/threads{threads}"),
                || at_limit(CounterConfig::new(), depth, threads),
            );
            rows.wall(
                &format!("counter/at_limit_no_stock/depth{depth}/threads{threads}"),
                || at_limit(unstocked(), depth, threads),
            );
        }
    }
    for depth in [1, 4] {
        let whole = || CounterConfig::new().adaptive(false).batch(BATCH);
        let kinds = [
            ("no_stock", unstocked()),
            ("stock", CounterConfig::new()),
            ("stock_not_adaptive", whole()),
        ];
        for (kind, config) in kinds {
            rows.wall(&format!("counter/refused/{kind}/depth{depth}"), || {
                refused(config.clone(), depth)
            });
        }
        for (kind, config) in [("no_stock", unstocked()), ("stock", CounterConfig::new())] {
            rows.wall(
                &format!("counter/refused_too_large/{kind}/depth{depth}"),
                || too_large(config.clone(), depth),
            );
        }
    }
    rows.timed("counter/cross_thread_free/depth4", || {
        cross_thread_free(CounterConfig::new())
    });
    rows.timed("counter/cross_thread_free_no_stock/depth4", || {
        cross_thread_free(unstocked())
    });
}

/// One iteration: the last unit is charged, one more is refused, the unit goes back. With two
/// threads at one counter either try may be refused, because the other has the last unit.
fn at_limit(config: CounterConfig, depth: usize, threads: usize) -> Team {
    let leaf = chain(config.max(MAX), depth);
    leaf.charge(MAX - 1).expect("below the limit");
    Team::new(threads, move |station| {
        let leaf = leaf.clone();
        last_unit(&leaf, 100);
        station.serve(|iters| last_unit(&leaf, iters));
    })
}

fn last_unit(counter: &PageCounter, times: u64) {
    for _ in 0..times {
        let n = black_box(1);
        let admitted = u64::from(counter.charge(n).is_ok()) + u64::from(counter.charge(n).is_ok());
        if admitted > 0 {
            counter.uncharge(admitted);
        }
    }
}

/// One iteration: a unit is refused at a root that is full, and has been all the time.
fn refused(config: CounterConfig, depth: usize) -> Team {
    let leaf = chain(config.max(MAX), depth);
    leaf.charge(MAX).expect("as large as the limit");
    Team::new(1, move |station| {
        let refusals = |times| (0..times).for_each(|_| refuse(&leaf, 1));
        refusals(100);
        station.serve(refusals);
    })
}

/// One iteration: more is refused than any credit could make room for, then a unit is charged and
/// uncharged, so that stocks have credit.
fn too_large(config: CounterConfig, depth: usize) -> Team {
    let leaf = chain(config.max(LARGE), depth);
    Team::new(1, move |station| {
        let refusals = |times| {
            for _ in 0..times {
                refuse(&leaf, 2 * LARGE);
                leaf.charge(black_box(1)).expect("far below the limit");
                leaf.uncharge(1);
            }
        };
        refusals(100);
        station.serve(refusals);
    })
}

fn refuse(counter: &PageCounter, units: u64) {
    black_box(counter.charge(black_box(units))).expect_err("there is no room for it");
}

/// While one thread charges a batch of units one by one, the other frees the batch before. Handing
/// over and waiting are not timed; an iteration is a charge by the one plus an uncharge by the
/// other.
fn cross_thread_free(config: CounterConfig) -> Team {
    let leaf = chain(config, 4);
    // The first batch to free: the threads work on different ones from then on.
    leaf.charge(HANDED).expect("no limit is set");
    Team::new(2, move |station| {
        let leaf = leaf.clone();
        hand_over(&leaf, &station, 4 * HANDED);
        station.serve_timed(|iters| hand_over(&leaf, &station, iters));
    })
}

fn hand_over(counter: &PageCounter, station: &Station, units: u64) -> Duration {
    let mut timed = Duration::ZERO;
    let mut left = units;
    while left > 0 {
        let batch = left.min(HANDED);
        station.meet();
        let start = Instant::now();
        for _ in 0..batch {
            let n = black_box(1);
            if station.index == 0 {
                counter.charge(n).expect("no limit is set");
            } else {
                counter.uncharge(n);
            }
        }
        timed += start.elapsed();
        left -= batch;
    }
    timed
}
