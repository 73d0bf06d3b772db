//! A group's memory by node.

use std::fmt;

use smallvec::SmallVec;

use super::handle::Group;
use crate::hierarchy::group_tree;
use crate::hierarchy::{node_stats, stats};
use crate::numa::NodeId;
use crate::stat::reading::Freshness;
use crate::stat::{Item, Stat, Unit};

/// One item of a group by node at one reading: of its subtree, and of the group alone.
///
/// ```
/// use memcg::{Limits, NodeId, Placement, Stat};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let _kmem = query.precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
/// let now = runtime.root().numa_stat(Stat::KERNEL);
/// assert_eq!((now.get(NodeId::new(1)), now.local(NodeId::new(1)), now.max_error()), (100, 0, 0));
/// assert_eq!(now.iter().collect::<Vec<_>>(), [(NodeId::new(0), 0), (NodeId::new(1), 100)]);
/// assert_eq!(now.to_string(), "N0=0 N1=100");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStats {
    /// Node, bytes of the subtree, bytes of the group alone.
    nodes: SmallVec<[(NodeId, [i64; 2]); 8]>,
    unplaced: [i64; 2],
    max_error: u64,
}

impl NodeStats {
    /// Returns what is on a node, in the group and all groups below it. 0 for a node that the runtime does not have.
    pub fn get(&self, node: NodeId) -> i64 {
        self.figures(node)[0]
    }

    /// Returns what is on a node, in the group alone.
    pub fn local(&self, node: NodeId) -> i64 {
        self.figures(node)[1]
    }

    fn figures(&self, node: NodeId) -> [i64; 2] {
        self.nodes.iter().find(|(of, _)| *of == node).map_or([0; 2], |(_, figures)| *figures)
    }

    /// Returns what is on no node, in the group and all groups below it: memory that no thread has touched, and what
    /// was [added](Group::stat_add) without a node. 0 in a runtime of one node, on which everything is.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// runtime.root().stat_add(memcg::Stat::ANON, 4_096);
    /// let now = runtime.root().numa_stat(memcg::Stat::ANON);
    /// assert_eq!((now.unplaced(), now.sum()), (4_096, 4_096));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn unplaced(&self) -> i64 {
        self.unplaced[0]
    }

    /// Returns the sum of what is on all nodes and on none.
    pub fn sum(&self) -> i64 {
        self.nodes.iter().fold(self.unplaced[0], |sum, (_, [subtree, _])| sum.wrapping_add(*subtree))
    }

    /// Returns the nodes in order, with what is on each in the group and all groups below it.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, i64)> {
        self.nodes.iter().map(|(node, [subtree, _])| (*node, *subtree))
    }

    /// Returns by how much the figures together may be off from what had been written, in grains of the item's unit.
    /// See [`Stats::max_error`](crate::Stats::max_error).
    pub fn max_error(&self) -> u64 {
        self.max_error
    }
}

/// Prints as a line of `memory.numa_stat`.
impl fmt::Display for NodeStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (node, bytes)) in self.iter().enumerate() {
            write!(f, "{}N{node}={bytes}", if number > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

/// All items of a group that are counted by node. It prints as `memory.numa_stat` does.
///
/// ```
/// use memcg::{NodeId, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let _kmem = runtime.root().precharge(4_096)?.account(&Placement::on(NodeId::new(1), 4_096));
/// let table = runtime.root().numa_table();
/// assert!(table.rows().any(|(name, row)| name == "kernel" && row.sum() == 4_096));
/// assert!(table.to_string().lines().any(|line| line == "kernel N0=0 N1=4096"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaTable(Vec<(String, NodeStats)>);

impl NumaTable {
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

impl Group {
    /// Reads an item by node, as exactly as [`read_exact`](Self::read_exact): the figures contain everything that was
    /// written before the call, and [`NodeStats::max_error`] is what was written while the read ran. Costs two flushes
    /// of the statistics on each node below this group. Of the root, this reads the whole runtime.
    ///
    /// Source: `memory_numa_stat_show` in `mm/memcontrol.c`, and NR_KMEM by node in "per-memcg-per-node kmem
    /// accounting" (Ghiti, 2026, patch 5). See [`NodeStats`] for an example.
    pub fn numa_stat(&self, stat: Stat) -> NodeStats {
        self.node_stats(stat, Freshness::Exact)
    }

    /// Reads what [`numa_stat`](Self::numa_stat) reads as it was published last: loads only. [`NodeStats::max_error`]
    /// says what may be missing.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().numa_stat_stale(memcg::Stat::KERNEL).sum(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn numa_stat_stale(&self, stat: Stat) -> NodeStats {
        self.node_stats(stat, Freshness::Stale)
    }

    fn node_stats(&self, stat: Stat, freshness: Freshness) -> NodeStats {
        let read = node_stats::read(self.first(), stat, freshness);
        let nodes = group_tree::of(self.first()).numa.topology.nodes().zip(read.nodes).collect();
        NodeStats { nodes, unplaced: read.unplaced, max_error: read.max_error }
    }

    /// Reads all items per node that are counted in bytes, exactly, in the form of `memory.numa_stat`. See
    /// [`NumaTable`] for an example.
    pub fn numa_table(&self) -> NumaTable {
        let items = stats::coordinator(self.first()).items.iter();
        let mut freshness = Freshness::Exact;
        // Only the first row flushes. The other rows read what it published.
        let row = |item: Item<'_>| {
            (item.name.to_owned(), self.node_stats(item.stat, std::mem::replace(&mut freshness, Freshness::Stale)))
        };
        NumaTable(items.filter(|item| item.per_node && item.unit == Unit::Bytes).map(row).collect())
    }
}
