//! One copy of a value for each possible processor, on the processor's node.
//!
//! ```text
//! precharge   data x processors and the words of its granules: admission
//! take        granules of a chunk: the lock, a bitmap, and where those granules lie
//! zero        each copy, without the lock
//! account     one update for each node; with several nodes the account is kept in the chunk
//! drop        granules and account come back under the lock, and are uncharged without it
//! ```
//!
//! Where a page lies the chunk knows (`nodes`): it has asked once, before anybody had an object of it, and asks again
//! when it is told that pages have moved ([`PerCpuAllocator::migrated`]). Who asks has no lock. An account that is
//! being made while pages move is compared with what the chunk knows by then, and relocated before it is kept
//! (`pool`); one that is being moved while its object goes is given up by whoever moves it (`records`).

mod allocator;
mod bits;
mod bytes;
mod chunk;
mod chunk_pool;
mod owner_word;
mod page_nodes;
mod plan;
mod records;
mod small_account;

pub use allocator::PerCpuAllocator;
pub use bytes::PerCpuBytes;
pub use plan::PerCpuShape;

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;

use super::error::KmemError;
use crate::group::Group;
use crate::sync::processor;

/// A value for each possible processor of the runtime's topology, in memory on the processor's node: charged to a group,
/// accounted to the nodes. What one processor writes no other processor's line has in it, if values are as large as
/// lines.
///
/// A thread may run on another processor a moment after it has [asked](Self::current) for its copy, and two threads of one
/// processor have the same: so copies are shared, and `T` is an atomic, a lock, or made of them.
///
/// ```
/// use memcg::{PerCpu, Runtime, Stat};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let hits = PerCpu::<AtomicU64>::new_in(&root)?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| hits.current().fetch_add(1, Ordering::Relaxed));
///     }
/// });
/// assert_eq!(hits.iter().map(|copy| copy.load(Ordering::Relaxed)).sum::<u64>(), 4);
/// assert_eq!(root.numa_stat(Stat::PERCPU).sum() as u64, hits.bytes().charged());
/// drop(hits);
/// assert_eq!(root.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PerCpu<T> {
    bytes: PerCpuBytes,
    values: PhantomData<T>,
}

