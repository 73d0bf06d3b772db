//! `KmemSlab`: small objects of many groups, in pages of one node each.
//!
//! ```text
//! insert     precharge ──> a free slot, under the lock ──> account to the node of its page ──> the value
//!            ──> who holds it, under the lock
//!   no slot  map, bind, touch a page; look where it lies; into the list, under the lock
//! drop       the value ──> the slot back, under the lock ──> uncharge its holder; a page too many is unmapped
//! relocate   where each page lies now, with no lock ──> its node, under the lock ──> slot by slot: its word aside, the
//!            account moved with no lock, its word back
//! ```
//!
//! A slot has a word that says who holds it ([`PackedKmem`]): the group, and where the account is kept. So objects of several
//! groups share a page, and each pays to the byte for what it takes of it: its slot, its word, and its part of the page's
//! head, which is the same for each slot. Nobody pays for free slots, nor for the empty page that is kept for each node.
//!
//! Under the lock nothing is called and nothing allocated: no charge, no `NodeOf`, no destructor. So an account may be
//! made or moved while the page moves or the object goes. Who accounts for a node looks again, when he writes the word,
//! whether the page still lies there, and otherwise follows it; who drops an object whose word is aside marks it gone,
//! and leaves the end to whoever has the word.

mod layout;
mod pages;
mod slots;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use self::layout::{PageLayout, SlotWord};
use self::pages::{Lists, SlabCore, SlabPage};
use self::slots::{PinnedSlabPages, SlabSlot};
use super::error::{KmemError, NotStored};
use super::packed::PackedKmem;
use super::placement::{Bound, Placement};
use super::tiers::numa;
use crate::group::{ChargeError, Group};
use crate::numa::NodeId;
use crate::stat::Stat;
use crate::sync::Arc;
use crate::sync::lock::{Lock, Rank};
use crate::sync::model_failed;

/// Objects of one type, of any groups of one runtime, in pages of one node each.
///
/// About a charge and two short locks for an insertion, one for the end of an object; a system call or four where a page
/// is made.
///
/// ```
/// use memcg::{KmemSlab, Limits, NodeId, OneNode, Runtime, Stat};
///
/// let runtime = Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let one = runtime.root().create("one", Limits::new())?;
/// let other = runtime.root().create("other", Limits::new())?;
/// let slab = KmemSlab::<[u64; 4]>::new_in(&runtime.root());
/// let mine = slab.insert(&one, [1; 4])?;
/// let yours = slab.insert(&other, [2; 4])?; // in the same page
/// assert_eq!((one.live(), other.live()), (slab.object_bytes(), slab.object_bytes()));
/// assert_eq!(one.numa_stat(Stat::SLAB).get(NodeId::new(1)) as u64, slab.object_bytes());
/// std::thread::spawn(move || drop(mine)).join().unwrap();
/// assert_eq!((one.live(), yours[0]), (0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A slab's pages start at a page of the system. A type with a larger alignment than the smallest page, 4,096 bytes, does
/// not compile:
///
/// ```compile_fail
/// #[repr(align(8192))]
/// struct Aligned;
/// # let runtime = memcg::Runtime::builder().build().unwrap();
/// let slab = memcg::KmemSlab::<Aligned>::new_in(&runtime.root());
/// ```
pub struct KmemSlab<T> {
    shared: Arc<SlabCore<T>>,
}

/// An object in a slab. Dropped, it is destroyed and its group uncharged, on whatever thread, whether or not the slab or
/// the group are still there.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let slab = memcg::KmemSlab::new_in(&runtime.root());
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

// SAFETY: the one holder of a value, as a `Box`; a slot is given back under the lock.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for KmemBox<T> {}
// SAFETY: `&KmemBox` gives out `&T` and nothing else.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for KmemBox<T> {}

