//! `KmemSlab`: small objects of many groups, in pages of one node each.
//!
//! ```text
//! insert     precharge ──> a free slot, under the lock ──> account to the node of its page ──> the value
//!            ──> the slot's word, under the lock
//!   no slot  map, bind, touch a page; look up where it lies; into the list, under the lock
//! drop       the value ──> the slot back, under the lock ──> uncharge its holder; unmap a page too many
//! relocate   look up where each page lies, with no lock ──> its node, under the lock ──> slot by slot: its word aside,
//!            its account moved with no lock, its word back
//! ```
//!
//! A slot has a word that names its holder ([`PackedKmem`](memcg::kmem::PackedKmem)): the group,
//! and where the account is. So objects of several groups share a page. Each pays to the byte for
//! its slot, its word, and an equal part of the page's head. No group pays for free slots, nor for
//! the empty page that the slab keeps for each node.
//!
//! Under the lock a thread calls and allocates nothing: no charge, no `NodeOf`, no destructor. So
//! it makes or moves an account while the page may move or the object may go. The thread that
//! writes the word checks whether the page is still on the account's node, and otherwise follows
//! it. A thread that drops an object while its word is aside marks it gone, and the thread with the
//! word ends it.

mod layout;
mod pages;
mod slots;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use self::layout::{PageLayout, SlotWord};
use self::pages::{SlabCore, SlabLists, SlabPage};
use self::slots::{PinnedSlabPages, SlabSlot};
use crate::error::{KmemError, NotStoredError};
use crate::nodes::{check_runtime, look_up, place_of, placed};
use crate::sync::Mutex;
use crate::sync::{Arc, model_failed};
use memcg::Bytes;
use memcg::Group;
use memcg::StatKey;
use memcg::kmem::PrechargeBound;
use memcg::kmem::{NodeId, Topology};

/// Objects of one type, of any groups of one runtime, in pages of one node each.
///
/// An insertion costs a charge and two short locks, the end of an object one lock. A new page costs
/// a system call or four.
///
/// ```
/// use memcg::{Limits, Runtime, StatKey};
/// use memcg::kmem::{NodeId, OneNode};
/// use memcg_kmem::KmemSlab;
///
/// let runtime = Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let one = runtime.root().create("one", Limits::new())?;
/// let other = runtime.root().create("other", Limits::new())?;
/// let slab = KmemSlab::<[u64; 4]>::new_in(&runtime.root());
/// let mine = slab.insert(&one, [1; 4])?;
/// let yours = slab.insert(&other, [2; 4])?; // in the same page
/// assert_eq!((one.live(), other.live(), slab.page_count()), (slab.object_bytes(), slab.object_bytes(), 1));
/// assert_eq!(one.numa_stat(StatKey::SLAB, memcg::Freshness::Exact).get(NodeId::new(1)) as u64, slab.object_bytes());
/// std::thread::spawn(move || drop(mine)).join().unwrap();
/// assert_eq!((one.live(), yours[0]), (0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A slab's pages start at a page of the system. A type with a larger alignment than the smallest
/// page, 4,096 bytes, does not compile:
///
/// ```compile_fail
/// #[repr(align(8192))]
/// struct Aligned;
/// # let runtime = memcg::Runtime::builder().build().unwrap();
/// let slab = memcg_kmem::KmemSlab::<Aligned>::new_in(&runtime.root());
/// ```
pub struct KmemSlab<T> {
    shared: Arc<SlabCore<T>>,
}

/// An object in a slab. Its drop drops the value and uncharges the group. It may be dropped on any
/// thread, also after the slab and the group's handles are gone.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let slab = memcg_kmem::KmemSlab::new_in(&runtime.root());
/// let mut object = slab.insert(&runtime.root(), vec![1, 2])?;
/// object.push(3);
/// drop(slab);
/// assert_eq!(*object, [1, 2, 3]);
/// drop(object);
/// assert_eq!(runtime.root().live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KmemBox<T> {
    value: NonNull<T>,
    slot: SlabSlot<T>,
}

// SAFETY: a `KmemBox` is the only holder of its value, as a `Box`; it gives its slot back under the
// lock.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for KmemBox<T> {}
// SAFETY: `&KmemBox` gives out `&T` and nothing else.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for KmemBox<T> {}

impl<T> KmemSlab<T> {
    /// Makes a slab without pages, for the groups of the runtime of `group`.
    pub fn new_in(group: &Group) -> Self {
        let root = group.ancestors().last().unwrap_or_else(|| group.clone());
        let lists = Mutex::new(SlabLists::new(Topology::of(&root).nodes().len()));
        KmemSlab {
            shared: Arc::new(SlabCore {
                layout: PageLayout::of::<T>(size_of::<SlabPage<T>>()),
                root,
                lists,
            }),
        }
    }

    /// Bytes charged for an object: its slot, its word, and its part of the head of its page.
    pub fn object_bytes(&self) -> u64 {
        self.shared.layout.object
    }

    /// Objects that fit into a page.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let slab = memcg_kmem::KmemSlab::<[u8; 100]>::new_in(&runtime.root());
    /// assert!(slab.objects_per_page() as u64 * slab.object_bytes() <= slab.page_bytes() as u64);
    /// ```
    pub fn objects_per_page(&self) -> usize {
        self.shared.layout.slots as usize
    }

    /// Bytes of a page: one page of the system, or several where objects are large.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// assert!(memcg_kmem::KmemSlab::<[u8; 10_000]>::new_in(&runtime.root()).page_bytes() > 10_000);
    /// ```
    pub fn page_bytes(&self) -> usize {
        self.shared.layout.page
    }

