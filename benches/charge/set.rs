//! `counter/set/…`, and `charge/set/…` for groups: counters charged together, each with a stock of its own or with one.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;

use memcg::{Counter, CounterConfig, CounterSet, Group, Limits, Runtime, SetStock};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Pairs before the clock starts.
const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    for (name, stock) in [("independent", SetStock::Independent), ("shared", SetStock::Shared)] {
        for counters in [1, 2, 4] {
            for threads in [1, 2] {
                let id = format!("counter/set/{name}/counters{counters}/threads{threads}");
                rows.wall(&id, || team(stock, counters, threads));
            }
        }
    }
    // The same of a group: memory, and counters beside it. One counter is memory alone.
    for (name, shared) in [("independent", false), ("shared", true)] {
        for counters in [1, 2, 4] {
            for threads in [1, 2] {
                let id = format!("charge/set/{name}/counters{counters}/threads{threads}");
                rows.wall(&id, || group_team(shared, counters, threads));
            }
        }
    }
}

/// Each thread has a handle of its own on a child of the root.
fn group_team(shared: bool, counters: usize, threads: usize) -> Team {
    let mut builder = Runtime::builder();
    let mut declare = |number: usize| {
        let name = format!("counter {number}");
        let counter = builder.counter(&name);
        if shared { counter.shared() } else { counter.independent() }
    };
    let declared: Vec<Counter> = (1..counters).map(&mut declare).collect();
    let runtime = builder.build().expect("nothing is asked for that cannot be had");
    let group = runtime.root().create("below", Limits::new()).expect("a free name in a group that is");
    let amounts: Vec<(Counter, u64)> = [Counter::MEMORY].into_iter().chain(declared).map(|of| (of, 1)).collect();
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let (group, amounts) = (group.clone(), amounts.clone());
        group_pairs(&group, &amounts, TOUCHES);
        station.serve(|iters| group_pairs(&group, &amounts, iters));
    })
}

fn group_pairs(group: &Group, amounts: &[(Counter, u64)], times: u64) {
    for _ in 0..times {
        drop(group.try_charge_set(black_box(amounts)).expect("no limit is set"));
    }
}

/// Two levels, as the other rows of groups.
fn team(stock: SetStock, counters: usize, threads: usize) -> Team {
    let root = CounterSet::root(vec![CounterConfig::new(); counters], stock);
    let set = Arc::new(root.child());
    Team::new(threads, move |station| {
        pairs(&set, TOUCHES);
        station.serve(|iters| pairs(&set, iters));
    })
}

fn pairs(set: &CounterSet, times: u64) {
    for _ in 0..times {
        let n = black_box(1);
        set.try_charge(n).expect("no limit is set");
        set.uncharge(n);
    }
}
