//! The whole tree as a table.

use std::fmt;

use crate::charge::page_counter::Node;
use crate::charge::pool::slow_path;
use crate::charge::tree::Tree;
use crate::units::{Bytes, Limit};

/// Every group that is online, parents first, with its figures in bytes. Prints as a table, one line each, sizes
/// rounded.
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
}

/// One group in a [`TreeTable`]: the figures of one moment for the whole tree, each exact at a quiescent point.
///
/// ```
/// let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
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
    /// Where the group is.
    pub path: String,
    /// What charges of the subtree hold.
    pub live: u64,
    /// Credit of the subtree.
    pub stocked: u64,
    /// The highest usage, credit included.
    pub peak: u64,
    /// The max; `u64::MAX` where there is none.
    pub max: u64,
    /// Charges refused because this group was full.
    pub refused: u64,
}

impl TreeTable {
    /// Of one counter and all below it.
    pub(super) fn of(tree: &Tree, top: &Node) -> TreeTable {
        let row = |node: &Node, stocked: u64| TreeRow {
            path: node.path(),
            live: node.usage().saturating_sub(stocked),
            stocked,
            peak: node.peaks().ever(),
            max: node.max(),
            refused: node.refusals(),
        };
        TreeTable { rows: slow_path(|_, _| tree.figures(top, row)) }
    }

    /// The groups, parents first.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.tree().rows().len(), 1);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn rows(&self) -> &[TreeRow] {
        &self.rows
    }
}

impl fmt::Display for TreeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["path", "live", "stocked", "peak", "max", "refused"].map(str::to_string);
        let cells = |row: &TreeRow| {
            let max = if row.max == u64::MAX { Limit::Max.to_string() } else { Bytes(row.max).to_string() };
            let [live, stocked, peak] = [row.live, row.stocked, row.peak].map(|bytes| Bytes(bytes).to_string());
            [row.path.clone(), live, stocked, peak, max, row.refused.to_string()]
        };
        let lines: Vec<[String; 6]> = std::iter::once(head).chain(self.rows.iter().map(cells)).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0));
        for [path, figures @ ..] in &lines {
            write!(f, "{path:width$}", width = widths[0])?;
            for (figure, width) in figures.iter().zip(&widths[1..]) {
                write!(f, "  {figure:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
