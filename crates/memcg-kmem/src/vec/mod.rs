//! `KmemVec`: a vector in pages of its own.
//!
//! ```text
//! create, grow  precharge whole pages ──> map, or move the mapping ──> account them: on no node
//! push          write ──> after each batch of pages behind the last element: look up where they lie, and move
//!               their account there
//! settle        the same for the rest of the touched pages
//! shrink        give the pages back, look up where the others lie, give back what is accounted beyond those
//! drop          the elements, the pages, the account: off each node what is accounted there
//! ```
//!
//! A vector charges its capacity, and accounts its pages where they lie. A look-up accounts a page
//! for good. A page that moves later keeps its account until the owner reports the move
//! ([`KmemVec::migrated`], [`KmemVec::relocate`]). The accounted bytes are the bytes that go back.
//! When the mapping grows, its pages move with their content, so their account stays.
//!
//! `NodeOf` is foreign code: the vector calls it with no lock held, and before it changes anything
//! by the answer. In a runtime of one node it does not call it: the whole capacity is on that node
//! from the start, touched or not. `look_up` has that half.

mod look_up;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use memcg::kmem::{Kmem, NodeOf, Placement, Topology, node_of};
use memcg::{Bytes, Group};

use crate::error::{KmemError, NotStoredError};
use crate::mapping::{Mapping, Resized, assert_page_aligns, pages_for};
use crate::nodes::placed;
use crate::sync::Arc;

/// A vector in pages of its own: charged to a group for its capacity, and accounted as
/// [`StatKey::KERNEL`](memcg::StatKey::KERNEL) to the nodes where the pages lie.
///
/// Methods that allocate return an error instead of a panic ([`push`](Self::push),
/// [`reserve`](Self::reserve)). The elements are a slice. A push costs a comparison more
/// than a `Vec`'s, and a system call for each 64 pages where the runtime has several nodes.
///
/// ```
/// use memcg::StatKey;
/// use memcg::kmem::{NodeId, OneNode};
/// use memcg_kmem::KmemVec;
///
/// let runtime = memcg::Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let root = runtime.root();
/// let mut rows = KmemVec::<u64>::with_capacity_in(1_000, &root)?;
/// assert_eq!((root.live(), root.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).unplaced()), (8_192, 8_192));
/// for row in 0..600 {
///     rows.push(row)?;
/// }
/// rows.settle();
/// assert_eq!((rows.len(), rows.iter().sum::<u64>()), (600, 179_700));
/// assert_eq!(root.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).get(NodeId::new(1)), 8_192); // both pages are touched
/// drop(rows);
/// assert_eq!(root.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The vector's memory starts at a page of the system. A type with a larger alignment than the
/// smallest page, 4,096 bytes, does not compile:
///
/// ```compile_fail
/// #[repr(align(8192))]
/// struct Aligned;
/// # let runtime = memcg::Runtime::builder().build().unwrap();
/// let pages = memcg_kmem::KmemVec::<Aligned>::new_in(&runtime.root());
/// ```
pub struct KmemVec<T> {
    // In this order: the pages are gone before the group gets their bytes back.
    mapping: Mapping,
    /// `None` without pages.
    kmem: Option<Kmem>,
    group: Group,
    /// The finder of the nodes of pages; `None` with one node.
    node_of: Option<Arc<dyn NodeOf>>,
    len: usize,
    /// The most elements that the vector has ever had: their pages are touched.
    touched: usize,
    /// Bytes from the start in pages that the vector has looked up.
    looked: usize,
    /// Some of these pages had no node.
    missed: bool,
    /// The number of elements at which the vector looks up the next batch of pages; never with one
    /// node.
    due: usize,
    elements: PhantomData<T>,
}

