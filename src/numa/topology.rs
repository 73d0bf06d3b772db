//! The nodes of a machine, and the processors of each.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sync::processor;

/// The most nodes of one topology. Linux can be built for 1,024; the largest machines have 32 with
/// processors.
pub(crate) const NODES_MAX: usize = 64;

/// The most processors of one topology: eight times what Linux can be built for.
pub(super) const PROCESSORS_MAX: usize = 1 << 16;

/// In a table: no such node, or no such processor.
const NONE: u8 = u8::MAX;

/// The number of a memory node, as the system gives it. Numbers need not be consecutive.
///
/// ```
/// use memcg::kmem::NodeId;
///
/// let node = NodeId::new(3);
/// assert_eq!((node.get(), node.to_string()), (3, "3".to_owned()));
/// assert!(node < NodeId::new(16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct NodeId(u16);

impl NodeId {
    /// Makes the id of the node of this number, whether there is such a node or not.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Returns the plain number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The memory nodes of a machine and the processors of each.
///
/// A topology does not change. Its nodes are those that the system calls possible, online or not,
/// so memory that an operator adds later has its node. A clone is a handle on the same topology.
///
/// A possible processor that no node names (it is offline, or the system does not tell) belongs to
/// the first node that is online. So does a thread on an unknown processor.
///
/// ```
/// use memcg::kmem::{NodeId, Topology};
///
/// // Two sockets of four processors, and a node of memory without any.
/// let nodes = [(0, 0..4), (1, 4..8), (8, 0..0)].map(|(node, processors)| (NodeId::new(node), processors));
/// let machine = Topology::fixed(nodes)?;
/// assert_eq!(machine.nodes().map(NodeId::get).collect::<Vec<_>>(), [0, 1, 8]);
/// assert_eq!(machine.processor_count(), 8);
/// assert_eq!(machine.node_of_processor(5), Some(NodeId::new(1)));
/// assert!(!machine.has_processors(NodeId::new(8)));
/// assert_eq!(format!("{machine:?}"), r#"Topology {0: "0-3", 1: "4-7", 8: ""}"#);
/// # Ok::<(), memcg::kmem::TopologyError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Topology(Arc<NodeTables>);

#[derive(PartialEq, Eq)]
struct NodeTables {
    /// In the order of their numbers, so that the place of a node is its dense index.
    nodes: Box<[Node]>,
    /// From a processor's number to the dense index of its node.
    node_of: Box<[u8]>,
    /// Dense index of the node for processors without one.
    home: u8,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    id: NodeId,
    online: bool,
}

/// Why there is no topology.
///
/// ```
/// use memcg::kmem::{NodeId, Topology, TopologyError};
///
/// let twice = Topology::fixed([(NodeId::new(0), 0..2), (NodeId::new(1), 1..3)]).unwrap_err();
/// assert_eq!(twice, TopologyError::ProcessorTwice { processor: 1, nodes: [0, 1].map(NodeId::new) });
/// assert_eq!(twice.to_string(), "processor 1 belongs to node 0 and to node 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// The system has no such file, or does not let it be read.
    Read {
        /// The file, below the root that was given.
        path: PathBuf,
        /// The error of the system.
        kind: io::ErrorKind,
    },
    /// A file is no list of rising numbers and ranges, as in `0-3,8,10-11`.
    Parse {
        /// The file, below the root that was given.
        path: PathBuf,
        /// Its content; bytes that are no text are replaced.
        text: String,
    },
    /// A topology needs a node.
    NoNodes,
    /// The machine has more nodes than a topology holds.
    TooManyNodes {
        /// The most.
        most: usize,
    },
    /// The number of a processor is too large.
    ProcessorTooLarge {
        /// Its number.
        processor: usize,
        /// The node that has it.
        node: NodeId,
        /// Numbers stay below this one.
        most: usize,
    },
    /// Two nodes list one processor, or one node lists it twice.
    ProcessorTwice {
        /// Its number.
        processor: usize,
        /// The nodes that list it.
        nodes: [NodeId; 2],
    },
    /// The caller gives a node twice.
    NodeTwice {
        /// Its number.
        node: NodeId,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { kind, path } => write!(f, "{}: {kind}", path.display()),
            Self::Parse { path, text } => {
                write!(f, "{}: not a list of numbers: {text:?}", path.display())
            }
            Self::NoNodes => f.write_str("a machine without a node"),
            Self::TooManyNodes { most } => write!(f, "more than {most} nodes"),
            Self::ProcessorTooLarge {
                most,
                node,
                processor,
            } => {
                write!(
                    f,
                    "processor {processor} of node {node}: numbers stay below {most}"
                )
            }
            Self::ProcessorTwice { nodes, processor } => {
                write!(
                    f,
                    "processor {processor} belongs to node {} and to node {}",
                    nodes[0], nodes[1]
                )
            }
            Self::NodeTwice { node } => write!(f, "node {node} is given twice"),
        }
    }
}

