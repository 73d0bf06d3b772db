//! A group's memory by node.

use std::fmt;

use super::handle::Group;
use crate::hierarchy::node_stats::NodeStats;
use crate::hierarchy::stats;
use crate::stat::reading::Freshness;
use crate::stat::{Item, Stat, Unit};

/// All items of a group that are counted by node. It prints as `memory.numa_stat` does.
///
/// ```
/// use memcg::kmem::{NodeId, NumaTable, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let _kmem = runtime.root().precharge(4_096)?.account(&Placement::on(NodeId::new(1), 4_096));
/// let table = NumaTable::of(&runtime.root());
/// assert!(table.rows().any(|(name, row)| name == "kernel" && row.sum() == 4_096));
/// assert!(table.to_string().lines().any(|line| line == "kernel N0=0 N1=4096"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaTable(Vec<(String, NodeStats)>);

impl NumaTable {
    /// Reads all items per node of `group` that are counted in bytes, exactly, in the form of `memory.numa_stat`. It
    /// costs an exact [`Group::numa_stat`], and a look at each item and node.
    pub fn of(group: &Group) -> NumaTable {
        let items = stats::coordinator(group.first()).items.iter();
        let mut freshness = Freshness::Exact;
        // Only the first row flushes. The other rows read what it published.
        let row = |item: Item<'_>| {
            (item.name.to_owned(), group.numa_stat(item.stat, std::mem::replace(&mut freshness, Freshness::Stale)))
        };
        NumaTable(items.filter(|item| item.per_node && item.unit == Unit::Bytes).map(row).collect())
    }

    /// Returns the items with their names.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &NodeStats)> {
        self.0.iter().map(|(name, row)| (name.as_str(), row))
    }
}

impl fmt::Display for NumaTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().try_for_each(|(name, row)| writeln!(f, "{name} {row}"))
    }
}

/// # Memory on nodes
impl Group {
    /// Reads an item by node, as fresh as the caller asks. [`Freshness`] says what may be missing, over all nodes
    /// together, and [`NodeStats::max_error`] how far the figures may be off. An exact read costs two flushes of the
    /// statistics on each node below this group. Of the root, this reads the whole runtime.
    ///
    /// Source: `memory_numa_stat_show` in `mm/memcontrol.c`, and NR_KMEM by node in "per-memcg-per-node kmem
    /// accounting" (Ghiti, 2026, patch 5). See [`NodeStats`] for another example.
    ///
    /// ```
    /// # use memcg::{Freshness, Stat};
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().numa_stat(Stat::KERNEL, Freshness::Exact).sum(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn numa_stat(&self, stat: Stat, freshness: Freshness) -> NodeStats {
        NodeStats::read(self.first(), stat, freshness)
    }
}
