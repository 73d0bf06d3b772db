//! Memory nodes: which there are, and which one a page lies on. (Stub until the real one comes.)
#![allow(missing_docs, clippy::all, clippy::pedantic)]

pub(crate) mod config;

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u16);
impl NodeId {
    pub const fn new(number: u16) -> NodeId {
        NodeId(number)
    }
    pub const fn get(self) -> u16 {
        self.0
    }
}
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<NodeId>,
    processors: Vec<usize>,
}
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    #[error("no nodes")]
    NoNodes,
    #[error("too many nodes")]
    TooManyNodes,
}
pub(crate) const NODES_MAX: usize = 64;
impl Topology {
    pub fn one_node() -> Topology {
        Topology { nodes: vec![NodeId(0)], processors: vec![0; 2] }
    }
    pub fn fixed<P: IntoIterator<Item = usize>>(
        nodes: impl IntoIterator<Item = (NodeId, P)>,
    ) -> Result<Topology, TopologyError> {
        let mut topology = Topology { nodes: Vec::new(), processors: Vec::new() };
        for (index, (node, processors)) in nodes.into_iter().enumerate() {
            topology.nodes.push(node);
            for processor in processors {
                topology.processors.resize(topology.processors.len().max(processor + 1), 0);
                topology.processors[processor] = index;
            }
        }
        Ok(topology)
    }
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.nodes.iter().copied()
    }
    pub fn is_one_node(&self) -> bool {
        self.nodes.len() == 1
    }
    pub fn processors(&self) -> usize {
        self.processors.len()
    }
    pub fn node_of_processor(&self, processor: usize) -> Option<NodeId> {
        self.processors.get(processor).map(|&at| self.nodes[at])
    }
    pub fn has_processors(&self, node: NodeId) -> bool {
        self.processors.iter().any(|&at| self.nodes[at] == node)
    }
    pub fn current_node(&self) -> NodeId {
        self.nodes[0]
    }
    pub(crate) fn index_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|&of| of == node)
    }
    pub(crate) fn node_at(&self, index: usize) -> NodeId {
        self.nodes[index]
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageNode {
    On(NodeId),
    Untouched,
    Zero,
    Unmapped,
}
pub trait NodeOf: Send + Sync {
    fn page_size(&self) -> usize;
    fn look_up(&self, pages: &[usize], found: &mut [PageNode]);
}
#[derive(Clone, Copy, Debug)]
pub struct OneNode(NodeId);
impl OneNode {
    pub const fn new(node: NodeId) -> OneNode {
        OneNode(node)
    }
}
impl NodeOf for OneNode {
    fn page_size(&self) -> usize {
        4096
    }
    fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
        found.fill(PageNode::On(self.0));
    }
}
