//! Our figures in the form of the series' two tables, and theirs beside them.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::{Trials, Variant};

/// Control groups, ms an iteration before and after, and the difference in per cent as the series
/// has it, made from finer figures than it prints.
type Row = (usize, u32, u32, f64);

const AGAINST_MM_NEW: [Row; 3] = [
    (1, 357, 358, 0.283),
    (4, 1245, 1214, -2.430),
    (32, 9281, 8970, -3.470),
];
const AGAINST_MM_STABLE: [Row; 3] = [
    (1, 352, 353, 0.283),
    (4, 1198, 1217, 1.585),
    (32, 8980, 9027, 0.526),
];

pub(crate) fn print(trials: &[(usize, Trials)]) {
    println!(
        "Beside Joshua Hahn, \"[PATCH 0/7 v3] mm/memcontrol, page_counter: move stock from\n\
         mem_cgroup to page_counter\", 25 May 2026: 40 processors, 50 GB, 40 trials of 50\n\
         iterations, ms an iteration. Before: seven slots for each processor. After: a\n\
         stock for each counter. Deltas in per cent.\n"
    );
    for (name, rows) in [
        ("mm-new, v3", AGAINST_MM_NEW),
        ("mm-stable, v2", AGAINST_MM_STABLE),
    ] {
        let mut table = Table::new();
        let head = [
            "cgroups",
            name,
            "after",
            "delta",
            "ours: slots7",
            "stock",
            "delta",
            "runs",
        ];
        table.load_style(ASCII_MARKDOWN).set_header(head);
        for (groups, before, after, delta) in rows {
            let theirs = [
                groups.to_string(),
                before.to_string(),
                after.to_string(),
                format!("{delta:+.3}"),
            ];
            let Some((_, ours)) = trials.iter().find(|(count, _)| *count == groups) else {
                continue;
            };
            let slots7 = ours.of(Variant::Slots7);
            let stock = ours.of(Variant::Stock);
            table.add_row(theirs.into_iter().chain([
                format!("{:.3}", slots7.mean),
                format!("{:.3}", stock.mean),
                format!("{:+.3}", stock.delta(&slots7)),
                ours.runs(Variant::Stock).len().to_string(),
            ]));
        }
        println!("{}\n", table.trim_fmt());
    }
}
