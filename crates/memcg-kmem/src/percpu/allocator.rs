//! The public face of the allocator.

use std::alloc::Layout;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use memcg::Group;
use memcg::kmem::{Topology, node_of};

use super::bytes::PerCpuBytes;
use super::chunk_pool::ChunkPool;
use super::plan::{PerCpuShape, Plan};
use crate::error::KmemError;
use crate::sync::{Arc, Mutex};

/// The allocators of runtimes. A thread makes a longer list without the lock.
static OF_RUNTIMES: LazyLock<Mutex<Arc<[PerCpuAllocator]>>> =
    LazyLock::new(|| Mutex::new(Arc::new([])));

/// Memory with a copy for each processor of a topology, in chunks with a unit for each. A clone is
/// cheap; the allocator lives as long as any clone or object. Each runtime has [one](Self::of),
/// made on first use.
///
/// The allocator maps a chunk, binds it to its processors' nodes, touches it, and looks up once
/// where it lies. It unmaps empty chunks but one.
///
/// Source: `mm/percpu.c`, charged as in "per-memcg-per-node kmem accounting" (Ghiti, 2026), to the
/// byte.
///
/// ```
/// use memcg::{Runtime, StatKey};
/// use memcg_kmem::{PerCpuAllocator, PerCpuShape};
/// use std::alloc::Layout;
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let allocator = PerCpuAllocator::new(&root, PerCpuShape::new().with_unit(64 << 10))?;
/// let counters = allocator.allocate(Layout::new::<[u64; 100]>(), &root)?;
/// let data = 800 * runtime.topology().processor_count() as u64;
/// let words = 800;
/// assert_eq!((counters.charged(), root.live()), (data + words, data + words));
/// assert_eq!(root.numa_stat(StatKey::PERCPU, memcg::Freshness::Exact).sum() as u64, counters.charged());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PerCpuAllocator {
    pub(super) pool: Arc<ChunkPool>,
}

impl PerCpuAllocator {
    /// Makes an allocator for the nodes and processors of a group's runtime. It may also serve
    /// groups of other runtimes with the same nodes.
    ///
    /// # Errors
    ///
    /// [`KmemError::Capacity`] for a chunk larger than memory can be.
    pub fn new(group: &Group, shape: PerCpuShape) -> Result<PerCpuAllocator, KmemError> {
        let topology = Topology::of(group);
        let node_of = node_of(group);
        let plan = Plan::new(shape, topology, node_of.page_size())?;
        let one_node = topology.nodes().next().filter(|_| topology.is_one_node());
        Ok(PerCpuAllocator {
            pool: Arc::new(ChunkPool::new(plan, one_node, Arc::clone(node_of))),
        })
    }

