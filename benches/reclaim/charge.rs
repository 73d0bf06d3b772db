//! `reclaim/charge_no_stock/…`: what a soft limit costs a charge that goes up the tree, as each
//! does without a stock.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{Bytes, Limit, Limits, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of a charge.
const SIZE: u64 = 64;

const DEPTH: usize = 4;

const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    // Crossed: each charge brings the lowest group into excess, and the uncharge out of it.
    let soft = [
        ("unset", Limit::Unlimited),
        ("uncrossed", Limit::Bytes(1 << 40)),
        ("crossed", Limit::Bytes(SIZE - 1)),
    ];
    for threads in [1, 2] {
        for (name, soft) in soft {
            let id = format!("reclaim/charge_no_stock/{name}/depth{DEPTH}/threads{threads}");
            rows.wall(&id, || team(soft, threads));
        }
    }
}

/// Each thread has a handle of its own on the lowest group, which has the soft limit.
fn team(soft: Limit, threads: usize) -> Team {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("nothing is asked for that cannot be had");
    let leaf = (1..DEPTH).fold(runtime.root(), |above, depth| {
        let limits = if depth + 1 == DEPTH && soft != Limit::Unlimited {
            Limits::new().soft(soft)
        } else {
            Limits::new()
        };
        above
            .create("below", limits)
            .expect("a free name in a group that is")
    });
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let leaf = leaf.clone();
        let pairs = |times| {
            for _ in 0..times {
                drop(
                    leaf.charge(Bytes(black_box(SIZE)))
                        .expect("no limit is set"),
                );
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}
