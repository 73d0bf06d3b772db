//! The nodes of memory: bytes by node, gathered before anything is accounted.

use std::alloc::Layout;
use std::ops::Range;

use smallvec::SmallVec;

use crate::numa::node_of::look_up_each;
use crate::numa::{NodeId, NodeOf};
use crate::units::{Bytes, IntoBytes};

/// Nodes of a placement that need no allocation.
const NODES_COMMON: usize = 4;

/// The request of a precharge: the most bytes that may have to be accounted, and the nodes where
/// they may come to lie, if known.
///
/// ```
/// use memcg::kmem::{PrechargeBound, Placement};
/// use std::alloc::Layout;
///
/// let bound = Placement::bound(Layout::new::<[u64; 100]>()).with_metadata(16);
/// assert_eq!(bound.bytes(), 816);
/// assert_eq!(PrechargeBound::from(816), bound);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrechargeBound {
    bytes: u64,
    /// Empty: any node.
    within: SmallVec<[NodeId; NODES_COMMON]>,
}

impl From<usize> for PrechargeBound {
    #[inline]
    fn from(bytes: usize) -> PrechargeBound {
        Bytes::from(bytes).into()
    }
}

impl From<Bytes> for PrechargeBound {
    #[inline]
    fn from(Bytes(bytes): Bytes) -> PrechargeBound {
        PrechargeBound {
            bytes,
            within: SmallVec::new(),
        }
    }
}

impl PrechargeBound {
    /// Returns the most bytes that the request stands for.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes for metadata that comes with the allocation, on any node.
    #[must_use]
    pub fn with_metadata(mut self, bytes: impl IntoBytes) -> PrechargeBound {
        let Bytes(bytes) = bytes.into_bytes();
        self.bytes = self.bytes.saturating_add(bytes);
        self
    }

    /// Says that all of it comes to lie on these nodes. A precharge does not ask tiers without any
    /// of them. An empty list stands for any node.
    ///
    /// ```
    /// assert_ne!(memcg::kmem::PrechargeBound::from(64).within(&[memcg::kmem::NodeId::new(1)]), memcg::kmem::PrechargeBound::from(64));
    /// ```
    #[must_use]
    pub fn within(mut self, nodes: &[NodeId]) -> PrechargeBound {
        self.within = SmallVec::from_slice(nodes);
        self
    }

    #[inline]
    pub(super) fn may_lie_on(&self, is_of: impl Fn(NodeId) -> bool) -> bool {
        self.within.is_empty() || self.within.iter().any(|&node| is_of(node))
    }
}

/// Bytes for each node, and on no node: those of untouched pages.
///
/// ```
/// use memcg::kmem::{NodeId, Placement};
///
/// let mut placement = Placement::on(NodeId::new(0), 4_096);
/// placement.add(Some(NodeId::new(1)), 100);
/// placement.add(None, 28);
/// assert_eq!((placement.bytes(), placement.on_node(NodeId::new(1)), placement.unplaced()), (4_224, 100, 28));
/// assert_eq!(placement.nodes().next(), Some((NodeId::new(0), 4_096)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By rising number.
    nodes: SmallVec<[(NodeId, u64); NODES_COMMON]>,
    unplaced: u64,
}

impl Placement {
    /// Makes an empty placement.
    #[inline]
    pub fn new() -> Placement {
        Placement::default()
    }

    /// Makes a placement of so many bytes on one node.
    #[inline]
    pub fn on(node: NodeId, bytes: impl IntoBytes) -> Placement {
        let mut placement = Placement::new();
        placement.add(Some(node), bytes);
        placement
    }

    /// Returns the most that an allocation of this layout may have to account: its size. The
    /// account is exact to the byte wherever the memory lies, so nothing is rounded up. (The
    /// kernel, which accounts pages, adds a page for each node.)
    #[inline]
    pub fn bound(layout: Layout) -> PrechargeBound {
        PrechargeBound::from(layout.size())
    }

    /// Finds the nodes on which the bytes of a range of addresses lie. With one node it does not
    /// look up any page. Otherwise it calls [`NodeOf::look_up`] once for each 64 pages, and blocks as
    /// long as these calls do.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let data = vec![1_u64; 1_000];
    /// let placement = memcg::kmem::Placement::of(data.as_ptr_range(), runtime.node_of());
    /// assert_eq!(placement.bytes(), 8_000);
    /// ```
    pub fn of<T>(range: Range<*const T>, node_of: &dyn NodeOf) -> Placement {
        let mut placement = Placement::new();
        placement.add_range(range.start.addr()..range.end.addr(), node_of);
        placement
    }

    /// Adds bytes on a node, or on none.
    #[inline]
    pub fn add(&mut self, node: Option<NodeId>, bytes: impl IntoBytes) {
        let Bytes(bytes) = bytes.into_bytes();
        if bytes == 0 {
            return;
        }
        let Some(node) = node else {
            self.unplaced = self.unplaced.saturating_add(bytes);
            return;
        };
        match self.nodes.binary_search_by_key(&node, |(of, _)| *of) {
            Ok(at) => self.nodes[at].1 = self.nodes[at].1.saturating_add(bytes),
            Err(at) => self.nodes.insert(at, (node, bytes)),
        }
    }

    /// Adds the bytes of a range of addresses. It looks up each page once, as [`of`](Self::of)
    /// does, and splits an object at the end of a page. Bytes of a page without a node, such as an
    /// untouched one, are on none.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let data = [1_u8; 100];
    /// let mut placement = memcg::kmem::Placement::new();
    /// let start = data.as_ptr().addr();
    /// placement.add_range(start..start + 100, runtime.node_of());
    /// assert_eq!(placement.bytes(), 100);
    /// ```
    pub fn add_range(&mut self, range: Range<usize>, node_of: &dyn NodeOf) {
        if let Some(node) = node_of.only_node() {
            return self.add(Some(node), range.len());
        }
        if range.is_empty() {
            return;
        }
        let size = node_of.page_size().max(1);
        let mut at = range.start;
        look_up_each(
            node_of,
            (at - at % size..range.end).step_by(size),
            |found| {
                // The first piece begins where the range does, and all others at a page. A range
                // may end with the last page of all addresses.
                let end = (at - at % size).saturating_add(size).min(range.end);
                self.add(found.node(), Bytes((end - at) as u64));
                at = end;
            },
        );
    }

    /// Returns all bytes, those on no node included.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.nodes
            .iter()
            .fold(self.unplaced, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the bytes on a node, 0 for one that it does not name.
    pub fn on_node(&self, node: NodeId) -> u64 {
        self.nodes
            .iter()
            .find(|(of, _)| *of == node)
            .map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the bytes on no node: of pages that no thread has touched.
    #[inline]
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// Returns the nodes with the bytes on each, by rising number. Nodes without any are left out.
    #[inline]
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.nodes.iter().copied()
    }
}
