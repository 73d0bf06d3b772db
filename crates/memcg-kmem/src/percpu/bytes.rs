//! An object of run-time size.

use std::alloc::Layout;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use memcg::kmem::Placement;
use memcg::{Bytes, Group};

use super::chunk_pool::{ChunkPool, TakenGranules};
use super::plan::{OwnerWord, Plan};
use super::records::Account;
use crate::error::KmemError;
use crate::sync::Arc;

/// Bytes for each processor, as [`PerCpuAllocator::allocate`](crate::PerCpuAllocator::allocate)
/// makes them. Their drop, on any thread, gives them back, and takes off each node what was
/// accounted there.
///
/// This type hands out addresses and never looks at the bytes, which belong to its user.
///
/// ```
/// use std::alloc::Layout;
///
/// use memcg::Runtime;
/// use memcg_kmem::PerCpuAllocator;
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let counters = PerCpuAllocator::of(&root)?.allocate(Layout::new::<u64>(), &root)?;
/// assert_eq!((counters.size(), counters.group()), (8, Some(root.clone())));
/// assert!(counters.as_ptr(0).is_some_and(|counter| counter.cast::<u64>().is_aligned()));
/// drop(counters);
/// assert_eq!(root.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PerCpuBytes {
    pool: Arc<ChunkPool>,
    /// The copy in the first unit.
    first: NonNull<u8>,
    chunk: u32,
    at: u32,
    granules: u32,
    account: HeldAccount,
}

/// What an object knows of its account.
enum HeldAccount {
    /// The bytes are not charged.
    None,
    /// With one node the account never moves, and the object has it.
    Here(Account<1>),
    /// With more the chunk keeps it, where a mover finds it, under this number.
    InChunk(u32),
}

// SAFETY: the object owns the memory at its addresses, and what it keeps about them is `Send` and
// `Sync`.
#[allow(unsafe_code)]
unsafe impl Send for PerCpuBytes {}
// SAFETY: as above; `&PerCpuBytes` gives out addresses and figures alone.
#[allow(unsafe_code)]
unsafe impl Sync for PerCpuBytes {}

impl PerCpuBytes {
    /// Charged to no group.
    #[inline]
    pub(super) fn uncharged(
        pool: &Arc<ChunkPool>,
        layout: Layout,
    ) -> Result<PerCpuBytes, KmemError> {
        let (granules, align) = pool.plan.granules(layout)?;
        let taken = pool.take(granules, align, OwnerWord::NONE)?;
        Ok(PerCpuBytes::of(pool, granules, taken, HeldAccount::None))
    }

    /// Charged to a group, and accounted.
    #[inline]
    pub(super) fn charged_to(
        group: &Group,
        pool: &Arc<ChunkPool>,
        layout: Layout,
    ) -> Result<PerCpuBytes, KmemError> {
        let (granules, align) = pool.plan.granules(layout)?;
        let precharge = group.precharge(Bytes(pool.plan.full_size(granules)))?;
        let owner = OwnerWord::of(group);
        // Where pages may move to another node the chunk keeps the account, so that whoever moves
        // them finds it.
        let Some(node) = pool.one_node else {
            let (taken, number) = pool.take_charged(granules, align, (owner, precharge))?;
            let account = HeldAccount::InChunk(number);
            return Ok(PerCpuBytes::of(pool, granules, taken, account));
        };
        let taken = pool.take(granules, align, owner)?;
        let account = HeldAccount::Here(Account::on(node, precharge));
        Ok(PerCpuBytes::of(pool, granules, taken, account))
    }

    #[inline(always)]
    fn of(
        pool: &Arc<ChunkPool>,
        granules: usize,
        TakenGranules { chunk, at, first }: TakenGranules,
        account: HeldAccount,
    ) -> PerCpuBytes {
        PerCpuBytes {
            pool: Arc::clone(pool),
            first,
            chunk,
            at,
            granules: granules as u32,
            account,
        }
    }