impl<T> KmemVec<T> {
    /// Makes a vector without capacity, which charges nothing.
    pub fn new_in(group: &Group) -> Self {
        // Here too, so that a vector without elements compiles for the same types.
        const { assert_page_aligns::<T>() };
        let mut vec = KmemVec {
            mapping: Mapping::empty(),
            kmem: None,
            group: group.clone(),
            node_of: (!Topology::of(group).is_one_node()).then(|| Arc::clone(node_of(group))),
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

    /// Makes a vector with room for so many elements, in whole pages, by one system call. May
    /// block: in async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`KmemError`]: the group refuses, the system has no memory, or no memory can be so large.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let pages = memcg_kmem::KmemVec::<u64>::with_capacity_in(1, &runtime.root())?;
    /// assert_eq!((pages.capacity() * 8) as u64, runtime.root().live());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_capacity_in(capacity: usize, group: &Group) -> Result<Self, KmemError> {
        let mut vec = KmemVec::new_in(group);
        vec.resize(pages_for_elements::<T>(capacity)?)?;
        Ok(vec)
    }

    /// Elements that the vector has room for.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// assert_eq!(memcg_kmem::KmemVec::<()>::new_in(&runtime.root()).capacity(), usize::MAX);
    /// ```
    #[inline]
    pub fn capacity(&self) -> usize {
        self.mapping
            .len()
            .checked_div(size_of::<T>())
            .unwrap_or(usize::MAX)
    }

    /// The group that is charged: a handle of its own.
    pub fn group(&self) -> Group {
        self.group.clone()
    }

    /// Returns the nodes to which the vector's pages are accounted.
    pub fn placement(&self) -> Placement {
        self.kmem
            .as_ref()
            .map_or_else(Placement::new, Kmem::placement)
    }

    /// The elements.
    #[inline]
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` elements are written, and do not change during the borrow.
        unsafe { NonNull::slice_from_raw_parts(self.first(), self.len).as_ref() }
    }

    /// The elements, to change them.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
    /// pages.extend_from_slice(&[2, 1])?;
    /// pages.as_mut_slice().sort();
    /// assert_eq!(*pages, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[allow(unsafe_code)]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and the borrow is mutable.
        unsafe { NonNull::slice_from_raw_parts(self.first(), self.len).as_mut() }
    }

    #[inline]
    fn first(&self) -> NonNull<T> {
        self.mapping.first()
    }

    // === More ===

    /// Puts an element behind the last. May block: in async code call it on a thread for blocking
    /// work.
    ///
    /// A full vector doubles its capacity if the group and its ancestors have room for that. Else
    /// it grows by what it needs.
    ///
    /// # Errors
    ///
    /// [`NotStoredError`] with the element, for the reasons of
    /// [`with_capacity_in`](Self::with_capacity_in). Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build().unwrap();
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
    /// assert_eq!(pages.push("row").unwrap_err().into_value(), "row");
    /// ```
    #[inline]
    #[allow(unsafe_code)]
    pub fn push(&mut self, value: T) -> Result<(), NotStoredError<T>> {
        if self.len == self.capacity()
            && let Err(error) = self.reserve(1)
        {
            return Err(NotStoredError::new(value, error));
        }
        // SAFETY: the place is within the capacity and holds no value.
        unsafe { self.first().add(self.len).write(value) };
        self.len += 1;
        if self.len >= self.due {
            self.look_behind();
        }
        Ok(())
    }

    /// Puts clones of elements behind the last: all or, where there is no room, none. May block: in
    /// async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`KmemError`] as [`with_capacity_in`](Self::with_capacity_in). Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
    /// pages.extend_from_slice(b"row")?;
    /// assert_eq!(*pages, *b"row");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<(), KmemError>
    where
        T: Clone,
    {
        self.reserve(values.len())?;
        for value in values {
            // If a clone panics, the earlier ones stay.
            // SAFETY: the place is within the capacity and holds no value.
            unsafe { self.first().add(self.len).write(value.clone()) };
            self.len += 1;
        }
        // Mutation: what-a-slice-brings-is-not-looked-up
        if self.len >= self.due {
            self.look_behind();
        }
        Ok(())
    }

    /// Makes room for so many more elements. May block: in async code call it on a thread for
    /// blocking work.
    ///
    /// The capacity grows as in [`push`](Self::push). The mapping grows in place or moves; where
    /// the system can do that, it moves without a copy.
    ///
    /// # Errors
    ///
    /// [`KmemError`] as [`with_capacity_in`](Self::with_capacity_in). Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::<u64>::new_in(&runtime.root());
    /// pages.reserve(1_000)?;
    /// assert!(pages.capacity() >= 1_000);
    /// assert!(pages.reserve(usize::MAX).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&mut self, more: usize) -> Result<(), KmemError> {
        if self.capacity() - self.len >= more {
            return Ok(());
        }
        let needed =
            pages_for_elements::<T>(self.len.checked_add(more).ok_or_else(too_many::<T>)?)?;
        let amortised = pages_for(self.mapping.len().saturating_mul(2))
            .unwrap_or(needed)
            .max(needed);
        if amortised > needed && self.has_room_for(amortised - self.mapping.len()) {
            // The group had room for so much just now, but a tier may have none, or the system.
            return self.resize(amortised).or_else(|_| self.resize(needed));
        }
        self.resize(needed)
    }

