//! `charge/…`: through a group and the guard of its charge, which gives back when it is dropped.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{Bytes, Group, Limit, Limits, OnFull, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;
use crate::common::turns::Turns;

/// Bytes of a charge: a small object's.
pub(crate) const SIZE: u64 = 64;

/// Enough pairs for the stock to have found its size.
pub(crate) const TOUCHES: u64 = 1_000;

/// Rounds over all groups before the clock starts.
const ROUNDS: u64 = 3;

pub(crate) fn rows(rows: &mut Rows) {
    for depth in [1, 4, 8] {
        for threads in [1, 2] {
            rows.wall(
                &format!("charge/stock/depth{depth}/threads{threads}"),
                || chain(true, depth, threads),
            );
            rows.wall(
                &format!("charge/no_stock/depth{depth}/threads{threads}"),
                || chain(false, depth, threads),
            );
        }
    }
    for stock in [true, false] {
        let name = if stock { "stock" } else { "no_stock" };
        rows.wall(&format!("charge/now/{name}/depth4/threads1"), || now(stock));
    }
    rows.wall("charge/now/refused/depth4/threads1", refused_now);
    for count in [1, 32, 1_000, 50_000] {
        for threads in [1, 2] {
            rows.wall(
                &format!("charge/stock/groups{count}/threads{threads}"),
                || children(count, threads),
            );
        }
    }
}

pub(crate) fn runtime(stock: bool) -> Runtime {
    let builder = if stock {
        Runtime::builder()
    } else {
        Runtime::builder().batch(Bytes(0))
    };
    builder
        .build()
        .expect("nothing is asked for that cannot be had")
}

/// Each thread has a handle of its own on the lowest of `depth` groups, the root being the first.
fn chain(stock: bool, depth: usize, threads: usize) -> Team {
    let (runtime, leaf) = below(runtime(stock), depth);
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let leaf = leaf.clone();
        let pairs = |times| (0..times).for_each(|_| pair(&leaf));
        pairs(TOUCHES);
        station.serve(pairs);
    })
}

/// The charge that never blocks, beside `chain`.
fn now(stock: bool) -> Team {
    let (runtime, leaf) = below(runtime(stock), 4);
    Team::new(1, move |station| {
        let _kept = &runtime;
        let leaf = leaf.clone();
        let pairs = |times| {
            (0..times).for_each(|_| {
                drop(
                    leaf.charge_with(Bytes(black_box(SIZE)), OnFull::Now)
                        .expect("no limit is set"),
                )
            });
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}

/// The root is full, and there is nothing to reclaim.
fn refused_now() -> Team {
    let (runtime, leaf) = below(runtime(false), 4);
    let root = runtime.root();
    let held = root.force_charge(Bytes(SIZE));
    root.set_max(Limit::Bytes(SIZE)).expect("a number");
    Team::new(1, move |station| {
        let _kept = (&runtime, &held);
        let leaf = leaf.clone();
        station.serve(|times| {
            (0..times).for_each(|_| {
                drop(
                    leaf.charge_with(Bytes(black_box(SIZE)), OnFull::Now)
                        .expect_err("the root is full"),
                )
            });
        });
    })
}

/// The lowest of `depth` groups, the root being the first.
pub(crate) fn below(runtime: Runtime, depth: usize) -> (Runtime, Group) {
    let leaf = (1..depth).fold(runtime.root(), |above, _| {
        above
            .create("below", Limits::new())
            .expect("a free name in a group that is")
    });
    (runtime, leaf)
}

/// Each thread has handles of its own on all children of the root, and charges them in turn.
fn children(count: usize, threads: usize) -> Team {
    let runtime = runtime(true);
    let root = runtime.root();
    let groups: Vec<Group> = (0..count)
        .map(|number| {
            root.create(&number.to_string(), Limits::new())
                .expect("a free name in a group that is")
        })
        .collect();
    Team::new(threads, move |station| {
        let _kept = &runtime;
        let groups = groups.clone();
        let mut turns = Turns::new(groups.len(), station.index, station.threads);
        turns.run(ROUNDS * groups.len() as u64, |index| pair(&groups[index]));
        station.serve(|iters| turns.run(iters, |index| pair(&groups[index])));
    })
}

#[inline(always)]
fn pair(group: &Group) {
    drop(
        group
            .charge(Bytes(black_box(SIZE)))
            .expect("no limit is set"),
    );
}
