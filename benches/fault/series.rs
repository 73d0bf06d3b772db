//! The two tables of the patch series, to stand beside ours.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// Control groups, ms an iteration before and after, and the difference in per cent as the series has it, made from
/// finer figures than it prints.
type Row = (u32, u32, u32, f64);

const AGAINST_MM_NEW: [Row; 3] = [(1, 357, 358, 0.283), (4, 1245, 1214, -2.430), (32, 9281, 8970, -3.470)];
const AGAINST_MM_STABLE: [Row; 3] = [(1, 352, 353, 0.283), (4, 1198, 1217, 1.585), (32, 8980, 9027, 0.526)];

pub(crate) fn print() {
    println!(
        "For comparison, Joshua Hahn, \"[PATCH 0/7 v3] mm/memcontrol, page_counter: move stock from mem_cgroup to\n\
         page_counter\", 25 May 2026: 40 processors, 50 GB, 40 trials of 50 iterations, ms an iteration.\n\
         Before: seven slots for each processor. After: a stock for each counter, to which frees do not return.\n"
    );
    for (name, rows) in [("v3, mm-new", AGAINST_MM_NEW), ("v2, mm-stable", AGAINST_MM_STABLE)] {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header([name, "before", "after", "delta"]);
        for (groups, before, after, delta) in rows {
            table.add_row([
                format!("{groups} cgroups"),
                before.to_string(),
                after.to_string(),
                format!("{delta:+.3} %"),
            ]);
        }
        println!("{}\n", table.trim_fmt());
    }
}
