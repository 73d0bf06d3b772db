//! `charge/forced/…`: the charge that cannot be refused, where all fits and where the root is above
//! its max.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{Bytes, Limit};

use super::group::{SIZE, below, runtime};
use crate::common::rows::Rows;
use crate::common::team::Team;

pub(crate) fn rows(rows: &mut Rows) {
    for depth in [1, 4] {
        rows.wall(
            &format!("charge/forced/no_stock/depth{depth}/threads1"),
            || forced(false, depth),
        );
        rows.wall(
            &format!("charge/forced/above_max/depth{depth}/threads1"),
            || forced(true, depth),
        );
    }
}

/// Above max the root holds as much as it may, so that each charge goes above it, and each uncharge
/// comes back to it.
fn forced(above: bool, depth: usize) -> Team {
    // The default stock, which the first charges close: what a service has whose tree is full.
    let (runtime, leaf) = below(runtime(above), depth);
    let held = runtime.root().force_charge(Bytes(SIZE));
    if above {
        runtime
            .root()
            .set_max(Limit::Bytes(SIZE))
            .expect("a number");
    }
    Team::new(1, move |station| {
        let _kept = (&runtime, &held);
        let leaf = leaf.clone();
        let pairs =
            |times| (0..times).for_each(|_| drop(leaf.force_charge(Bytes(black_box(SIZE)))));
        pairs(super::group::TOUCHES);
        station.serve(pairs);
    })
}
