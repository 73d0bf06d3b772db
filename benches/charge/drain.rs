//! `counter/drain/…`: one iteration is one drain of a root whose groups all hold credit. With two
//! threads the other goes on charging; printed beside the time: barriers, units, and what the other
//! thread lost.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::figures::TreeCounts;
use memcg::{CounterConfig, PageCounter};

use crate::common::rows::Rows;
use crate::common::team::{Station, Team};
use crate::common::tree::fan;
use crate::common::turns::Turns;

/// Pairs between two looks at whether the lap is over.
const STRIDE: u64 = 64;

/// The other thread runs alone first, to know what it loses: so many times so many pairs, of which
/// the fastest counts.
const ALONE_TIMES: u32 = 16;
const ALONE_PAIRS: u64 = 100_000;

pub(crate) fn rows(rows: &mut Rows) {
    for count in [1, 32, 1_000] {
        for threads in [1, 2] {
            let id = format!("counter/drain/groups{count}/threads{threads}");
            let (root, leaves) = fan(CounterConfig::new(), count);
            let before = root.counts();
            let other = Arc::new(Other::default());
            rows.timed(&id, || team(&root, &leaves, threads, &other));
            if rows.ran(&id) {
                print_counts(&id, &before, &root.counts(), &other);
            }
        }
    }
}

/// The report of the thread that does not drain.
#[derive(Default)]
struct Other {
    /// The lap that the drainer has finished.
    finished: AtomicU64,
    pairs: AtomicU64,
    nanos: AtomicU64,
    alone_nanos: AtomicU64,
}

fn team(root: &PageCounter, leaves: &[PageCounter], threads: usize, other: &Arc<Other>) -> Team {
    let root = root.clone();
    let leaves = leaves.to_vec();
    let other = Arc::clone(other);
    Team::new(threads, move |station| {
        let leaves = leaves.clone();
        let mut turns = Turns::new(leaves.len(), station.index, station.threads);
        if station.index == 0 {
            drainer(&root, &leaves, &mut turns, &station, &other);
        } else {
            bystander(&leaves, &mut turns, &station, &other);
        }
    })
}

fn drainer(
    root: &PageCounter,
    leaves: &[PageCounter],
    turns: &mut Turns,
    station: &Station,
    other: &Other,
) {
    station.serve_timed(|iters| {
        let mut timed = Duration::ZERO;
        for _ in 0..iters {
            // Twice: the first pair may find a counter closed, which the walk opens.
            turns.run(2 * leaves.len() as u64, |leaf| pair(&leaves[leaf]));
            let start = Instant::now();
            black_box(root.drain());
            timed += start.elapsed();
        }
        other.finished.fetch_add(1, Ordering::Release);
        timed
    });
}

fn bystander(leaves: &[PageCounter], turns: &mut Turns, station: &Station, other: &Other) {
    turns.run(3 * leaves.len() as u64, |leaf| pair(&leaves[leaf]));
    let alone = (0..ALONE_TIMES).map(|_| {
        let start = Instant::now();
        turns.run(ALONE_PAIRS, |leaf| pair(&leaves[leaf]));
        start.elapsed().as_nanos() as u64
    });
    other
        .alone_nanos
        .store(alone.min().unwrap_or(0), Ordering::Relaxed);
    let mut lap = 0;
    station.serve_timed(|_| {
        lap += 1;
        let start = Instant::now();
        while other.finished.load(Ordering::Acquire) < lap {
            turns.run(STRIDE, |leaf| pair(&leaves[leaf]));
            other.pairs.fetch_add(STRIDE, Ordering::Relaxed);
        }
        other
            .nanos
            .fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // The row is the drainer's time.
        Duration::ZERO
    });
}

fn pair(counter: &PageCounter) {
    let n = black_box(1);
    counter.charge(n).expect("no limit is set");
    counter.uncharge(n);
}

fn print_counts(id: &str, before: &TreeCounts, after: &TreeCounts, other: &Other) {
    let drains = (after.drains - before.drains) as f64;
    let barriers = (after.barriers - before.barriers) as f64 / drains;
    let drained = (after.drained - before.drained) as f64 / drains;
    print!("{id}: per drain {barriers:.2} barriers, {drained:.0} units");
    let read = |word: &AtomicU64| word.load(Ordering::Relaxed) as f64;
    let pairs = read(&other.pairs);
    let alone = read(&other.alone_nanos) / ALONE_PAIRS as f64;
    if pairs > 0.0 {
        let lost = (read(&other.nanos) - pairs * alone) / drains / 1_000.0;
        print!(
            "; the other thread lost {lost:.2} us (interruption and refills; {alone:.2} ns a pair alone)"
        );
    }
    println!("\n");
}
