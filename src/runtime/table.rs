//! The whole tree as a table.

use std::collections::BTreeMap;
use std::fmt;

use crate::counter::credit;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::group::diagnosis::{limit, write_columns};
use crate::hierarchy::{names, stats};
use crate::stat::Unit;
use crate::stat::reading::Freshness;
use crate::stat::visits::Unlist;
use crate::units::Bytes;

/// Every group that is online, parents first, with its figures in bytes and the items of its statistics. It prints as a
/// table with one line for each group and rounded sizes. An item has a column where it is not 0 in some row.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// assert_eq!(runtime.tree().to_string(), "path  live  stocked  peak  max  refused\n/      0 B      0 B   0 B  max        0\n");
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct TreeTable {
    rows: Vec<TreeRow>,
    /// The items that some row has.
    #[cfg_attr(feature = "serde", serde(skip))]
    items: Vec<(String, Unit)>,
}

/// One group in a [`TreeTable`]: the figures of one moment for the whole tree, each exact at a quiescent point.
///
/// ```
/// let runtime = memcg::Runtime::builder().max(100).build()?;
/// let _held = runtime.root().try_charge(10)?;
/// let table = runtime.tree();
/// let row = &table.rows()[0];
/// assert_eq!((row.path.as_str(), row.live, row.stocked, row.max), ("/", 10, 0, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TreeRow {
    /// The path of the group.
    pub path: String,
    /// Bytes that charges of the subtree hold.
    pub live: u64,
    /// Credit of the subtree, in bytes.
    pub stocked: u64,
    /// The highest usage in bytes, credit included.
    pub peak: u64,
    /// The max in bytes; `u64::MAX` where there is none.
    pub max: u64,
    /// Charges refused because this group was full.
    pub refused: u64,
    /// Items of the statistics of the subtree that are not 0, by name.
    pub stats: BTreeMap<String, i64>,
}

impl TreeTable {
    /// The table of one group and all groups below it.
    pub(super) fn of(tree: &Tree, top: &Counter) -> TreeTable {
        // A table only reads, so it runs no barrier: this flush unlists no cells.
        stats::flush(top, Unlist::Never);
        let all: Vec<_> = stats::coordinator(top).items.iter().collect();
        let row = |group: &Counter, stocked: u64| {
            let now = stats::read(group, Freshness::Stale);
            let written = all.iter().filter(|item| now.get(item.stat) != 0);
            TreeRow {
                path: names::path(group),
                live: group.usage().saturating_sub(stocked),
                stocked,
                peak: group.peaks().ever(),
                max: group.max(),
                refused: group.refusals(),
                stats: written.map(|item| (item.name.to_string(), now.get(item.stat))).collect(),
            }
        };
        let rows = credit::figures(tree, top, row);
        let written = |name: &str| rows.iter().any(|row: &TreeRow| row.stats.contains_key(name));
        let items =
            all.iter().filter(|item| written(item.name)).map(|item| (item.name.to_string(), item.unit)).collect();
        TreeTable { rows, items }
    }

    /// Returns the groups, parents first.
    pub fn rows(&self) -> &[TreeRow] {
        &self.rows
    }
}

impl fmt::Display for TreeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["path", "live", "stocked", "peak", "max", "refused"].into_iter();
        let head: Vec<String> = head.chain(self.items.iter().map(|(name, _)| &**name)).map(str::to_string).collect();
        let lines: Vec<Vec<String>> =
            std::iter::once(head).chain(self.rows.iter().map(|row| self.cells(row))).collect();
        write_columns(f, &lines)
    }
}

impl TreeTable {
    fn cells(&self, row: &TreeRow) -> Vec<String> {
        let [live, stocked, peak] = [row.live, row.stocked, row.peak].map(|bytes| Bytes(bytes).to_string());
        let stats = self.items.iter().map(|(name, unit)| cell(row.stats.get(name).copied().unwrap_or(0), *unit));
        [row.path.clone(), live, stocked, peak, limit(row.max), row.refused.to_string()]
            .into_iter()
            .chain(stats)
            .collect()
    }
}

fn cell(figure: i64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => {
            let sign = if figure < 0 { "-" } else { "" };
            format!("{sign}{}", Bytes(figure.unsigned_abs()))
        }
        Unit::Events => figure.to_string(),
        Unit::Nanoseconds => format!("{figure} ns"),
    }
}