    /// The allocator of a group's runtime. A look-up takes a lock and looks through the runtimes
    /// that have one: keep a clone where many objects are made. Its last empty chunk may outlive
    /// the runtime, until another runtime gets its allocator.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), with the default [`PerCpuShape`].
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg_kmem::PerCpuAllocator::of(&runtime.root())?.shape(), memcg_kmem::PerCpuShape::new());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(group: &Group) -> Result<PerCpuAllocator, KmemError> {
        let is_its = |of: &&PerCpuAllocator| Arc::ptr_eq(&of.pool.node_of, node_of(group));
        let mut new = None;
        loop {
            let made = {
                let made = OF_RUNTIMES.lock();
                if let Some(found) = made.iter().find(is_its) {
                    return Ok(found.clone());
                }
                Arc::clone(&made)
            };
            // This asks foreign code for the page size.
            let new = match &new {
                Some(new) => new,
                None => new.insert(PerCpuAllocator::new(group, PerCpuShape::new())?),
            };
            let longer = made
                .iter()
                .filter(|of| of.has_runtime())
                .chain([new])
                .cloned()
                .collect();
            let mut list = OF_RUNTIMES.lock();
            // Else another thread has made the list longer, perhaps by an allocator of this very
            // runtime.
            if Arc::ptr_eq(&list, &made) {
                let old = std::mem::replace(&mut *list, longer);
                drop(list);
                // With the allocators of runtimes that are gone.
                drop((old, made));
                return Ok(new.clone());
            }
        }
    }

    /// True while the runtime exists: then it, too, has the finder of the pages' nodes.
    fn has_runtime(&self) -> bool {
        Arc::strong_count(&self.pool.node_of) > 1
    }

    /// The measures of the allocator.
    pub fn shape(&self) -> PerCpuShape {
        self.pool.plan.shape
    }

    /// Allocates zeroed bytes for each processor, charged to a group. May block: in async code call
    /// it on a thread for blocking work.
    ///
    /// Charges the copies of the layout, each rounded up to granules, and their words of metadata.
    /// Accounts them as [`StatKey::PERCPU`](memcg::StatKey::PERCPU) to the nodes where they lie, split
    /// where a page ends. That costs a few additions for each page of the layout and each node, for
    /// any number of processors.
    ///
    /// The group comes first. A refusal or a failure leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`KmemError::Charge`]: the group refuses. [`KmemError::System`]: the system maps no chunk.
    /// [`KmemError::Capacity`]: more than a unit, or an alignment beyond a page.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg_kmem::{KmemError, PerCpuAllocator};
    /// use std::alloc::Layout;
    ///
    /// let runtime = Runtime::builder().max(10).build()?;
    /// let allocator = PerCpuAllocator::of(&runtime.root())?;
    /// let refused = allocator.allocate(Layout::new::<[u64; 100]>(), &runtime.root());
    /// assert!(matches!(refused, Err(KmemError::Charge(_))));
    /// let refused = allocator.allocate(Layout::new::<[u64; 100_000]>(), &runtime.root());
    /// assert!(matches!(refused, Err(KmemError::Capacity { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate(&self, layout: Layout, group: &Group) -> Result<PerCpuBytes, KmemError> {
        let bytes = PerCpuBytes::charged_to(group, &self.pool, layout)?;
        bytes.zero();
        Ok(bytes)
    }

    /// As [`allocate`](Self::allocate), without a charge.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), without its refusals.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg_kmem::PerCpuAllocator::of(&runtime.root())?;
    /// let free = allocator.allocate_uncharged(std::alloc::Layout::new::<u64>())?;
    /// assert_eq!((free.charged(), runtime.root().live()), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate_uncharged(&self, layout: Layout) -> Result<PerCpuBytes, KmemError> {
        let bytes = PerCpuBytes::uncharged(&self.pool, layout)?;
        bytes.zero();
        Ok(bytes)
    }

    /// Reports that pages in a range of addresses have moved to other nodes. The allocator looks up
    /// those of its pages again, and the accounts of all objects there follow. Costs a look-up for
    /// each processor and page, and a relocation for each object. With one node it does nothing.
    ///
    /// Memory that ends on another thread while its account is looked at here stays charged until this
    /// call gives it back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// memcg_kmem::PerCpuAllocator::of(&runtime.root())?.migrated(0..usize::MAX);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrated(&self, addresses: Range<usize>) {
        self.pool.moved(&addresses);
    }

    /// Mapped chunks.
    pub fn chunk_count(&self) -> usize {
        self.pool.chunk_count()
    }

    /// Unmaps all empty chunks. Returns how many.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg_kmem::PerCpuAllocator::of(&runtime.root())?;
    /// drop(allocator.allocate_uncharged(std::alloc::Layout::new::<u64>())?);
    /// assert_eq!((allocator.chunk_count(), allocator.trim(), allocator.chunk_count()), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self) -> usize {
        self.pool.trim()
    }

    /// The group that is charged for the object at an address, in any processor's unit, as the
    /// words of ownership tell ([`Owner::of`](memcg::allocator::Owner::of)). For a look at a dump.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg_kmem::PerCpuAllocator::of(&runtime.root())?;
    /// let object = allocator.allocate(std::alloc::Layout::new::<u64>(), &runtime.root())?;
    /// let address = object.as_ptr(0).map_or(0, |copy| copy.addr().get());
    /// assert_eq!(allocator.owner_of(address), Some(runtime.root()));
    /// assert_eq!(allocator.owner_of(address + 8), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn owner_of(&self, address: usize) -> Option<Group> {
        self.pool.owner_of(address)
    }
}

impl fmt::Debug for PerCpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuAllocator")
            .field("shape", &self.shape())
            .field("chunks", &self.chunk_count())
            .finish()
    }
}