    /// Zeroes the bytes of an object that no other thread knows yet. Charged and uncharged bytes
    /// share one loop: its speed depends on how it is compiled.
    #[inline(never)]
    #[allow(unsafe_code)]
    pub(super) fn zero(&self) {
        for unit in 0..self.plan().units.len() {
            // SAFETY: the granules are this object's own in each unit, and no other thread knows
            // them yet.
            unsafe { self.copy(unit).write_bytes(0, self.size()) };
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.pool.plan
    }

    #[inline]
    pub(super) fn copy(&self, unit: usize) -> NonNull<u8> {
        let copy = self
            .first
            .as_ptr()
            .wrapping_add(unit * self.pool.plan.shape.unit());
        // The address is within the mapping, which does not start at zero.
        NonNull::new(copy).unwrap_or(self.first)
    }

    /// The copy of a processor: [`size`](Self::size) bytes, aligned as its layout asks. `None`: the
    /// topology has no such processor.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg_kmem::PerCpuAllocator::of(&runtime.root())?;
    /// let bytes = allocator.allocate(std::alloc::Layout::new::<[u8; 20]>(), &runtime.root())?;
    /// // SAFETY: the copy has as many bytes, and no other user.
    /// let copy = unsafe { std::slice::from_raw_parts(bytes.as_ptr(0).unwrap().as_ptr(), 20) };
    /// assert_eq!(copy, [0; 20]);
    /// assert!(bytes.as_ptr(bytes.processor_count()).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn as_ptr(&self, processor: usize) -> Option<NonNull<u8>> {
        Some(self.copy(self.plan().unit_of(processor)?))
    }

    /// Processors of the topology. Numbers from here on have no copy.
    pub fn processor_count(&self) -> usize {
        self.pool.plan.processor_count()
    }

    /// Bytes of each copy: those of its layout, rounded up to granules.
    #[inline]
    pub fn size(&self) -> usize {
        self.granules as usize * self.pool.plan.shape.granule()
    }

    /// Addresses of this object's words of metadata.
    pub fn metadata(&self) -> Range<usize> {
        let start = self
            .pool
            .addresses(self.chunk)
            .map_or(0, |addresses| addresses.words);
        let Range { start: from, end } = self
            .pool
            .plan
            .in_words(self.at as usize, self.granules as usize);
        start + from..start + end
    }

    /// Bytes charged: those of all copies and of the object's words; 0 for an uncharged object.
    pub fn charged(&self) -> u64 {
        match self.account {
            HeldAccount::None => 0,
            _ => self.pool.plan.full_size(self.granules as usize),
        }
    }

    /// Returns the nodes of the object, as the allocator has found and accounts it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let allocator = memcg_kmem::PerCpuAllocator::of(&runtime.root())?;
    /// let bytes = allocator.allocate(std::alloc::Layout::new::<u64>(), &runtime.root())?;
    /// assert_eq!(bytes.placement().bytes(), bytes.charged());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn placement(&self) -> Placement {
        let all = self.pool.plan.full_size(self.granules as usize);
        match self.pool.one_node {
            Some(node) => Placement::on(node, Bytes(all)),
            None => {
                self.pool
                    .found(self.chunk as usize, self.at, self.granules)
                    .unwrap_or_default()
                    .0
            }
        }
    }

    /// The group that is charged. `None`: none is; or, with several nodes, no word names it
    /// ([`Owner::of`](memcg::allocator::Owner::of)).
    pub fn group(&self) -> Option<Group> {
        match &self.account {
            HeldAccount::None => None,
            HeldAccount::Here(account) => Some(account.group()),
            HeldAccount::InChunk(_) => self.pool.owner_of(self.first.addr().get()),
        }
    }
}

impl Drop for PerCpuBytes {
    #[inline]
    fn drop(&mut self) {
        let granules = (self.chunk, self.at, self.granules);
        match self.account {
            HeldAccount::InChunk(number) => self.pool.give_back_charged(granules, number),
            // An account that is here ends after this, without the lock.
            HeldAccount::None | HeldAccount::Here(_) => self.pool.give_back(granules),
        }
    }
}

impl fmt::Debug for PerCpuBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuBytes")
            .field("size", &self.size())
            .field("charged", &self.charged())
            .finish()
    }
}
