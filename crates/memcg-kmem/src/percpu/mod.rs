//! One copy of a value for each possible processor, on the processor's node.
//!
//! ```text
//! precharge   data x processors and the words of its granules: admission
//! take        granules of a chunk: the lock, a bitmap, and where those granules lie
//! zero        each copy, without the lock
//! account     one update for each node; the chunk keeps the account
//! drop        granules and account come back under the lock, and are uncharged without it
//! ```
//!
//! A chunk knows where its pages lie (`page_nodes`). The allocator looks them up once, before any
//! object is in the chunk. It looks them up again after a report of moved pages
//! ([`PerCpuAllocator::migrated`]). A thread that looks up holds no lock.
//!
//! Pages may move while a thread makes an account. Before it keeps the account, the thread compares
//! it with what the chunk knows by then, and relocates it (`chunk_pool`). An object may go while a
//! mover has its account: the mover ends the account (`records`).

mod allocator;
mod bits;
mod bytes;
mod chunk;
mod chunk_pool;
mod page_nodes;
mod plan;
mod records;

pub use allocator::PerCpuAllocator;
pub use bytes::PerCpuBytes;
pub use plan::PerCpuShape;

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;

use memcg::Group;

use crate::error::KmemError;
use crate::sync::processor;

/// A value for each possible processor of the runtime's topology, in memory on the processor's
/// node: charged to a group, accounted to the nodes. If values are as large as cache lines, no two
/// processors write one line.
///
/// A thread may run on another processor a moment after it has [asked](Self::current) for its copy.
/// Two threads of one processor have the same copy. So copies are shared, and `T` is an atomic, a
/// lock, or made of them.
///
/// ```
/// use memcg::{Runtime, StatKey};
/// use memcg_kmem::PerCpu;
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
/// assert_eq!(root.numa_stat(StatKey::PERCPU, memcg::Freshness::Exact).sum() as u64, hits.bytes().charged());
/// assert_eq!(hits.bytes().group().as_ref(), Some(&root));
/// drop(hits);
/// assert_eq!(root.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PerCpu<T> {
    bytes: PerCpuBytes,
    values: PhantomData<T>,
}

// SAFETY: the object has a `T` for each unit, and hands out references as a slice of them would.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for PerCpu<T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    /// Makes a default value for each processor, in memory of the group's runtime. May block: in
    /// async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; an error leaves nothing behind.
    pub fn new_in(group: &Group) -> Result<PerCpu<T>, KmemError>
    where
        T: Default,
    {
        PerCpu::new_with_in(group, |_| T::default())
    }

    /// Calls `make` for the value of each processor. May block: in async code call it on a thread
    /// for blocking work.
    ///
    /// The thread holds no lock meanwhile. If `make` panics, the values made so far are dropped and
    /// the memory goes back.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; an error leaves nothing behind.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let names = memcg_kmem::PerCpu::new_with_in(&runtime.root(), |processor| format!("processor {processor}"))?;
    /// assert_eq!(names.get(0).map(String::as_str), Some("processor 0"));
    /// assert_eq!(names.get(usize::MAX), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new_with_in(
        group: &Group,
        make: impl FnMut(usize) -> T,
    ) -> Result<PerCpu<T>, KmemError> {
        PerCpu::new_with_of(&PerCpuAllocator::of(group)?, group, make)
    }

    /// As [`new_with_in`](Self::new_with_in), in memory of another allocator. May block: in async
    /// code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// As [`PerCpuAllocator::allocate`]; an error leaves nothing behind.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let large = memcg_kmem::PerCpuAllocator::new(&runtime.root(), memcg_kmem::PerCpuShape::new().with_unit(1 << 20))?;
    /// let tables = memcg_kmem::PerCpu::new_with_of(&large, &runtime.root(), |_| [0_u8; 100_000])?;
    /// assert!(tables.bytes().size() >= 100_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn new_with_of(
        allocator: &PerCpuAllocator,
        group: &Group,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<PerCpu<T>, KmemError> {
        let bytes = PerCpuBytes::charged_to(group, &allocator.pool, Layout::new::<T>())?;
        let mut made = MadeCopies {
            bytes: &bytes,
            made: 0,
            values: PhantomData::<T>,
        };
        for processor in 0..bytes.processor_count() {
            if let Some(unit) = bytes.plan().unit_of(processor) {
                let value = make(processor);
                // SAFETY: the unit's copy has the layout of a `T`, and the object has no other user
                // yet.
                unsafe { bytes.copy(unit).cast::<T>().write(value) };
                // Units lie in the order of their processors.
                // Mutation: a-value-that-is-made-last-is-not-dropped
                made.made = unit + 1;
            }
        }
        // From here on the new object owns all of them.
        made.made = 0;
        drop(made);
        Ok(PerCpu {
            bytes,
            values: PhantomData,
        })
    }

    /// The copy of a processor; `None` where the topology has no such processor.
    #[inline]
    pub fn get(&self, processor: usize) -> Option<&T> {
        Some(self.of_unit(self.bytes.plan().unit_of(processor)?))
    }

    /// The copy of the processor that the thread runs on; the thread may run elsewhere a moment
    /// later. Where the topology does not have that processor, or the system does not tell it, this
    /// is some copy. Costs a call, no system call.
    #[inline]
    pub fn current(&self) -> &T
    where
        T: Sync,
    {
        self.of_unit(self.bytes.plan().unit_of_any(processor()))
    }

    /// Every copy, by processor.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let values = memcg_kmem::PerCpu::new_with_in(&runtime.root(), |processor| processor)?;
    /// assert!(values.iter().copied().eq(0..runtime.topology().processor_count()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        (0..self.bytes.plan().units.len()).map(|unit| self.of_unit(unit))
    }

    /// Every copy, to change it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut values = memcg_kmem::PerCpu::<u64>::new_in(&runtime.root())?;
    /// values.iter_mut().for_each(|copy| *copy += 1);
    /// assert!(values.iter().all(|copy| *copy == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        let bytes = &self.bytes;
        // SAFETY: the copies are values of `T` since the object was made. Each unit has another
        // one, and the borrow is of them all.
        (0..bytes.plan().units.len()).map(|unit| unsafe { bytes.copy(unit).cast::<T>().as_mut() })
    }

    /// The memory of the copies: what is charged to which group, and where it lies.
    pub fn bytes(&self) -> &PerCpuBytes {
        &self.bytes
    }

    #[inline]
    #[allow(unsafe_code)]
    fn of_unit(&self, unit: usize) -> &T {
        // SAFETY: the copy is a value of `T` since the object was made. A change takes a mutable
        // borrow of the object.
        unsafe { self.bytes.copy(unit).cast::<T>().as_ref() }
    }
}

impl<T> Drop for PerCpu<T> {
    fn drop(&mut self) {
        drop(MadeCopies {
            bytes: &self.bytes,
            made: self.bytes.plan().units.len(),
            values: PhantomData::<T>,
        });
    }
}

/// The first `made` values. Its drop drops them, from the last to the first, also those after a
/// value with a panicking drop.
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
            let rest = MadeCopies {
                bytes: self.bytes,
                made: unit,
                values: PhantomData::<T>,
            };
            // SAFETY: the value is made and not yet dropped. The count leaves it out already.
            unsafe { self.bytes.copy(unit).cast::<T>().drop_in_place() };
            // Only a panic drops `rest`.
            std::mem::forget(rest);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for PerCpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
