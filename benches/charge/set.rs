//! `counter/set/…`: counters charged together, each with its own stock or with one entry for all.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;

use memcg::{CounterConfig, CounterSet, SetStock};

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