impl std::error::Error for TopologyError {}

impl Topology {
    /// Makes a topology of these nodes, all online, each with its processors. If no processor is
    /// given at all, processor 0 belongs to the first node.
    ///
    /// # Errors
    ///
    /// See [`TopologyError`]: the nodes and processors contradict each other.
    pub fn fixed<P>(nodes: impl IntoIterator<Item = (NodeId, P)>) -> Result<Topology, TopologyError>
    where
        P: IntoIterator<Item = usize>,
    {
        let mut draft = TopologyDraft::default();
        for (node, processors) in nodes {
            draft.add_node(node, true)?;
            processors
                .into_iter()
                .try_for_each(|processor| draft.add_processor(processor, node))?;
        }
        draft.finish([])
    }

    /// Returns the possible nodes by rising number.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.0.nodes.iter().map(|node| node.id)
    }

    /// Returns true if there is only one node, so that no page has to be looked up.
    #[inline]
    pub fn is_one_node(&self) -> bool {
        self.0.nodes.len() == 1
    }

    /// Returns true if the node was online when the topology was read.
    ///
    /// ```
    /// assert!(memcg::kmem::Topology::one_node().is_online(memcg::kmem::NodeId::new(0)));
    /// assert!(!memcg::kmem::Topology::one_node().is_online(memcg::kmem::NodeId::new(1)));
    /// ```
    pub fn is_online(&self, node: NodeId) -> bool {
        self.index_of(node)
            .is_some_and(|index| self.0.nodes[index].online)
    }

    /// Returns true if the node has processors. A node without processors is memory alone, usually
    /// slower and larger.
    pub fn has_processors(&self, node: NodeId) -> bool {
        self.index_of(node)
            .is_some_and(|index| self.0.node_of.contains(&(index as u8)))
    }

    /// Returns a bound on the numbers of processors: that of every possible processor is below it.
    /// At least 1.
    pub fn processor_count(&self) -> usize {
        self.0.node_of.len()
    }

    /// Returns the node that a processor belongs to; `None` if the machine cannot have such a
    /// processor.
    ///
    /// ```
    /// let machine = memcg::kmem::Topology::fixed([(memcg::kmem::NodeId::new(0), [0]), (memcg::kmem::NodeId::new(1), [2])])?;
    /// assert_eq!(machine.node_of_processor(2), Some(memcg::kmem::NodeId::new(1)));
    /// assert_eq!([1, 3].map(|processor| machine.node_of_processor(processor)), [None, None]);
    /// # Ok::<(), memcg::kmem::TopologyError>(())
    /// ```
    #[inline]
    pub fn node_of_processor(&self, processor: usize) -> Option<NodeId> {
        let index = *self.0.node_of.get(processor)?;
        Some(self.0.nodes.get(usize::from(index))?.id)
    }

    /// Returns the node of the processor that the thread runs on; a moment later the thread may run
    /// elsewhere. It costs a few nanoseconds and no system call if the C library knows the
    /// processor, and nothing on a machine of one node.
    #[inline]
    pub fn current_node(&self) -> NodeId {
        if self.is_one_node() {
            return self.node_at(0);
        }
        let index = self
            .0
            .node_of
            .get(processor())
            .copied()
            .filter(|&index| index != NONE);
        self.node_at(index.unwrap_or(self.0.home).into())
    }

    /// The place of a node among the possible ones.
    #[inline]
    pub(crate) fn index_of(&self, node: NodeId) -> Option<usize> {
        place_of(&self.0.nodes, node)
    }

    /// The node at a place below the number of nodes.
    #[inline]
    pub(crate) fn node_at(&self, index: usize) -> NodeId {
        self.0.nodes[index].id
    }

    /// Node 0 with the processors below `processors`.
    pub(super) fn of_one_node(processors: usize) -> Topology {
        let node_of = vec![Some(NodeId(0)); processors.clamp(1, PROCESSORS_MAX)];
        let draft = TopologyDraft {
            nodes: vec![Node {
                id: NodeId(0),
                online: true,
            }],
            node_of,
        };
        draft
            .finish([])
            .expect("one node, whose processors are not too many")
    }
}

