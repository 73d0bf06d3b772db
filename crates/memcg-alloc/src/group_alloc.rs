//! An allocator of one group, for collections.

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator, Global};
use memcg::Group;

/// An allocator that charges one group for each object, and may refuse: for collections that take
/// an `Allocator` of `allocator-api2`, as hashbrown's and bumpalo's do.
///
/// It asks the group as [`Group::charge`] does, before it allocates. So `try_reserve` of a
/// collection returns an error where the group is full; `reserve` and `push` abort there, as at the
/// end of memory. A request may drain, reclaim and sleep. It gives exactly the bytes that were
/// asked for, and charges these.
///
/// If the program's global allocator is a [`MemcgAlloc`](crate::MemcgAlloc), that one charges the
/// object, too, to the thread's current group.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use memcg::{Limits, Runtime};
/// use memcg_alloc::GroupAlloc;
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(10_000))?;
/// let mut rows: Vec<u64, _> = Vec::new_in(GroupAlloc::new(&query));
/// assert!(rows.try_reserve_exact(2_000).is_err());
/// assert!(rows.try_reserve_exact(1_000).is_ok());
/// assert_eq!(query.live(), 8_000);
/// drop(rows);
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupAlloc<A = Global> {
    group: Group,
    inner: A,
}

impl GroupAlloc {
    /// An allocator of `group` over the program's global allocator.
    pub fn new(group: &Group) -> GroupAlloc {
        GroupAlloc::over(group, Global)
    }
}

impl<A> GroupAlloc<A> {
    /// An allocator of `group` over `inner`.
    pub fn over(group: &Group, inner: A) -> GroupAlloc<A> {
        GroupAlloc {
            group: group.clone(),
            inner,
        }
    }

    /// Returns the group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Charges `bytes`, which are given back where `allocate` fails.
    fn charged<T>(
        &self,
        bytes: usize,
        allocate: impl FnOnce() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        if bytes > 0 {
            self.group.raw().charge(bytes).map_err(|_| AllocError)?;
        }
        // Mutation: a-block-that-is-not-given-stays-charged
        allocate().inspect_err(|_| self.uncharge(bytes))
    }

    fn uncharge(&self, bytes: usize) {
        if bytes > 0 {
            self.group.raw().uncharge(bytes);
        }
    }
}

/// No more than was asked for: a caller may free a block with the size that it was told.
fn exactly(block: NonNull<[u8]>, size: usize) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(block.cast(), size)
}

// SAFETY: the blocks are those of the inner allocator, and each call for one is handed on. Clones
// have clones of the inner allocator, which gives and takes their blocks.
#[allow(unsafe_code)]
unsafe impl<A: Allocator> Allocator for GroupAlloc<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let size = layout.size();
        self.charged(size, || self.inner.allocate(layout))
            .map(|block| exactly(block, size))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let size = layout.size();
        self.charged(size, || self.inner.allocate_zeroed(layout))
            .map(|block| exactly(block, size))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.deallocate(block, layout) };
        self.uncharge(layout.size());
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let grow = || unsafe { self.inner.grow(block, old, new) };
        self.charged(new.size() - old.size(), grow)
            .map(|block| exactly(block, new.size()))
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let grow = || unsafe { self.inner.grow_zeroed(block, old, new) };
        // Mutation: a-growth-of-zeroes-that-is-refused-stays-charged
        self.charged(new.size() - old.size(), grow)
            .map(|block| exactly(block, new.size()))
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        // Mutation: a-block-is-given-back-before-it-shrinks
        let shrunk = unsafe { self.inner.shrink(block, old, new) }?;
        self.uncharge(old.size() - new.size());
        Ok(exactly(shrunk, new.size()))
    }
}
