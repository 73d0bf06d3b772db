//! An item of the statistics by node.

use std::fmt;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::hierarchy::{group_tree, node_stats};
use crate::numa::NodeId;
use crate::stat::Stat;
use crate::stat::reading::Freshness;

/// One item of a group by node at one reading: of its subtree, and of the group alone.
///
/// ```
/// use memcg::{Limits, Stat};
/// use memcg::kmem::{NodeId, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let _kmem = query.precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
/// let now = runtime.root().numa_stat(Stat::KERNEL, memcg::Freshness::Exact);
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
    /// The figures of a group, or of a bare counter, which has none.
    pub(crate) fn read(group: &Counter, stat: Stat, freshness: Freshness) -> NodeStats {
        let Some(groups) = group_tree::if_groups(group.tree()) else {
            return NodeStats { nodes: SmallVec::new(), unplaced: [0; 2], max_error: 0 };
        };
        let read = node_stats::read(group, stat, freshness);
        let nodes = groups.numa.topology.nodes().zip(read.nodes).collect();
        NodeStats { nodes, unplaced: read.unplaced, max_error: read.max_error }
    }

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
    /// was [added](crate::Group::stat_add) without a node. 0 in a runtime of one node, on which everything is.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// runtime.root().stat_add(memcg::Stat::ANON, 4_096);
    /// let now = runtime.root().numa_stat(memcg::Stat::ANON, memcg::Freshness::Exact);
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
    /// See [`Stats::max_error`](crate::figures::Stats::max_error).
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
