//! The rows, and the goals.

#![cfg(not(loom))]

mod bare;
mod cache;
mod elsewhere;
mod futures;
mod high;
mod line;

use memcg_bench_rows::{Bench, Goals};

use crate::common::rows;

const BENCH: Bench = Bench {
    name: "wait",
    about: "What it costs to wait for room, and to have others wait.\n\
            One iteration is one charge and one uncharge, unless the row says otherwise.",
};

/// The tolerance that "as before" leaves to the machine.
const EQUAL: f64 = 1.05;

/// A hand-over of room, to one of nothing.
const HANDOVER: f64 = 1.3;

pub(crate) fn main() {
    let measured = rows::run(&BENCH, |rows| {
        bare::rows(rows);
        line::rows(rows);
        futures::rows(rows);
        cache::rows(rows);
        high::rows(rows);
        elsewhere::rows(rows);
    });
    let mut goals = Goals::new(&measured);
    goals.ratio(
        "wait/handover/threads2",
        "wait/bare_handover/threads2",
        HANDOVER,
    );
    goals.ratio("charge/high/below", "charge/high/unset", EQUAL);
    for what in ["hit", "walk"] {
        let of = |waiters| format!("charge/{waiters}/depth4/{what}");
        goals.ratio(&of("waiters_elsewhere"), &of("no_waiters"), EQUAL);
    }
    goals.print();
}