    /// A guess, so that no group has to give back memory for room that is not needed yet.
    fn has_room_for(&self, bytes: usize) -> bool {
        let fits = |group: &Group| group.max().saturating_sub(group.usage()) >= bytes as u64;
        fits(&self.group) && self.group.ancestors().all(|above| fits(&above))
    }

    /// Grows to so many bytes: admission, memory, account.
    fn resize(&mut self, bytes: usize) -> Result<(), KmemError> {
        let more = (bytes - self.mapping.len()) as u64;
        let precharge = self.group.precharge(Bytes(more))?;
        if self.mapping.resize(bytes)? == Resized::Copied {
            self.forget_nodes();
        }
        let account = precharge.account(&placed(None, more));
        match &mut self.kmem {
            // The two charge the same group, so nothing comes back.
            Some(kmem) => drop(kmem.merge(account)),
            None => self.kmem = Some(account),
        }
        Ok(())
    }

    // === Less ===

    /// Takes the last element. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
    /// pages.push(7)?;
    /// assert_eq!((pages.pop(), pages.pop()), (Some(7), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn pop(&mut self) -> Option<T> {
        // Mutation: a-pop-forgets-what-was-touched
        self.touched = self.touched.max(self.len);
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the element is written, and from here on the caller's alone.
        Some(unsafe { self.first().add(self.len).read() })
    }

    /// Keeps at most so many elements, and drops the rest. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
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
        // Mutation: a-vector-that-is-cut-forgets-its-touched-pages
        self.touched = self.touched.max(self.len);
        let rest =
            ptr::slice_from_raw_parts_mut(self.first().as_ptr().wrapping_add(len), self.len - len);
        self.len = len;
        // SAFETY: the elements are written, and out of reach already. If the drop of one panics,
        // the others are dropped, and none twice.
        unsafe { ptr::drop_in_place(rest) };
    }

    /// Drops all elements. Capacity and charge stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::new_in(&runtime.root());
    /// pages.push(1)?;
    /// pages.clear();
    /// assert!(pages.is_empty() && runtime.root().live() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Gives back the pages behind the last element, with their account. If these were touched and
    /// there are several nodes, it looks up the pages that stay.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut pages = memcg_kmem::KmemVec::<u8>::with_capacity_in(1 << 20, &runtime.root())?;
    /// pages.push(1)?;
    /// pages.shrink_to_fit();
    /// assert_eq!(pages.capacity() as u64, runtime.root().live());
    /// assert!(pages.capacity() < 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink_to_fit(&mut self) {
        let before = self.mapping.len();
        let resized =
            pages_for_elements::<T>(self.len).and_then(|bytes| self.mapping.resize(bytes));
        let gone = before - self.mapping.len();
        if resized.is_err() || gone == 0 {
            return;
        }
        let was_placed = self.looked > self.mapping.len();
        // Mutation: a-shrunk-vector-thinks-gone-pages-touched
        self.touched = self.touched.min(self.capacity());
        self.looked = self.looked.min(self.mapping.len());
        if resized.is_ok_and(|resized| resized == Resized::Copied) {
            self.forget_nodes();
        } else if was_placed && !self.is_on_one_node() {
            // The account does not tell apart the pages that are gone, so the vector looks up the
            // rest anew.
            // Mutation: a-shrunk-vector-keeps-its-nodes
            self.relocate();
        }
        if let Some(kmem) = &mut self.kmem {
            kmem.shrink(&placed(None, gone as u64));
        }
        self.kmem.take_if(|kmem| kmem.bytes() == 0);
        self.set_due();
    }
}

/// Whole pages for so many elements; none for elements of no size.
fn pages_for_elements<T>(elements: usize) -> Result<usize, KmemError> {
    pages_for(
        elements
            .checked_mul(size_of::<T>())
            .ok_or_else(too_many::<T>)?,
    )
}

fn too_many<T>() -> KmemError {
    let max = if size_of::<T>() == 0 {
        usize::MAX as u64
    } else {
        isize::MAX as u64
    };
    KmemError::Capacity {
        bytes: u64::MAX,
        max,
    }
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
        // If the drop of an element panics, the fields are dropped all the same.
        self.truncate(0);
    }
}

impl<T: fmt::Debug> fmt::Debug for KmemVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
