//! `KmemVec`: a vector in pages of its own.
//!
//! ```text
//! create, grow  precharge whole pages ──> map, or move the mapping ──> account them: on no node
//! push          write ──> as often as a batch of pages lies behind the last element: look where they lie,
//!               and move their account there
//! settle        the same for what is left of the touched pages
//! shrink        give the pages back, look where the others lie, give back what is accounted beyond those
//! drop          the elements, the pages, the account: from each node what is accounted there
//! ```
//!
//! Charged is the capacity; accounted is where the pages lie, which nobody knows before they are touched. What is looked
//! at once is accounted for good: pages that are moved later keep their account until their owner says so
//! ([`KmemVec::migrated`], [`KmemVec::relocate`]), and what goes back is what was accounted, whatever the pages have done
//! meanwhile. When the mapping grows its pages are moved with their content, so their account stays.
//!
//! `NodeOf` is foreign code: it is called with no lock held, and before anything is changed by what it says. In a runtime
//! of one node it is not called: the whole capacity is on that node from the start, touched or not. `nodes` has that
//! half.

mod look_up;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use super::account::Kmem;
use super::error::{KmemError, NotStored};
use super::placement::Placement;
use super::precharge::Precharge;
use super::tiers::Tiers;
use crate::group::Group;
use crate::numa::mapping::{Mapping, Resized, assert_page_aligns, pages_for};

/// A vector in pages of its own: charged to a group for its capacity, and accounted as [`Stat::KERNEL`](crate::Stat::KERNEL)
/// to the nodes where the pages lie.
///
/// What would allocate is refused as a value ([`push`](Self::push), [`try_reserve`](Self::try_reserve)); the elements are
/// a slice. To push costs a comparison more than a `Vec`'s; a system call for each 64 pages where the runtime has several
/// nodes.
///
/// ```
/// use memcg::{KmemVec, NodeId, OneNode, Stat};
///
/// let runtime = memcg::Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let root = runtime.root();
/// let mut rows = KmemVec::<u64>::with_capacity_in(1_000, &root)?;
/// assert_eq!((root.live(), root.numa_stat(Stat::KERNEL).unplaced()), (8_192, 8_192));
/// for row in 0..600 {
///     rows.push(row)?;
/// }
/// rows.settle();
/// assert_eq!((rows.len(), rows.iter().sum::<u64>()), (600, 179_700));
/// assert_eq!(root.numa_stat(Stat::KERNEL).get(NodeId::new(1)), 8_192); // both pages are touched
/// drop(rows);
/// assert_eq!(root.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The vector's pages start at a page of the system. A type with a larger alignment than the smallest page, 4,096 bytes,
/// does not compile:
///
/// ```compile_fail
/// #[repr(align(8192))]
/// struct Aligned;
/// # let runtime = memcg::Runtime::builder().build().unwrap();
/// let pages = memcg::KmemVec::<Aligned>::new_in(&runtime.root());
/// ```
pub struct KmemVec<T> {
    // In this order: what is given back is no longer there.
    mapping: Mapping,
    kmem: Kmem,
    len: usize,
    /// The most elements that there ever were: pages behind them are touched.
    touched: usize,
    /// Bytes from the start whose pages have been looked at.
    looked: usize,
    /// Some of them had no node.
    missed: bool,
    /// Elements at which the next batch of pages is looked at; with one node never.
    due: usize,
    elements: PhantomData<T>,
}

