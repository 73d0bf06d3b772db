//! Memory nodes of a runtime: the nodes that it accounts for, what finds a page's node, the nodes
//! of each tier.

use super::{Runtime, RuntimeBuilder};
use crate::group::CounterKey;
use crate::hierarchy::group_tree;
use crate::numa::config::Tier;
use crate::numa::{NodeId, NodeOf, Topology};
use crate::stat::Unit;

impl RuntimeBuilder {
    /// Sets the memory nodes to account for: by default [`Topology::one_node`], on any machine. The
    /// default reads the number of processors once in a process. With one node the runtime looks up
    /// no page, so nodes cost nothing.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg::kmem::{NodeId, Topology};
    ///
    /// let machine = Topology::fixed([(NodeId::new(0), vec![0, 1]), (NodeId::new(2), vec![])])?;
    /// let runtime = Runtime::builder().topology(machine.clone()).build()?;
    /// assert_eq!(*runtime.topology(), machine);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn topology(mut self, topology: Topology) -> Self {
        self.numa.topology = Ok(topology);
        self
    }

    /// Sets a topology of so many nodes, numbered from 0, with one processor each. Use it in tests,
    /// and in a service that places memory by hand.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().nodes(2).build()?.topology().nodes().len(), 2);
    /// assert!(memcg::Runtime::builder().nodes(0).build().is_err());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn nodes(mut self, nodes: usize) -> Self {
        let number = |node: usize| NodeId::new(u16::try_from(node).unwrap_or(u16::MAX));
        self.numa.topology = Topology::fixed((0..nodes).map(|node| (number(node), [node])));
        self
    }

    /// Sets what finds the nodes of pages, in place of the system: a table, a cache, a simulation.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg::kmem::{NodeId, OneNode};
    ///
    /// let runtime = Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
    /// let data = [1_u8; 100];
    /// let placement = memcg::kmem::Placement::of(data.as_ptr_range(), runtime.node_of());
    /// assert_eq!(placement.on_node(NodeId::new(1)), 100);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn node_of(mut self, node_of: impl NodeOf + 'static) -> Self {
        self.numa.node_of = Some(std::sync::Arc::new(node_of));
        self
    }

    /// Declares a tier: a further counter of the bytes that are accounted on these nodes. The
    /// counter's max limits them, and [`Kmem::migrated`](crate::kmem::Kmem::migrated) moves them. A
    /// node may be in several tiers.
    ///
    /// Source: "per-memcg tiered memory limits" (Hahn, 2026), whose `toptier` is one of these.
    ///
    /// ```
    /// use memcg::kmem::{PrechargeBound, NodeId, Placement};
    ///
    /// let fast = NodeId::new(0);
    /// let slow = NodeId::new(1);
    /// let mut builder = memcg::Runtime::builder().nodes(2);
    /// let toptier = builder.tier("toptier", [fast]);
    /// let runtime = builder.build()?;
    /// let root = runtime.root();
    /// root.counter(toptier)?.set_max(100)?;
    /// let _near = root.precharge(PrechargeBound::from(80).within(&[fast]))?.account(&Placement::on(fast, 80));
    /// assert!(root.precharge(PrechargeBound::from(80).within(&[fast])).is_err());
    /// let _far = root.precharge(PrechargeBound::from(80).within(&[slow]))?.account(&Placement::on(slow, 80));
    /// assert_eq!((root.counter(toptier)?.live(), root.live()), (80, 160));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(&mut self, name: &str, nodes: impl IntoIterator<Item = NodeId>) -> CounterKey {
        let counter = self.counter(name, Unit::Bytes);
        self.numa.tiers.push(Tier {
            counter: self.counters.len(),
            nodes: nodes.into_iter().collect(),
        });
        counter
    }
}

impl Runtime {
    /// Returns the memory nodes that the runtime accounts for: see [`RuntimeBuilder::topology`].
    pub fn topology(&self) -> &Topology {
        &group_tree::shared(&self.owned.tree).numa.topology
    }

    /// Returns what finds the nodes of pages: what was configured; otherwise, with one node, that
    /// node for every page; otherwise the system. See [`RuntimeBuilder::node_of`] for an example.
    pub fn node_of(&self) -> &dyn NodeOf {
        &*group_tree::shared(&self.owned.tree).numa.node_of
    }
}
