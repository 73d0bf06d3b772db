//! `counter/{stock,slots7,slots7_rr,no_return,stock_crate}/groups…`: the children of one root, in
//! turn.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;

use memcg::{CounterConfig, PageCounter};

use crate::common::no_return::NoReturn;
use crate::common::rows::Rows;
use crate::common::slots7::{Random, RoundRobin, Slots7};
use crate::common::stock_crate::{CrateStocked, StockCrate};
use crate::common::team::{Station, Team};
use crate::common::tree::{fan, unstocked};
use crate::common::turns::Turns;
use crate::common::{Library, Policy};

/// Rounds over all groups before the clock starts.
const ROUNDS: u64 = 3;

pub(crate) fn rows(rows: &mut Rows) {
    for count in [1, 4, 8, 32, 1_000, 50_000] {
        for threads in [1, 2] {
            let at = format!("groups{count}/threads{threads}");
            rows.wall(&format!("counter/stock/{at}"), || {
                team(CounterConfig::new(), count, threads, |leaves, station| {
                    serve(Library { leaves }, leaves.len(), station);
                })
            });
            // From eight groups on each turn misses; at 50,000 there is nothing new to see.
            if count <= 1_000 {
                rows.wall(&format!("counter/slots7/{at}"), || {
                    team(unstocked(), count, threads, |leaves, station| {
                        serve(Slots7::<Random>::new(leaves), leaves.len(), station);
                    })
                });
                rows.wall(&format!("counter/slots7_rr/{at}"), || {
                    team(unstocked(), count, threads, |leaves, station| {
                        serve(Slots7::<RoundRobin>::new(leaves), leaves.len(), station);
                    })
                });
            }
            rows.wall(&format!("counter/no_return/{at}"), || {
                team(unstocked(), count, threads, |leaves, station| {
                    serve(NoReturn::new(leaves), leaves.len(), station);
                })
            });
            rows.wall(&format!("counter/stock_crate/{at}"), || {
                stock_crate(count, threads)
            });
        }
    }
}

/// Threads that each have a handle of their own on every leaf.
fn team(
    config: CounterConfig,
    count: usize,
    threads: usize,
    body: impl Fn(&[PageCounter], &Station) + Send + Sync + 'static,
) -> Team {
    let (_, leaves) = fan(config, count);
    Team::new(threads, move |station| {
        let leaves = leaves.clone();
        body(&leaves, &station);
    })
}

/// The slots lie in the counter itself, which the threads therefore share.
fn stock_crate(count: usize, threads: usize) -> Team {
    let (_, leaves) = fan(unstocked(), count);
    let leaves: Arc<[CrateStocked]> = leaves.into_iter().map(CrateStocked::new).collect();
    Team::new(threads, move |station| {
        serve(StockCrate { leaves: &leaves }, leaves.len(), &station)
    })
}

fn serve(mut policy: impl Policy, count: usize, station: &Station) {
    let mut turns = Turns::new(count, station.index, station.threads);
    turns.run(ROUNDS * count as u64, |leaf| pair(&mut policy, leaf));
    station.serve(|iters| turns.run(iters, |leaf| pair(&mut policy, leaf)));
}

#[inline(always)]
fn pair(policy: &mut impl Policy, leaf: usize) {
    let n = black_box(1);
    policy.charge(leaf, n).expect("no limit is set");
    policy.uncharge(leaf, n);
}
