//! The order of the rows.

#![cfg(not(loom))]

mod bare;
mod burst;
mod central;
mod current;
mod depth;
mod drain;
mod forced;
mod goals;
mod group;
mod groups;
mod limit;
mod set;

use memcg_bench_rows::Bench;

use crate::common::rows;

const BENCH: Bench = Bench {
    name: "charge",
    about: "Charges, timed: a counter, a group, and what people use in their place.\n\
            One iteration is one charge and one uncharge, unless the row says otherwise.",
};

pub(crate) fn main() {
    let measured = rows::run(&BENCH, |rows| {
        bare::rows(rows);
        depth::rows(rows);
        group::rows(rows);
        forced::rows(rows);
        current::rows(rows);
        groups::rows(rows);
        limit::rows(rows);
        central::rows(rows);
        burst::rows(rows);
        drain::rows(rows);
        set::rows(rows);
    });
    goals::print(&measured);
}
