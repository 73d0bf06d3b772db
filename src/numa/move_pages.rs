//! Asks the kernel: without nodes to move to, `move_pages(2)` tells where each page is and moves nothing.
//!
//! The kernel's answer for a page (`mm/migrate.c`, `do_pages_stat_array`), and the meaning that this file gives it:
//!
//! | status | page | |
//! |---|---|---|
//! | 0 and above | on that node; also a protected page, and one that `MADV_FREE` gave back until the kernel takes it | `On` |
//! | `-ENOENT` | no page: never touched, written out, given back; or memory of a device | `Untouched` |
//! | `-EFAULT` | the shared zero page, small or huge; an address that is not mapped; before Linux 6.12 mostly also an anonymous page that was never touched | see below |
//!
//! `mincore(2)` tells the three cases of `-EFAULT` apart (`mm/mincore.c`). It fails with `ENOMEM` where nothing is
//! mapped, and otherwise says whether a page is there. Each such page takes one call. They are rare: few programs only
//! ever read a page or ask for an unmapped address.
//!
//! Any other status belongs to the form of the call that moves pages. The node of such a page is not known:
//! `Untouched`.

use std::fmt;
use std::io::ErrorKind;

use super::node_of::{NodeOf, PageNode};
use super::system::{self, EFAULT};
use super::topology::NodeId;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicBool;

/// In the place of a status where the kernel does not answer.
const NOT_TOLD: i32 = i32::MIN;

/// Pages in one call. The kernel's answers lie on the stack, 2 KiB.
const BATCH: usize = 512;

/// Asks the kernel with `move_pages(2)`, which needs no privilege for this process and moves nothing.
///
/// It asks in batches of 512 pages and does not allocate. A call costs about 0.5 µs, and each page in it 0.15 µs more.
///
/// ```
/// use memcg::kmem::{MovePages, NodeOf, PageNode};
///
/// let Ok(kernel) = MovePages::new() else { return };     // not Linux, or a sandbox
/// let touched = vec![1_u8; kernel.page_size()];
/// let page = touched.as_ptr().addr() & !(kernel.page_size() - 1);
/// let mut found = [PageNode::Unmapped];
/// kernel.look_up(&[page], &mut found);
/// assert!(found[0].node().is_some() && kernel.is_available());
/// ```
pub struct MovePages {
    page_size: usize,
    /// Every call has been answered.
    available: AtomicBool,
}

/// Why the kernel cannot be asked for the nodes of pages.
///
/// ```
/// assert_eq!(memcg::kmem::MovePagesError::Denied.to_string(), "move_pages(2) is not permitted here");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MovePagesError {
    /// The system has no such call: it is not Linux, or the kernel is built for one node.
    Unsupported,
    /// The system forbids the call, as some containers do.
    Denied,
    /// The call failed with this error of the system.
    Failed(i32),
}

impl fmt::Display for MovePagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("this system has no move_pages(2)"),
            Self::Denied => f.write_str("move_pages(2) is not permitted here"),
            Self::Failed(inner) => write!(f, "move_pages(2) failed: {}", std::io::Error::from_raw_os_error(*inner)),
        }
    }
}

impl std::error::Error for MovePagesError {}

impl MovePages {
    /// Asks for base pages, after one call that tests whether the kernel answers.
    ///
    /// # Errors
    ///
    /// [`MovePagesError`] where the kernel does not answer.
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
    pub fn new() -> Result<Self, MovePagesError> {
        let kernel = Self::untested();
        let here = 0_u8;
        let page = (&raw const here).addr() & !(kernel.page_size - 1);
        let error = match system::nodes_of(&[page], &mut [0]) {
            Ok(()) => return Ok(kernel),
            Err(error) => error,
        };
        Err(match error.kind() {
            ErrorKind::Unsupported => MovePagesError::Unsupported,
            ErrorKind::PermissionDenied => MovePagesError::Denied,
            _ => MovePagesError::Failed(error.raw_os_error().unwrap_or_default()),
        })
    }

    /// Asks for base pages, whether or not the kernel answers.
    pub(super) fn untested() -> Self {
        Self { page_size: system::page_size(), available: AtomicBool::new(true) }
    }

    /// Asks once for each stretch of so many bytes that lie in one huge page: 2 MiB of hugetlb memory, say. Rounds up
    /// to a power of two, and to a base page at least.
    ///
    /// Use it only for memory that the kernel never splits: a transparent huge page may be split, and its parts move.
    ///
    /// ```
    /// use memcg::kmem::{MovePages, NodeOf};
    ///
    /// if let Ok(kernel) = MovePages::new() {
    ///     assert_eq!(kernel.with_page_size(2 << 20).page_size(), 2 << 20);
    /// }
    /// ```
    #[must_use]
    pub fn with_page_size(self, bytes: usize) -> Self {
        let wanted = bytes.max(system::page_size());
        Self { page_size: wanted.checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1)), ..self }
    }

    /// True if the kernel has answered every call so far. It has not where a seccomp filter forbids the call since
    /// [`new`](Self::new). Every page of such a call is reported as [`Untouched`](PageNode::Untouched).
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Relaxed)
    }
}

impl NodeOf for MovePages {
    fn page_size(&self) -> usize {
        self.page_size
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let count = pages.len().min(found.len());
        let mut status = [0; BATCH];
        for (pages, found) in pages[..count].chunks(BATCH).zip(found[..count].chunks_mut(BATCH)) {
            let status = &mut status[..pages.len()];
            if system::nodes_of(pages, status).is_err() {
                self.available.store(false, Ordering::Relaxed);
                status.fill(NOT_TOLD);
            }
            for ((&page, &mut status), found) in pages.iter().zip(status).zip(found) {
                *found = decode(page, status);
            }
        }
    }
}

debug_figures!(MovePages, |kernel| page_size: kernel.page_size, is_available: kernel.is_available());

/// The meaning of the kernel's answer for a page; see the table at the head.
fn decode(page: usize, status: i32) -> PageNode {
    if status != -EFAULT {
        return u16::try_from(status).map_or(PageNode::Untouched, |node| PageNode::On(NodeId::new(node)));
    }
    match system::is_resident(page) {
        Ok(true) => PageNode::Zero,
        Err(error) if error.kind() == ErrorKind::OutOfMemory => PageNode::Unmapped,
        _ => PageNode::Untouched,
    }
}
