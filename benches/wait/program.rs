//! The rows, and the goals.

#![cfg(not(loom))]

mod elsewhere;
mod futures;
mod high;
mod line;

use crate::common::goals::Goals;
use crate::common::rows::Rows;

/// What "as before" leaves to the machine.
const EQUAL: f64 = 1.05;

pub(crate) fn main() {
    let mut rows = Rows::from_args();
    line::rows(&mut rows);
    futures::rows(&mut rows);
    high::rows(&mut rows);
    elsewhere::rows(&mut rows);

    let medians = rows.finish();
    let mut goals = Goals::new(&medians);
    goals.ratio("charge/high/below", "charge/high/unset", EQUAL);
    for what in ["hit", "walk"] {
        let of = |waiters| format!("charge/{waiters}/depth4/{what}");
        goals.ratio(&of("waiters_elsewhere"), &of("no_waiters"), EQUAL);
    }
    goals.print();
}