// SAFETY: it has a `T` for each unit, and hands out references as a slice of them would.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for PerCpu<T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    /// A default value for each processor. May block: in async code call it on a thread for blocking work.
    /// In memory of the group's runtime.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; nothing is left of it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let flags = memcg::PerCpu::<std::sync::atomic::AtomicBool>::new_in(&runtime.root())?;
    /// assert_eq!(flags.iter().count(), runtime.topology().processors());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new_in(group: &Group) -> Result<PerCpu<T>, KmemError>
    where
        T: Default,
    {
        PerCpu::new_with_in(group, |_| T::default())
    }

    /// What `make` makes for each processor. May block: in async code call it on a thread for blocking work.
    ///
    /// No lock is held meanwhile; if it panics, what it has made is dropped and the memory given back.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; nothing is left of it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let names = memcg::PerCpu::new_with_in(&runtime.root(), |processor| format!("processor {processor}"))?;
    /// assert_eq!(names.get(0).map(String::as_str), Some("processor 0"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new_with_in(group: &Group, make: impl FnMut(usize) -> T) -> Result<PerCpu<T>, KmemError> {
        PerCpu::new_with_of(&PerCpuAllocator::of(group)?, group, make)
    }

    /// The same in memory of another allocator. May block: in async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; nothing is left of it.
    ///
    /// ```
    /// use memcg::{PerCpu, PerCpuAllocator, PerCpuShape};
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let large = PerCpuAllocator::new(&runtime.root(), PerCpuShape::new().with_unit(1 << 20))?;
    /// let tables = PerCpu::new_with_of(&large, &runtime.root(), |_| [0_u8; 100_000])?;
    /// assert!(tables.bytes().size() >= 100_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn new_with_of(
        allocator: &PerCpuAllocator,
        group: &Group,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<PerCpu<T>, KmemError> {
        let bytes = PerCpuBytes::new(&allocator.pool, Layout::new::<T>(), Some(group), false)?;
        let mut made = MadeCopies { bytes: &bytes, made: 0, values: PhantomData::<T> };
        for processor in 0..bytes.processors() {
            if let Some(unit) = bytes.unit_of(processor) {
                let value = make(processor);
                // SAFETY: the unit's copy, of the layout of a `T`; nobody else has the object.
                unsafe { bytes.copy(unit).cast::<T>().write(value) };
                // Units are in the order of their processors.
                made.made = unit + 1;
            }
        }
        // All of them are the new object's.
        made.made = 0;
        drop(made);
        Ok(PerCpu { bytes, values: PhantomData })
    }

    /// The copy of a processor; `None` where the topology has no such processor.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let values = memcg::PerCpu::new_with_in(&runtime.root(), |processor| processor * 10)?;
    /// assert_eq!((values.get(0), values.get(usize::MAX)), (Some(&0), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get(&self, processor: usize) -> Option<&T> {
        Some(self.of_unit(self.bytes.unit_of(processor)?))
    }

    /// The copy of the processor that the thread runs on: it may be another one a moment later. Where the topology does
    /// not have that processor, or nobody knows it, a copy all the same. Costs a call that is no system call.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let values = memcg::PerCpu::new_with_in(&runtime.root(), |_| 7)?;
    /// assert_eq!(*values.current(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn current(&self) -> &T
    where
        T: Sync,
    {
        self.of_unit(self.bytes.unit_of_any(processor()))
    }

    /// Every copy, by processor.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let values = memcg::PerCpu::new_with_in(&runtime.root(), |processor| processor)?;
    /// assert!(values.iter().copied().eq(0..runtime.topology().processors()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        (0..self.bytes.units()).map(|unit| self.of_unit(unit))
    }

    /// The same, to change.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut values = memcg::PerCpu::<u64>::new_in(&runtime.root())?;
    /// values.iter_mut().for_each(|copy| *copy += 1);
    /// assert!(values.iter().all(|copy| *copy == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        let bytes = &self.bytes;
        // SAFETY: the copies are values of `T` since it was made, each unit has another, and the borrow is of them all.
        (0..bytes.units()).map(|unit| unsafe { bytes.copy(unit).cast::<T>().as_mut() })
    }

    /// The memory that it is in: what is charged, to whom, and where it lies.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let values = memcg::PerCpu::<u64>::new_in(&runtime.root())?;
    /// assert_eq!(values.bytes().group(), Some(runtime.root()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> &PerCpuBytes {
        &self.bytes
    }

    #[inline]
    #[allow(unsafe_code)]
    fn of_unit(&self, unit: usize) -> &T {
        // SAFETY: the copy is a value of `T` since it was made; whoever changes it has the object for himself.
        unsafe { self.bytes.copy(unit).cast::<T>().as_ref() }
    }
}

impl<T> Drop for PerCpu<T> {
    fn drop(&mut self) {
        drop(MadeCopies { bytes: &self.bytes, made: self.bytes.units(), values: PhantomData::<T> });
    }
}

/// So many values that are dropped with it, from the last to the first: also those after one whose end panics.
struct MadeCopies<'a, T> {
    bytes: &'a PerCpuBytes,
    made: usize,
    values: PhantomData<T>,
}

impl<T> Drop for MadeCopies<'_, T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        while let Some(unit) = self.made.checked_sub(1) {
            self.made = unit;
            let rest = MadeCopies { bytes: self.bytes, made: unit, values: PhantomData::<T> };
            // SAFETY: made, and not dropped: it is no longer counted.
            unsafe { self.bytes.copy(unit).cast::<T>().drop_in_place() };
            // Only a panic leaves them to it.
            std::mem::forget(rest);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for PerCpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
