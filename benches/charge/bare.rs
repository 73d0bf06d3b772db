//! `counter/bare_slot/…` and `counter/bare_walk/…`: the least that a hit and a walk can cost on
//! this machine. The rows of the library are judged by their ratio to these.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use crate::common::BATCH;
use crate::common::rows::Rows;
use crate::common::slot::Slot;
use crate::common::team::Team;
use crate::common::turns::Turns;

pub(crate) fn rows(rows: &mut Rows) {
    for count in [1, 32] {
        for threads in [1, 2] {
            rows.wall(
                &format!("counter/bare_slot/groups{count}/threads{threads}"),
                || slots(count, threads),
            );
        }
    }
    for depth in [1, 4, 8] {
        for threads in [1, 2] {
            rows.wall(
                &format!("counter/bare_walk/depth{depth}/threads{threads}"),
                || walk(depth, threads),
            );
        }
    }
    rows.wall("counter/bare_walk/leaves2/depth4/threads2", leaves);
}

/// A slot of two words and the capacity of its stock: both tests of a consume and both of a put,
/// and no look-up, no thread-local, no limit. Each operation gets its pointers anew, as from a
/// look-up: a processor that renames memory would else keep the words in registers.
struct Bare {
    slot: Box<Slot>,
    capacity: Box<CachePadded<AtomicU64>>,
}

impl Bare {
    fn new() -> Bare {
        let slot = Box::<Slot>::default();
        slot.set(BATCH);
        Bare {
            slot,
            capacity: Box::new(CachePadded::new(AtomicU64::new(2 * BATCH))),
        }
    }

    #[inline(always)]
    fn pair(&self) {
        let n = black_box(1);
        assert!(
            black_box(&self.slot).consume(n),
            "half of the capacity is credit"
        );
        assert!(
            black_box(&self.slot).put_within(n, black_box(&self.capacity)),
            "no thread closes it"
        );
    }
}

/// Each thread has slots of its own, as in the library.
fn slots(count: usize, threads: usize) -> Team {
    Team::new(threads, move |station| {
        let slots: Vec<Bare> = (0..count).map(|_| Bare::new()).collect();
        let slots = black_box(slots);
        let mut turns = Turns::new(count, 0, 1);
        match &slots[..] {
            [slot] => station.serve(|iters| (0..iters).for_each(|_| slot.pair())),
            _ => station.serve(|iters| turns.run(iters, |index| slots[index].pair())),
        }
    })
}

/// As many locked additions as there are levels, and as many subtractions: no limit, no test.
fn walk(depth: usize, threads: usize) -> Team {
    let levels = levels(depth);
    Team::new(threads, move |station| {
        let levels = levels.clone();
        station.serve(|iters| (0..iters).for_each(|_| pair(&levels)));
    })
}

/// Two threads with a leaf each, below the same three levels.
fn leaves() -> Team {
    let above = levels(3);
    Team::new(2, move |station| {
        let levels: Vec<_> = levels(1).into_iter().chain(above.iter().cloned()).collect();
        station.serve(|iters| (0..iters).for_each(|_| pair(&levels)));
    })
}

type Level = Arc<CachePadded<AtomicU64>>;

fn levels(depth: usize) -> Vec<Level> {
    (0..depth).map(|_| Level::default()).collect()
}

#[inline(always)]
fn pair(levels: &[Level]) {
    let n = black_box(1);
    for level in levels {
        level.fetch_add(n, Ordering::SeqCst);
    }
    for level in levels {
        level.fetch_sub(n, Ordering::SeqCst);
    }
}
