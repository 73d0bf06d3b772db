//! The allocator as its users see it.

use std::alloc::Layout;
use std::fmt;
use std::ops::Range;

use super::bytes::PerCpuBytes;
use super::chunk_pool::ChunkPool;
use super::plan::{PerCpuShape, Plan};
use crate::group::Group;
use crate::kmem::error::KmemError;
use crate::numa::config::Numa;
use crate::sync::Arc;

/// Memory with a copy for each processor of a topology, in chunks of a unit for each. Cheap to clone; it lives as long as
/// any clone or object. Each runtime has [one](Self::of), made on first use.
///
/// A chunk is mapped, bound to its processors' nodes and touched when it is made, and asked once where it came to lie.
/// Chunks that become empty are unmapped, but for one.
///
/// Source: `mm/percpu.c`, charged as in "per-memcg-per-node kmem accounting" (Ghiti, 2026), to the byte.
///
/// ```
/// use memcg::{PerCpuAllocator, PerCpuShape, Runtime, Stat};
/// use std::alloc::Layout;
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let allocator = PerCpuAllocator::new(&root, PerCpuShape::new().with_unit(64 << 10))?;
/// let counters = allocator.allocate(Layout::new::<[u64; 100]>(), &root)?;
/// let (data, words) = (800 * runtime.topology().processors() as u64, 800);
/// assert_eq!((counters.charged(), root.live()), (data + words, data + words));
/// assert_eq!(root.numa_stat(Stat::PERCPU).sum() as u64, counters.charged());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PerCpuAllocator {
    pub(super) pool: Arc<ChunkPool>,
}

impl PerCpuAllocator {
    /// One of its own, for the nodes and processors of a group's runtime. It may serve groups of other runtimes as well,
    /// if those have the same nodes.
    ///
    /// # Errors
    ///
    /// [`KmemError::Capacity`] for a chunk larger than memory can be.
    ///
    /// ```
    /// use memcg::{PerCpuAllocator, PerCpuShape};
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = PerCpuAllocator::new(&runtime.root(), PerCpuShape::new().with_granule(4))?;
    /// assert_eq!((allocator.shape().granule(), allocator.chunks()), (4, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(group: &Group, shape: PerCpuShape) -> Result<PerCpuAllocator, KmemError> {
        let Numa { topology, node_of, .. } = group.node().tree().numa();
        let plan = Plan::new(shape, topology, node_of.page_size())?;
        let one_node = topology.is_one_node().then(|| topology.node_at(0));
        Ok(PerCpuAllocator { pool: Arc::new(ChunkPool::new(plan, one_node, Arc::clone(node_of))) })
    }

    /// That of a group's runtime.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), with the default [`PerCpuShape`].
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg::PerCpuAllocator::of(&runtime.root())?.shape(), memcg::PerCpuShape::new());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn of(group: &Group) -> Result<PerCpuAllocator, KmemError> {
        let place = &group.node().tree().numa().percpu;
        let made = || place.get().and_then(|made| made.downcast_ref::<PerCpuAllocator>());
        if made().is_none() {
            // Not inside the place's own lock: the page size is asked for, and who says it is foreign.
            let new = PerCpuAllocator::new(group, PerCpuShape::new())?;
            drop(place.set(Box::new(new)));
        }
        made().cloned().map_or_else(|| PerCpuAllocator::new(group, PerCpuShape::new()), Ok)
    }

    /// Its measures.
    pub fn shape(&self) -> PerCpuShape {
        self.pool.plan.shape
    }

    /// Zeroed bytes for each processor, charged to a group. May block: in async code call it on a thread for blocking work.
    ///
    /// The copies of the layout, each rounded up to granules, and their own words of metadata. Accounted as [`Stat::PERCPU`](crate::Stat::PERCPU) to the nodes where they lie, split
    /// where a page ends: a few additions for each page of the layout and each node, whatever the number of processors.
    ///
    /// The group is asked first; whatever happens afterwards, what was refused or failed leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`KmemError::Charge`] from the group, [`KmemError::System`] where no chunk can be mapped, [`KmemError::Capacity`]
    /// for more than a unit, or an alignment beyond a page.
    ///
    /// ```
    /// use memcg::{KmemError, PerCpuAllocator, Runtime};
    /// use std::alloc::Layout;
    ///
    /// let runtime = Runtime::builder().max(memcg::Limit::Bytes(10)).build()?;
    /// let allocator = PerCpuAllocator::of(&runtime.root())?;
    /// let refused = allocator.allocate(Layout::new::<[u64; 100]>(), &runtime.root());
    /// assert!(matches!(refused, Err(KmemError::Charge(_))));
    /// let refused = allocator.allocate(Layout::new::<[u64; 100_000]>(), &runtime.root());
    /// assert!(matches!(refused, Err(KmemError::Capacity { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate(&self, layout: Layout, group: &Group) -> Result<PerCpuBytes, KmemError> {
        PerCpuBytes::new(&self.pool, layout, Some(group), true)
    }

    /// The same, charged to nobody.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), but for a refusal.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg::PerCpuAllocator::of(&runtime.root())?;
    /// let free = allocator.allocate_uncharged(std::alloc::Layout::new::<u64>())?;
    /// assert_eq!((free.charged(), runtime.root().live()), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate_uncharged(&self, layout: Layout) -> Result<PerCpuBytes, KmemError> {
        PerCpuBytes::new(&self.pool, layout, None, true)
    }

    /// Pages in a range of addresses have been moved to other nodes: those of them that are this allocator's are looked
    /// up again, and the accounts of all objects there go with them. Costs a look-up for each processor and page, and a
    /// relocation for each object. With one node it does nothing.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// memcg::PerCpuAllocator::of(&runtime.root())?.migrated(0..usize::MAX);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrated(&self, addresses: Range<usize>) {
        self.pool.moved(&addresses);
    }

    /// Chunks that are mapped.
    pub fn chunks(&self) -> usize {
        self.pool.chunks()
    }

    /// Unmap what is empty, to the last one. Returns how many chunks that were.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg::PerCpuAllocator::of(&runtime.root())?;
    /// drop(allocator.allocate_uncharged(std::alloc::Layout::new::<u64>())?);
    /// assert_eq!((allocator.chunks(), allocator.trim(), allocator.chunks()), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self) -> usize {
        self.pool.trim()
    }

    /// Who is charged for the object that starts at an address, in whichever processor's unit: as the words of ownership
    /// say. For a look at a dump.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg::PerCpuAllocator::of(&runtime.root())?;
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
        f.debug_struct("PerCpuAllocator").field("shape", &self.shape()).field("chunks", &self.chunks()).finish()
    }
}
