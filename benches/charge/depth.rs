//! `counter/{stock,no_stock}/depth…` and what people use instead: an atomic, a mutex, a semaphore.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;
use memcg::{CounterConfig, PageCounter};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::common::rows::Rows;
use crate::common::team::Team;
use crate::common::tree::{chain, unstocked};
use crate::common::turns::Turns;

const MANY: usize = 50_000;

/// Enough pairs for the stock to have found its size.
const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    for depth in [1, 4, 8] {
        for threads in [1, 2] {
            rows.wall(
                &format!("counter/stock/depth{depth}/threads{threads}"),
                || counter(CounterConfig::new(), depth, threads),
            );
            rows.wall(
                &format!("counter/no_stock/depth{depth}/threads{threads}"),
                || counter(unstocked(), depth, threads),
            );
        }
    }
    for threads in [1, 2] {
        rows.wall(&format!("counter/atomic/threads{threads}"), || {
            atomic(threads)
        });
        rows.wall(&format!("counter/mutex/threads{threads}"), || {
            mutex(threads)
        });
        rows.wall(&format!("counter/semaphore/threads{threads}"), || {
            semaphore(threads)
        });
    }
    rows.wall("counter/atomic/groups50000/threads1", atomics);
    rows.wall("counter/atomic_packed/groups50000/threads1", atomics_packed);
}

fn counter(config: CounterConfig, depth: usize, threads: usize) -> Team {
    let leaf = chain(config, depth);
    Team::new(threads, move |station| {
        let leaf = leaf.clone();
        pairs(&leaf, TOUCHES);
        station.serve(|iters| pairs(&leaf, iters));
    })
}

fn pairs(counter: &PageCounter, times: u64) {
    for _ in 0..times {
        let n = black_box(1);
        counter.charge(n).expect("no limit is set");
        counter.uncharge(n);
    }
}

/// The least that a shared count can cost: no limit, no hierarchy.
fn atomic(threads: usize) -> Team {
    let usage = Arc::new(CachePadded::new(AtomicU64::new(0)));
    Team::new(threads, move |station| {
        station.serve(|iters| {
            for _ in 0..iters {
                let n = black_box(1);
                usage.fetch_add(n, Ordering::Relaxed);
                usage.fetch_sub(n, Ordering::Relaxed);
            }
        });
    })
}

/// As many in turn, each a group's own: on a line of its own, behind a handle.
fn atomics() -> Team {
    let usages: Vec<_> = (0..MANY)
        .map(|_| Arc::new(CachePadded::new(AtomicU64::new(0))))
        .collect();
    Team::new(1, move |station| {
        let usages = usages.clone();
        let mut turns = Turns::new(MANY, station.index, station.threads);
        station.serve(|iters| turns.run(iters, |index| pair(&usages[index])));
    })
}

/// As many in turn, eight on a line: the best that the caches can do for them, and nothing that
/// groups with two threads could use.
fn atomics_packed() -> Team {
    let usages: Arc<[AtomicU64]> = (0..MANY).map(|_| AtomicU64::new(0)).collect();
    Team::new(1, move |station| {
        let mut turns = Turns::new(MANY, station.index, station.threads);
        station.serve(|iters| turns.run(iters, |index| pair(&usages[index])));
    })
}

#[inline(always)]
fn pair(usage: &AtomicU64) {
    let n = black_box(1);
    usage.fetch_add(n, Ordering::Relaxed);
    usage.fetch_sub(n, Ordering::Relaxed);
}

fn mutex(threads: usize) -> Team {
    let usage = Arc::new(Mutex::new(0u64));
    let max = black_box(u64::MAX / 2);
    Team::new(threads, move |station| {
        station.serve(|iters| {
            for _ in 0..iters {
                let n = black_box(1);
                let admitted = {
                    let mut usage = usage.lock();
                    let fits = *usage + n <= max;
                    if fits {
                        *usage += n;
                    }
                    fits
                };
                if black_box(admitted) {
                    *usage.lock() -= n;
                }
            }
        });
    })
}

fn semaphore(threads: usize) -> Team {
    let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    Team::new(threads, move |station| {
        station.serve(|iters| {
            for _ in 0..iters {
                let permit = permits
                    .try_acquire_many(black_box(1))
                    .expect("permits for all");
                drop(black_box(permit));
            }
        });
    })
}
