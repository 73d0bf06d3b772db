//! Asks the kernel: without nodes to move to, `move_pages(2)` tells where each page is and moves
//! nothing.
//!
//! The kernel's answer for a page (`mm/migrate.c`, `do_pages_stat_array`), and the meaning that
//! this file gives it:
//!
//! | status | page | |
//! |---|---|---|
//! | 0 and above | on that node; also a protected page, and one that `MADV_FREE` gave back until the kernel takes it | `On` |
//! | `-ENOENT` | no page: never touched, written out, given back; or memory of a device | `Untouched` |
//! | `-EFAULT` | the shared zero page, small or huge; an address that is not mapped; before Linux 6.12 mostly also an anonymous page that was never touched | see below |
//!
//! `mincore(2)` tells the three cases of `-EFAULT` apart (`mm/mincore.c`). It fails with `ENOMEM`
//! where nothing is mapped, and otherwise says whether a page is there. Each such page takes one
//! call. They are rare: few programs only ever read a page or ask for an unmapped address.
//!
//! Any other status belongs to the form of the call that moves pages. The node of such a page is
//! not known: `Untouched`.

use std::io::{self, ErrorKind};

use super::node_of::{NodeOf, PageNode};
use super::system::{self, EFAULT};
use super::topology::NodeId;

/// In the place of a status where the kernel does not answer.
const NOT_TOLD: i32 = i32::MIN;

/// Pages in one call. The kernel's answers lie on the stack, 2 KiB.
const BATCH: usize = 512;

/// Asks the kernel with `move_pages(2)`, which needs no privilege for this process and moves
/// nothing.
///
/// It asks in batches of 512 pages and does not allocate. A call costs about 0.5 µs, and each page
/// in it 0.15 µs more. If the kernel refuses a call, each page of it is
/// [`Untouched`](PageNode::Untouched).
///
/// ```
/// use memcg::kmem::{MovePages, NodeOf, PageNode};
///
/// let Ok(kernel) = MovePages::new() else { return };     // not Linux, or a sandbox
/// let touched = vec![1_u8; kernel.page_size()];
/// let page = touched.as_ptr().addr() & !(kernel.page_size() - 1);
/// let mut found = [PageNode::Unmapped];
/// kernel.look_up(&[page], &mut found);
/// assert!(found[0].node().is_some());
/// ```
#[derive(Debug)]
pub struct MovePages(());

impl MovePages {
    /// Asks for base pages, after one call that tests whether the kernel answers.
    ///
    /// # Errors
    ///
    /// That of the system where the kernel does not answer:
    /// [`Unsupported`](io::ErrorKind::Unsupported) on another system or a kernel for one node,
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) in some containers.
    ///
    /// ```
    /// use memcg::kmem::{MovePages, NodeId, NodeOf, OneNode};
    ///
    /// let node_of: Box<dyn NodeOf> = match MovePages::new() {
    ///     Ok(kernel) => Box::new(kernel),
    ///     Err(_) => Box::new(OneNode::new(NodeId::new(0))),
    /// };
    /// assert!(node_of.page_size().is_power_of_two());
    /// ```
    pub fn new() -> io::Result<Self> {
        let here = 0_u8;
        let page = (&raw const here).addr() & !(system::page_size() - 1);
        system::nodes_of(&[page], &mut [0])?;
        Ok(Self::untested())
    }

    /// Asks for base pages, whether or not the kernel answers.
    pub(super) fn untested() -> Self {
        Self(())
    }
}

impl NodeOf for MovePages {
    fn page_size(&self) -> usize {
        system::page_size()
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let count = pages.len().min(found.len());
        let mut status = [0; BATCH];
        for (pages, found) in pages[..count]
            .chunks(BATCH)
            .zip(found[..count].chunks_mut(BATCH))
        {
            let status = &mut status[..pages.len()];
            if system::nodes_of(pages, status).is_err() {
                status.fill(NOT_TOLD);
            }
            for ((&page, &mut status), found) in pages.iter().zip(status).zip(found) {
                *found = decode(page, status);
            }
        }
    }
}

/// The meaning of the kernel's answer for a page; see the table at the head.
fn decode(page: usize, status: i32) -> PageNode {
    if status != -EFAULT {
        return u16::try_from(status)
            .map_or(PageNode::Untouched, |node| PageNode::On(NodeId::new(node)));
    }
    match system::is_resident(page) {
        Ok(true) => PageNode::Zero,
        Err(error) if error.kind() == ErrorKind::OutOfMemory => PageNode::Unmapped,
        _ => PageNode::Untouched,
    }
}