impl<T> KmemVec<T> {
    /// Of no capacity: charges nothing yet, whatever the group's limits.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(memcg::KmemVec::<u64>::new_in(&runtime.root()).is_empty());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn new_in(group: &Group) -> Self {
        // A vector that never has an element compiles for no other types than one that has.
        const { assert_page_aligns::<T>() };
        let nothing = Precharge { charge: group.charge(0), tiers: Tiers::new() };
        let mut vec = KmemVec {
            mapping: Mapping::empty(),
            kmem: nothing.account(&Placement::new()),
            len: 0,
            touched: 0,
            looked: 0,
            missed: false,
            due: usize::MAX,
            elements: PhantomData,
        };
        vec.set_due();
        vec
    }

    /// For so many elements at least, in whole pages. May block: in async code call it on a thread for blocking work.
    /// One system call.
    ///
    /// # Errors
    ///
    /// [`KmemError`]: the group was refused, the system has no memory, or there is no such capacity.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let pages = memcg::KmemVec::<u64>::with_capacity_in(1, &runtime.root())?;
    /// assert_eq!((pages.capacity() * 8) as u64, runtime.root().live());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_capacity_in(capacity: usize, group: &Group) -> Result<Self, KmemError> {
        let mut vec = KmemVec::new_in(group);
        vec.resize(pages_for_elements::<T>(capacity)?)?;
        Ok(vec)
    }

    /// Elements for which there is room.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg::KmemVec::<()>::new_in(&runtime.root()).capacity(), usize::MAX);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    pub fn capacity(&self) -> usize {
        self.mapping.len().checked_div(size_of::<T>()).unwrap_or(usize::MAX)
    }

    /// Who is charged: a handle of its own.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg::KmemVec::<u8>::new_in(&runtime.root()).group(), runtime.root());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn group(&self) -> Group {
        self.kmem.group()
    }

    /// Where its pages are accounted.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let pages = memcg::KmemVec::<u8>::with_capacity_in(1, &runtime.root())?;
    /// assert_eq!(pages.placement().unplaced(), runtime.root().live()); // nobody has touched it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn placement(&self) -> Placement {
        self.kmem.placement()
    }

    /// The elements.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.push(7)?;
    /// assert_eq!(pages.as_slice(), [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` elements are written, and nobody changes them while this is borrowed.
        unsafe { NonNull::slice_from_raw_parts(self.first(), self.len).as_ref() }
    }

    /// The elements, to change them.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.extend_from_slice(&[2, 1])?;
    /// pages.as_mut_slice().sort();
    /// assert_eq!(*pages, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[allow(unsafe_code)]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; this is borrowed mutably.
        unsafe { NonNull::slice_from_raw_parts(self.first(), self.len).as_mut() }
    }

    #[inline]
    fn first(&self) -> NonNull<T> {
        self.mapping.first()
    }

    // === More ===

    /// Put an element behind the last. May block: in async code call it on a thread for blocking work.
    ///
    /// Where there is no room for it the capacity doubles, as far as the group and its ancestors have room for that, and
    /// else grows by what is needed.
    ///
    /// # Errors
    ///
    /// [`NotStored`] as [`with_capacity_in`](Self::with_capacity_in), with the element; nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// assert_eq!(pages.push("row").unwrap_err().into_value(), "row");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    #[allow(unsafe_code)]
    pub fn push(&mut self, value: T) -> Result<(), NotStored<T>> {
        if self.len == self.capacity()
            && let Err(error) = self.try_reserve(1)
        {
            return Err(NotStored::new(value, error));
        }
        // SAFETY: within the capacity, and nothing is there.
        unsafe { self.first().add(self.len).write(value) };
        self.len += 1;
        if self.len >= self.due {
            self.look_behind();
        }
        Ok(())
    }

    /// Put clones of elements behind the last. May block: in async code call it on a thread for blocking work.
    /// All or, where there is no room, none.
    ///
    /// # Errors
    ///
    /// [`KmemError`] as [`with_capacity_in`](Self::with_capacity_in); nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.extend_from_slice(b"row")?;
    /// assert_eq!(*pages, *b"row");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<(), KmemError>
    where
        T: Clone,
    {
        self.try_reserve(values.len())?;
        for value in values {
            // A clone that panics leaves those before it.
            // SAFETY: within the capacity, and nothing is there.
            unsafe { self.first().add(self.len).write(value.clone()) };
            self.len += 1;
        }
        if self.len >= self.due {
            self.look_behind();
        }
        Ok(())
    }

    /// Have room for so many elements more. May block: in async code call it on a thread for blocking work.
    ///
    /// As [`push`](Self::push) has it: the mapping grows where it is or moves; what it holds is not copied, where the
    /// system can do that.
    ///
    /// # Errors
    ///
    /// [`KmemError`] as [`with_capacity_in`](Self::with_capacity_in); nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::<u64>::new_in(&runtime.root());
    /// pages.try_reserve(1_000)?;
    /// assert!(pages.capacity() >= 1_000);
    /// assert!(pages.try_reserve(usize::MAX).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_reserve(&mut self, more: usize) -> Result<(), KmemError> {
        if self.capacity() - self.len >= more {
            return Ok(());
        }
        let needed = pages_for_elements::<T>(self.len.checked_add(more).ok_or_else(too_many::<T>)?)?;
        let amortised = pages_for(self.mapping.len().saturating_mul(2)).unwrap_or(needed).max(needed);
        if amortised > needed && self.has_room_for(amortised - self.mapping.len()) {
            return self.resize(amortised).or_else(|_| self.resize(needed));
        }
        self.resize(needed)
    }

    /// A guess, so that nobody is asked to make room for what is not needed yet.
    fn has_room_for(&self, bytes: usize) -> bool {
        let group = self.group();
        let fits = |group: &Group| group.max().saturating_sub(group.usage()) >= bytes as u64;
        fits(&group) && group.ancestors().all(|above| fits(&above))
    }

    /// Admission, memory, account. To more bytes.
    fn resize(&mut self, bytes: usize) -> Result<(), KmemError> {
        let more = (bytes - self.mapping.len()) as u64;
        let precharge = self.kmem.group().precharge(more)?;
        if self.mapping.resize(bytes)? == Resized::Copied {
            self.forget_nodes();
        }
        let mut untouched = Placement::new();
        untouched.add(None, more);
        let account = precharge.account(&untouched);
        if self.kmem.bytes() == 0 {
            // One of no bytes has asked no tier.
            self.kmem = account;
        } else {
            // Of the same group: nothing comes back.
            drop(self.kmem.merge(account));
        }
        Ok(())
    }

    // === Less ===

    /// Take the last element. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.push(7)?;
    /// assert_eq!((pages.pop(), pages.pop()), (Some(7), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn pop(&mut self) -> Option<T> {
        self.touched = self.touched.max(self.len);
        self.len = self.len.checked_sub(1)?;
        // SAFETY: written, and from here on nobody's but the caller's.
        Some(unsafe { self.first().add(self.len).read() })
    }

    /// Keep so many elements at most, and drop the rest. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.extend_from_slice(&[1, 2, 3])?;
    /// pages.truncate(1);
    /// assert_eq!(*pages, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.touched = self.touched.max(self.len);
        let rest = ptr::slice_from_raw_parts_mut(self.first().as_ptr().wrapping_add(len), self.len - len);
        self.len = len;
        // SAFETY: written, and out of reach already: should one panic, the others are dropped, and none again.
        unsafe { ptr::drop_in_place(rest) };
    }

    /// Drop all elements. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::new_in(&runtime.root());
    /// pages.push(1)?;
    /// pages.clear();
    /// assert!(pages.is_empty() && runtime.root().live() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Give back the pages behind the last element, with what is accounted for them. Where they were touched and there
    /// are several nodes, the pages that stay are looked at.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg::KmemVec::<u8>::with_capacity_in(1 << 20, &runtime.root())?;
    /// pages.push(1)?;
    /// pages.shrink_to_fit();
    /// assert_eq!(pages.capacity() as u64, runtime.root().live());
    /// assert!(pages.capacity() < 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink_to_fit(&mut self) {
        let before = self.mapping.len();
        let resized = pages_for_elements::<T>(self.len).and_then(|bytes| Ok(self.mapping.resize(bytes)?));
        let gone = before - self.mapping.len();
        if resized.is_err() || gone == 0 {
            return;
        }
        let was_placed = self.looked > self.mapping.len();
        self.touched = self.touched.min(self.capacity());
        self.looked = self.looked.min(self.mapping.len());
        if resized.is_ok_and(|resized| resized == Resized::Copied) {
            self.forget_nodes();
        } else if was_placed && !self.is_on_one_node() {
            // What was accounted for those that are gone nobody knows apart: the rest is looked at anew.
            self.relocate();
        }
        let mut spare = Placement::new();
        spare.add(None, gone as u64);
        self.kmem.shrink(&spare);
        self.set_due();
    }
}

/// Whole pages for so many elements; none where they are of no size.
fn pages_for_elements<T>(elements: usize) -> Result<usize, KmemError> {
    Ok(pages_for(elements.checked_mul(size_of::<T>()).ok_or_else(too_many::<T>)?)?)
}

fn too_many<T>() -> KmemError {
    let max = if size_of::<T>() == 0 { usize::MAX as u64 } else { isize::MAX as u64 };
    KmemError::Capacity { bytes: u64::MAX, max }
}

impl<T> Deref for KmemVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T> DerefMut for KmemVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.as_mut_slice()
    }
}

impl<'a, T> IntoIterator for &'a KmemVec<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut KmemVec<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> Drop for KmemVec<T> {
    fn drop(&mut self) {
        // Should an element panic, the fields are dropped all the same.
        self.truncate(0);
    }
}

impl<T: fmt::Debug> fmt::Debug for KmemVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
