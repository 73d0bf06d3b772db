//! `charge/near_limit/…`: charges of a group whose limit is near, so that no thread keeps credit.
//! By a walk each, and by the group's central stock.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::CentralStock;
use memcg::{Bytes, Group, Limit, OnFull};

use super::group::{SIZE, TOUCHES, below, runtime};
use crate::common::rows::Rows;
use crate::common::team::Team;

/// So many charges fit.
const FIT: u64 = 64;

pub(crate) fn rows(rows: &mut Rows) {
    for depth in [2, 4] {
        for threads in [1, 2] {
            rows.wall(
                &format!("charge/near_limit/walk/depth{depth}/threads{threads}"),
                || near(depth, threads, walk),
            );
            rows.wall(
                &format!("charge/near_limit/central/depth{depth}/threads{threads}"),
                || near(depth, threads, central),
            );
        }
    }
}

/// All threads charge one group, the lowest of `depth`.
fn near(
    depth: usize,
    threads: usize,
    pair: impl Fn(&Group, &CentralStock) + Copy + Send + Sync + 'static,
) -> Team {
    let (runtime, leaf) = below(runtime(true), depth);
    leaf.set_max(Limit::Bytes(FIT * SIZE)).expect("a number");
    Team::new(threads, move |station| {
        let _kept = &runtime;
        let stock = CentralStock::of(&leaf);
        let leaf = leaf.clone();
        let pairs = |times| (0..times).for_each(|_| pair(&leaf, &stock));
        pairs(TOUCHES);
        station.serve(pairs);
    })
}

#[inline(always)]
fn walk(group: &Group, _: &CentralStock) {
    drop(
        group
            .charge_with(Bytes(black_box(SIZE)), OnFull::IfRoom)
            .expect("far more fit"),
    );
}

#[inline(always)]
fn central(_: &Group, stock: &CentralStock) {
    stock.give_back(
        stock
            .charge_if_room(Bytes(black_box(SIZE)))
            .expect("far more fit"),
    );
}