impl fmt::Debug for Topology {
    /// Lists each node with its processors, as sysfs does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Topology ")?;
        let mut map = f.debug_map();
        for (index, node) in self.0.nodes.iter().enumerate() {
            let of_node = |&(_, &at): &(usize, &u8)| usize::from(at) == index;
            let processors = self
                .0
                .node_of
                .iter()
                .enumerate()
                .filter(of_node)
                .map(|(processor, _)| processor);
            let offline = if node.online { "" } else { " (offline)" };
            map.entry(&format_args!("{}{offline}", node.id), &as_list(processors));
        }
        map.finish()
    }
}

/// A topology while a caller adds nodes and processors.
#[derive(Default)]
pub(super) struct TopologyDraft {
    nodes: Vec<Node>,
    /// By processor. An iterator's numbers go straight in here, so that an endless iterator ends in
    /// an error.
    node_of: Vec<Option<NodeId>>,
}

impl TopologyDraft {
    pub(super) fn add_node(&mut self, node: NodeId, online: bool) -> Result<(), TopologyError> {
        if self.nodes.iter().any(|other| other.id == node) {
            return Err(TopologyError::NodeTwice { node });
        }
        if self.nodes.len() == NODES_MAX {
            return Err(TopologyError::TooManyNodes { most: NODES_MAX });
        }
        self.nodes.push(Node { id: node, online });
        Ok(())
    }

    pub(super) fn add_processor(
        &mut self,
        processor: usize,
        node: NodeId,
    ) -> Result<(), TopologyError> {
        let place = self.place(processor, node)?;
        match place.replace(node) {
            None => Ok(()),
            Some(other) => Err(TopologyError::ProcessorTwice {
                processor,
                nodes: [other, node],
            }),
        }
    }

    fn place(
        &mut self,
        processor: usize,
        node: NodeId,
    ) -> Result<&mut Option<NodeId>, TopologyError> {
        // A caller may name any number, and the table has a place for each one below.
        if processor >= PROCESSORS_MAX {
            return Err(TopologyError::ProcessorTooLarge {
                processor,
                node,
                most: PROCESSORS_MAX,
            });
        }
        if processor >= self.node_of.len() {
            self.node_of.resize(processor + 1, None);
        }
        Ok(&mut self.node_of[processor])
    }

    /// Completes the topology. Processors of `possible` that no node has named belong to the first
    /// node that is online.
    pub(super) fn finish(
        mut self,
        possible: impl IntoIterator<Item = usize>,
    ) -> Result<Topology, TopologyError> {
        // From here on the place of a node is its index.
        self.nodes.sort_unstable();
        let first_online = self.nodes.iter().position(|node| node.online).unwrap_or(0);
        let home = self
            .nodes
            .get(first_online)
            .ok_or(TopologyError::NoNodes)?
            .id;
        for processor in possible {
            self.place(processor, home)?.get_or_insert(home);
        }
        if self.node_of.is_empty() {
            self.add_processor(0, home)?;
        }

        let index = |node: &Option<NodeId>| {
            node.and_then(|node| place_of(&self.nodes, node))
                .map_or(NONE, |at| at as u8)
        };
        let node_of = self.node_of.iter().map(index).collect();
        Ok(Topology(Arc::new(NodeTables {
            nodes: self.nodes.into(),
            node_of,
            home: first_online as u8,
        })))
    }
}

/// The place of a node among these, which are in the order of their numbers.
#[inline]
fn place_of(nodes: &[Node], node: NodeId) -> Option<usize> {
    // On most machines the numbers have no gaps.
    let dense = usize::from(node.0);
    if nodes.get(dense).is_some_and(|of| of.id == node) {
        return Some(dense);
    }
    nodes.binary_search_by_key(&node, |of| of.id).ok()
}

fn as_list(numbers: impl Iterator<Item = usize>) -> impl fmt::Debug {
    let mut text = String::new();
    let mut numbers = numbers.peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if_eq(&(last + 1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last {
            format!("{comma}{first}")
        } else {
            format!("{comma}{first}-{last}")
        };
    }
    text
}
