//! `charge/set/…`: counters of a group charged together, each with a stock of its own, beside a
//! charge and an uncharge of one counter: a raw pair.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{CounterKey, Group, Limits, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Pairs before the clock starts.
const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    for threads in [1, 2] {
        rows.wall(&format!("charge/set/raw_pair/threads{threads}"), || {
            team(threads, raw_pairs)
        });
        // One counter is memory alone.
        rows.wall(&format!("charge/set/counters1/threads{threads}"), || {
            team(threads, sets::<1>)
        });
        rows.wall(&format!("charge/set/counters2/threads{threads}"), || {
            team(threads, sets::<2>)
        });
        rows.wall(&format!("charge/set/counters4/threads{threads}"), || {
            team(threads, sets::<4>)
        });
    }
}

/// Each thread has a handle of its own on a child of the root. `pairs` charges memory, and counters
/// beside it.
fn team<const N: usize>(threads: usize, pairs: fn(&Group, &[(CounterKey, usize); N], u64)) -> Team {
    let mut builder = Runtime::builder();
    let amounts = std::array::from_fn(|number| match number {
        0 => (CounterKey::MEMORY, 1),
        further => (
            builder.counter(&format!("counter {further}"), memcg::Unit::Bytes),
            1,
        ),
    });
    let runtime = builder
        .build()
        .expect("nothing is asked for that cannot be had");
    let group = runtime
        .root()
        .create("below", Limits::new())
        .expect("a free name in a group that is");
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let group = group.clone();
        pairs(&group, &amounts, TOUCHES);
        station.serve(|iters| pairs(&group, &amounts, iters));
    })
}

fn sets<const N: usize>(group: &Group, amounts: &[(CounterKey, usize); N], times: u64) {
    for _ in 0..times {
        drop(
            group
                .charge_set(black_box(amounts))
                .expect("no limit is set"),
        );
    }
}

fn raw_pairs(group: &Group, _: &[(CounterKey, usize); 1], times: u64) {
    for _ in 0..times {
        let n = black_box(1);
        group.raw().charge(n).expect("no limit is set");
        group.raw().uncharge(n);
    }
}
