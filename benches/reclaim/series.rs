//! The patch series' figures for idle groups, to stand beside ours.

#![cfg(not(loom))]

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// System and elapsed seconds of a stream, beside 8,192 groups that are idle.
const ROWS: [(&str, f64, f64); 3] = [
    ("base: a tree of groups, sorted by excess", 41.1, 96.8),
    ("two passes, no skipping", 241.8, 301.3),
    ("two passes, subtrees without excess skipped", 54.4, 79.0),
];

pub(crate) fn print() {
    println!(
        "For comparison, Michal Hocko, \"memcg: track children in soft limit excess to improve soft limit\", June\n\
         2013: a stream with soft limit 0 beside 8,192 idle groups, seconds, and per cent of base.\n"
    );
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_header(["", "system", "", "elapsed", ""]);
    let (_, system, elapsed) = ROWS[0];
    for (what, seconds, wall) in ROWS {
        table.add_row([
            what.to_owned(),
            format!("{seconds:.1}"),
            format!("{:.0} %", seconds / system * 100.0),
            format!("{wall:.1}"),
            format!("{:.0} %", wall / elapsed * 100.0),
        ]);
    }
    println!("{}\n", table.trim_fmt());
}