impl<T> KmemSlab<T> {
    /// Without pages, for the groups of the runtime that `group` is of.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg::KmemSlab::<u64>::new_in(&runtime.root()).pages(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn new_in(group: &Group) -> Self {
        let root = group.ancestors().last().unwrap_or_else(|| group.clone());
        let lists = Lock::new(Rank::Rings, Lists::new(numa(root.node()).topology.nodes().len()));
        KmemSlab { shared: Arc::new(SlabCore { layout: PageLayout::of::<T>(size_of::<SlabPage<T>>()), root, lists }) }
    }

    /// What an object is charged: its slot, the word that says whose it is, its part of the head of its page.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let slab = memcg::KmemSlab::<[u8; 100]>::new_in(&runtime.root());
    /// let _object = slab.insert(&runtime.root(), [0; 100])?;
    /// assert!(slab.object_bytes() > 100);
    /// assert_eq!(runtime.root().live(), slab.object_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn object_bytes(&self) -> u64 {
        self.shared.layout.object
    }

    /// Objects that fit into a page.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let slab = memcg::KmemSlab::<[u8; 100]>::new_in(&runtime.root());
    /// assert!(slab.objects_per_page() as u64 * slab.object_bytes() <= slab.page_bytes() as u64);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn objects_per_page(&self) -> usize {
        self.shared.layout.slots as usize
    }

    /// Bytes of a page: of the system's, or of several where objects are large.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(memcg::KmemSlab::<[u8; 10_000]>::new_in(&runtime.root()).page_bytes() > 10_000);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn page_bytes(&self) -> usize {
        self.shared.layout.page
    }

    /// Pages that there are, the empty ones that are kept included.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let slab = memcg::KmemSlab::new_in(&runtime.root());
    /// let _object = slab.insert(&runtime.root(), 1)?;
    /// assert_eq!(slab.pages(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pages(&self) -> usize {
        self.shared.lists.lock().pages()
    }

    /// Put a value into a page on this thread's node. May block: in async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`NotStored`] with the value: the group was refused or is one of another runtime, or the system has no memory.
    /// Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(10)).build()?;
    /// let slab = memcg::KmemSlab::new_in(&runtime.root());
    /// assert_eq!(slab.insert(&runtime.root(), "row").unwrap_err().into_value(), "row");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn insert(&self, group: &Group, value: T) -> Result<KmemBox<T>, NotStored<T>> {
        self.insert_on(group, numa(self.shared.root.node()).topology.current_node(), value)
    }

    /// Put a value into a page that was asked for on this node. May block: in async code call it on a thread for blocking work.
    ///
    /// Where it really lies is where it is accounted. A node that the runtime does not have is as good as its first.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let slab = memcg::KmemSlab::new_in(&runtime.root());
    /// let object = slab.insert_on(&runtime.root(), memcg::NodeId::new(1), 7)?;
    /// assert_eq!(*object, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_on(&self, group: &Group, node: NodeId, value: T) -> Result<KmemBox<T>, NotStored<T>> {
        match self.take(group, node) {
            Ok(slot) => Ok(KmemBox::new(slot, value)),
            Err(error) => Err(NotStored::new(value, error)),
        }
    }

    fn take(&self, group: &Group, node: NodeId) -> Result<SlabSlot<T>, KmemError> {
        let shared = &self.shared;
        if !std::ptr::eq(group.node().tree(), shared.root.node().tree()) {
            return Err(ChargeError::OtherRuntime { from: shared.root.clone(), to: group.clone() }.into());
        }
        let topology = &numa(group.node()).topology;
        let asked = topology.index_of(node).unwrap_or(0);
        let precharge = group.precharge(Bound::from(shared.layout.object).within(&[topology.node_at(asked)]))?;
        let account = |lies: Option<NodeId>| {
            let mut placement = Placement::new();
            placement.add(lies, shared.layout.object);
            precharge.account_as(Stat::SLAB, &placement)
        };
        if topology.is_one_node() {
            // Where the page will lie is known, and it moves nowhere.
            let owner = PackedKmem::of(account(Some(topology.node_at(0))));
            let found = shared.find(asked, SlotWord::Held(owner));
            return found.map(|(slot, _)| slot).inspect_err(|_| drop(shared.kmem(owner)));
        }
        let (slot, lies) = shared.find(asked, SlotWord::Taken)?;
        slot.page.publish(slot.number, account(lies), lies);
        Ok(slot)
    }

    /// Look where each page lies, and have the accounts of its objects follow it: somebody has moved pages. Nothing in a
    /// runtime of one node. A page made of several of the system's is where its first one is.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let slab = memcg::KmemSlab::new_in(&runtime.root());
    /// let _object = slab.insert(&runtime.root(), 1)?;
    /// slab.relocate();
    /// assert_eq!(runtime.root().live(), slab.object_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&self) {
        if numa(self.shared.root.node()).topology.is_one_node() {
            return;
        }
        let mut pinned = PinnedSlabPages::after(&self.shared, None);
        while let Some(last) = pinned.pages().last().copied() {
            let nodes = self.shared.look_up(pinned.pages());
            for (&page, node) in pinned.pages().iter().zip(nodes) {
                page.moved(node);
            }
            // The last one still pinned: from there the list goes on.
            pinned = PinnedSlabPages::after(&self.shared, Some(last));
        }
    }
}

impl<T> Drop for KmemSlab<T> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // The pages that are in use go with their last object.
        while let Some(page) = { self.shared.lists.lock().close() } {
            page.unmap();
        }
    }
}

// === impl KmemBox ===

impl<T> KmemBox<T> {
    #[allow(unsafe_code)]
    fn new(slot: SlabSlot<T>, value: T) -> Self {
        let place = slot.page.slot(slot.page.shared().layout, slot.number);
        // SAFETY: the slot is this one's, and nothing is there.
        unsafe { place.write(value) };
        KmemBox { value: place, slot }
    }

    /// Take the value out; its place in the slab is given back.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let slab = memcg::KmemSlab::new_in(&runtime.root());
    /// assert_eq!(slab.insert(&runtime.root(), 7)?.into_inner(), 7);
    /// assert_eq!(runtime.root().live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn into_inner(self) -> T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: this one's, which is not dropped: each field is taken out once.
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
        // SAFETY: written in `new`, and this one's until it is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for KmemBox<T> {
    #[inline]
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and borrowed mutably.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for KmemBox<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // Should it panic, the slot is given back all the same.
        // SAFETY: written in `new`; nobody reaches it after this.
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
        f.debug_struct("KmemSlab").field("pages", &self.pages()).field("object_bytes", &self.object_bytes()).finish()
    }
}
