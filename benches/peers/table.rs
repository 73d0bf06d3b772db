//! The rows side by side, as multiples of memcg with its stock.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use memcg_bench_rows::Medians;

/// The row that the others are divided by.
const OURS: &str = "memcg_depth4";

const ROWS: [(&str, &str); 7] = [
    (OURS, "memcg, depth 4"),
    ("memcg_no_stock_depth4", "memcg without stock, depth 4"),
    ("datafusion_greedy", "DataFusion GreedyMemoryPool (flat)"),
    ("datafusion_fair_spill", "DataFusion FairSpillPool (flat)"),
    (
        "datafusion_track_consumers",
        "DataFusion TrackConsumersPool over the greedy one (flat)",
    ),
    ("budget_context_depth1", "budget-context, depth 1"),
    ("budget_context_depth3", "budget-context, depth 3"),
];

/// Print those rows that have been run; a filter may have left out any.
pub(crate) fn print(medians: &Medians) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "64 bytes charged and given back (medians of this run)",
        "1 thread, ns",
        "x memcg",
        "2 threads, ns",
        "x memcg",
    ]);
    for (id, name) in ROWS {
        let [alone, together] = [1, 2].map(|threads| cells(medians, id, threads));
        if alone.is_some() || together.is_some() {
            let [alone, together] = [alone, together].map(Option::unwrap_or_default);
            table.add_row([vec![name.to_owned()], alone.into(), together.into()].concat());
        }
    }
    if !table.is_empty() {
        println!("{}", table.trim_fmt());
    }
}

/// The median, and how many times ours it is if ours has been run too.
fn cells(medians: &Medians, id: &str, threads: usize) -> Option<[String; 2]> {
    let of = |id: &str| medians.get(&format!("peers/{id}/threads{threads}"));
    let nanos = of(id)?;
    let ratio = of(OURS).map_or_else(String::new, |ours| format!("{:.1}", nanos / ours));
    Some([format!("{nanos:.2}"), ratio])
}
