//! The trait that finds the node of a page, and what it finds.

use super::system;
use super::topology::NodeId;
use crate::sync::Arc;

/// Where a page lies.
///
/// ```
/// use memcg::kmem::{NodeId, PageNode};
///
/// let far = NodeId::new(1);
/// assert_eq!(PageNode::On(far).node(), Some(far));
/// assert_eq!(PageNode::from(far), PageNode::On(far));
/// assert_eq!(PageNode::Zero.node(), None, "the zero page is on no node");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageNode {
    /// On this node.
    On(NodeId),
    /// Mapped, and no page is there: no thread has touched it, or the kernel has written it out or
    /// taken it since. Also the answer where the system does not tell.
    Untouched,
    /// Read and never written: the zero page, which all such addresses share and which costs no
    /// memory.
    Zero,
    /// No mapping has the address.
    Unmapped,
}

impl PageNode {
    /// Returns the node, if the page lies on one.
    pub const fn node(self) -> Option<NodeId> {
        match self {
            Self::On(node) => Some(node),
            Self::Untouched | Self::Zero | Self::Unmapped => None,
        }
    }
}

impl From<NodeId> for PageNode {
    fn from(node: NodeId) -> Self {
        Self::On(node)
    }
}

/// Finds the nodes on which pages lie.
///
/// An implementation is foreign code: the crate calls it with no lock held, on the thread that
/// accounts or frees, and on several threads at once. What it says is accounted, and the sums stay
/// right even if it is wrong.
///
/// ```
/// use memcg::kmem::{NodeId, NodeOf, PageNode};
///
/// /// Even pages on node 0, odd ones on node 1.
/// struct Interleaved;
///
/// impl NodeOf for Interleaved {
///     fn page_size(&self) -> usize {
///         4_096
///     }
///
///     fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
///         for (page, found) in pages.iter().zip(found) {
///             *found = PageNode::On(NodeId::new((page / 4_096 % 2) as u16));
///         }
///     }
/// }
///
/// let mut found = [PageNode::Untouched; 2];
/// Interleaved.look_up(&[0x4000, 0x5000], &mut found);
/// assert_eq!(found, [NodeId::new(0), NodeId::new(1)].map(PageNode::On));
/// ```
pub trait NodeOf: Send + Sync {
    /// Returns the bytes that one look-up covers: the size of a page, or of a huge page if all
    /// addresses lie in huge pages. It is a power of two, and never changes.
    fn page_size(&self) -> usize;

    /// Writes to `found[i]` where the page at `pages[i]` lies. Each address is a multiple of
    /// [`page_size`](Self::page_size). If one slice is longer, its rest stays as it is.
    fn look_up(&self, pages: &[usize], found: &mut [PageNode]);

    /// Returns the node on which every page lies, if there is only one. The crate then looks up
    /// nothing. The default is `None`.
    fn only_node(&self) -> Option<NodeId> {
        None
    }
}

/// A reference to a `NodeOf` is one too.
macro_rules! delegate {
    ($($outer:ty),*) => {$(
        impl<N: NodeOf + ?Sized> NodeOf for $outer {
            fn page_size(&self) -> usize {
                (**self).page_size()
            }

            fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
                (**self).look_up(pages, found);
            }

            fn only_node(&self) -> Option<NodeId> {
                (**self).only_node()
            }
        }
    )*};
}

delegate!(&N, Box<N>, Arc<N>);

/// Says that every page lies on one node, without a call.
///
/// ```
/// use memcg::kmem::{NodeId, NodeOf, OneNode, PageNode};
///
/// let one = OneNode::new(NodeId::new(0));
/// let mut found = [PageNode::Untouched; 2];
/// one.look_up(&[0x1000, 0x7000_0000], &mut found);
/// assert_eq!(found, [PageNode::On(NodeId::new(0)); 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneNode(NodeId);

impl OneNode {
    /// Makes a finder that puts every page on this node.
    pub const fn new(node: NodeId) -> Self {
        Self(node)
    }
}

impl NodeOf for OneNode {
    /// The system's base page, so that owners lay memory out alike on any number of nodes.
    fn page_size(&self) -> usize {
        system::page_size()
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let count = pages.len().min(found.len());
        found[..count].fill(PageNode::On(self.0));
    }

    fn only_node(&self) -> Option<NodeId> {
        Some(self.0)
    }
}

/// Pages in one look-up. The batch lies on the stack.
const BATCH: usize = 64;

/// Looks up the page of each address, in batches, and calls `each` with the answers in turn.
///
/// It calls [`NodeOf::look_up`] once for 64 addresses, and does not allocate. It blocks as long as
/// those calls do. The answer is that of the moment: the system may move a page afterwards.
///
/// ```
/// use memcg::kmem::{NodeId, OneNode, look_up_each};
///
/// let bytes = vec![0_u8; 10_000];
/// let mut found = Vec::new();
/// look_up_each(&OneNode::new(NodeId::new(0)), [bytes.as_ptr().addr()].into_iter(), |page| found.push(page.node()));
/// assert_eq!(found, [Some(NodeId::new(0))]);
/// ```
pub fn look_up_each(
    node_of: &dyn NodeOf,
    mut addresses: impl Iterator<Item = usize>,
    mut each: impl FnMut(PageNode),
) {
    let size = node_of.page_size().max(1);
    loop {
        let mut pages = [0; BATCH];
        let mut found = [PageNode::Untouched; BATCH];
        let mut many = 0;
        for (page, address) in pages.iter_mut().zip(&mut addresses) {
            *page = address - address % size;
            many += 1;
        }
        if many == 0 {
            return;
        }
        node_of.look_up(&pages[..many], &mut found[..many]);
        found[..many].iter().copied().for_each(&mut each);
    }
}