    /// Pages of the slab, including the empty ones that it keeps.
    pub fn page_count(&self) -> usize {
        self.shared.lists.lock().pages
    }

    /// Puts a value into a page on the thread's node. May block: in async code call it on a thread
    /// for blocking work.
    ///
    /// # Errors
    ///
    /// [`NotStoredError`] with the value: the group refuses or belongs to another runtime, the
    /// system has no memory, or an object has 4 GiB or more. Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(10).build().unwrap();
    /// let slab = memcg_kmem::KmemSlab::new_in(&runtime.root());
    /// assert_eq!(slab.insert(&runtime.root(), "row").unwrap_err().into_value(), "row");
    /// ```
    pub fn insert(&self, group: &Group, value: T) -> Result<KmemBox<T>, NotStoredError<T>> {
        self.insert_on(group, Topology::of(&self.shared.root).current_node(), value)
    }

    /// Puts a value into a page that was made for this node. May block: in async code call it on a
    /// thread for blocking work.
    ///
    /// The object is accounted where its page really lies. A node that the runtime does not have
    /// counts as its first.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let slab = memcg_kmem::KmemSlab::new_in(&runtime.root());
    /// let object = slab.insert_on(&runtime.root(), memcg::kmem::NodeId::new(1), 7)?;
    /// assert_eq!(*object, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_on(
        &self,
        group: &Group,
        node: NodeId,
        value: T,
    ) -> Result<KmemBox<T>, NotStoredError<T>> {
        match self.take(group, node) {
            Ok(slot) => Ok(KmemBox::new(slot, value)),
            Err(error) => Err(NotStoredError::new(value, error)),
        }
    }

    fn take(&self, group: &Group, node: NodeId) -> Result<SlabSlot<T>, KmemError> {
        let shared = &self.shared;
        check_runtime(&shared.root, group)?;
        let topology = Topology::of(group);
        let (asked, node) = place_of(topology, node);
        if shared.layout.object > u64::from(u32::MAX) {
            return Err(KmemError::Capacity {
                bytes: shared.layout.object,
                max: u32::MAX.into(),
            });
        }
        let precharge =
            group.precharge(PrechargeBound::from(Bytes(shared.layout.object)).within(&[node]))?;
        let account =
            |lies| precharge.account_as(StatKey::SLAB, &placed(lies, shared.layout.object));
        if topology.is_one_node() {
            // With one node it is known where the page will lie, and it never moves.
            return Ok(shared.find(asked, SlotWord::of(account(Some(node))))?.0);
        }
        let (slot, lies) = shared.find(asked, SlotWord::Taken)?;
        slot.page.publish(slot.number, account(lies), lies);
        Ok(slot)
    }

    /// Looks up where each page lies, after pages have moved. The accounts of the objects follow. A
    /// page made of several of the system's counts as where its first one is. Does nothing in a
    /// runtime of one node.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let slab = memcg_kmem::KmemSlab::new_in(&runtime.root());
    /// let _object = slab.insert(&runtime.root(), 1)?;
    /// slab.relocate();
    /// assert_eq!(runtime.root().live(), slab.object_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&self) {
        if Topology::of(&self.shared.root).is_one_node() {
            return;
        }
        let mut pinned = PinnedSlabPages::after(&self.shared, None);
        while let Some(last) = pinned.pages.last().copied() {
            let nodes = look_up(
                &self.shared.root,
                pinned.pages.iter().map(|page| page.address()),
            );
            for (&page, node) in pinned.pages.iter().zip(nodes) {
                page.moved(node);
            }
            // The last page is still pinned, so the list goes on from there.
            pinned = PinnedSlabPages::after(&self.shared, Some(last));
        }
    }
}

impl<T> Drop for KmemSlab<T> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // A page in use goes with its last object.
        while let Some(page) = { self.shared.lists.lock().close() } {
            drop(page);
        }
    }
}

// === impl KmemBox ===

impl<T> KmemBox<T> {
    #[allow(unsafe_code)]
    fn new(slot: SlabSlot<T>, value: T) -> Self {
        let place = slot.page.slot(slot.page.shared().layout, slot.number);
        // SAFETY: the slot is this object's, and holds no value.
        unsafe { place.write(value) };
        KmemBox { value: place, slot }
    }

    /// Takes the value out, and gives its slot back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let slab = memcg_kmem::KmemSlab::new_in(&runtime.root());
    /// assert_eq!(slab.insert(&runtime.root(), 7)?.into_inner(), 7);
    /// assert_eq!(runtime.root().live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn into_inner(self) -> T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so each field is taken out once.
        let (value, slot) = unsafe { (this.value.read(), std::ptr::read(&raw const this.slot)) };
        drop(slot);
        value
    }
}

impl<T> Deref for KmemBox<T> {
    type Target = T;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &T {
        // SAFETY: `new` has written the value, which is this object's until its drop.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for KmemBox<T> {
    #[inline]
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the borrow is mutable.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for KmemBox<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // If the drop of the value panics, the slot goes back all the same.
        // SAFETY: `new` has written the value, and this is its last use.
        unsafe { self.value.drop_in_place() };
    }
}

impl<T: fmt::Debug> fmt::Debug for KmemBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> fmt::Debug for KmemSlab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KmemSlab")
            .field("pages", &self.page_count())
            .field("object_bytes", &self.object_bytes())
            .finish()
    }
}
