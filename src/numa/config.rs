//! The nodes of a runtime.

use std::sync::Arc;

use super::move_pages::MovePages;
use super::node_of::{NodeOf, OneNode};
use super::topology::{NodeId, Topology, TopologyError};

/// The nodes of a runtime, the look-up of pages, and the tiers.
pub(crate) struct Numa {
    pub(crate) topology: Topology,
    pub(crate) node_of: Arc<dyn NodeOf>,
    pub(crate) tiers: Box<[Tier]>,
}

/// A builder's settings of nodes.
#[derive(Clone)]
pub(crate) struct NumaConfig {
    pub(crate) topology: Result<Topology, TopologyError>,
    pub(crate) node_of: Option<Arc<dyn NodeOf>>,
    pub(crate) tiers: Vec<Tier>,
}

impl Default for NumaConfig {
    fn default() -> Self {
        NumaConfig {
            topology: Ok(Topology::one_node()),
            node_of: None,
            tiers: Vec::new(),
        }
    }
}

impl Numa {
    pub(crate) fn new(
        topology: Topology,
        node_of: Option<Arc<dyn NodeOf>>,
        tiers: Box<[Tier]>,
    ) -> Numa {
        let first = topology.node_at(0);
        let node_of: Arc<dyn NodeOf> = match node_of {
            // With one node there is nothing to ask.
            _ if topology.is_one_node() => Arc::new(OneNode::new(first)),
            Some(node_of) => node_of,
            // If the kernel does not tell, every page is on no node.
            None => Arc::new(MovePages::untested()),
        };
        Numa {
            topology,
            node_of,
            tiers,
        }
    }
}

debug_figures!(NumaConfig, |config| topology: config.topology, tiers: config.tiers);

/// The nodes of one tier. A further counter of each group counts the memory on them.
#[derive(Clone, Debug)]
pub(crate) struct Tier {
    /// Place of the counter in its group.
    pub(crate) counter: usize,
    pub(crate) nodes: Box<[NodeId]>,
}

impl Tier {
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }
}
