//! The order of the tables and rows, and what is measured.

#![cfg(not(loom))]

mod end_to_end;
mod machine;
mod rows;
mod series;
mod table;
mod turns;
mod variant;
mod verdicts;
mod walk;

use memcg_bench_rows::{Bench, RowProgram, parse_rows};

use crate::common::rows::run_with;

pub(crate) const SIZES: [usize; 5] = [64, 256, 1_024, 4_096, 8_192];

const BENCH: Bench = Bench {
    name: "kmem",
    about: "What it costs to account per-processor memory by node: tables beside the patch series', and rows.\n\
            One iteration is one allocation and its end. `table` prints the tables alone.",
};

pub(crate) fn main() {
    let RowProgram { rows: options } = parse_rows(&BENCH);
    let turns = match (options.choice.is_trial(), options.choice.is_small()) {
        (true, _) => turns::TURNS_TRIAL,
        (false, true) => turns::TURNS_QUICK,
        (false, false) => turns::TURNS,
    };
    let mut tables = table::Tables::new(turns);
    run_with(&BENCH, &options, |rows| {
        tables.rows(rows);
        rows::rows(rows);
    });
    if !options.choice.is_small() {
        tables.print_goals();
    }
    tables.verdicts.print();
}
