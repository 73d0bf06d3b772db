//! `KmemStore`: byte strings in pages of an arena.
//!
//! ```text
//! insert    precharge ──> room in a page, under the lock: the page is pinned ──> the bytes, and the account to the
//!           node of the page ──> published and unpinned, under the lock
//! get       pinned, under the lock ──> the bytes are read ──> unpinned, under the lock
//! remove    a hole in its place, under the lock ──> uncharged
//! compact   the emptiest page that nobody has pinned: its objects into fuller ones, under the lock; what has come to
//!           lie on another node is set aside, and its page pinned ──> the account moved ──> published and unpinned,
//!           under the lock
//! ```
//!
//! The lock is held over the tables and over copies of less than a page; nothing is called, charged or allocated under
//! it. Three rules make that enough:
//!
//! * An object moves only by who holds the lock, and only out of a page that nobody has pinned. So a reader has its bytes
//!   for as long as it reads, and the node of an object's page is never looked at without the lock.
//! * A page's node is looked up once, before the page is in the arena, and again when its owner says that pages have been
//!   moved ([`KmemStore::relocate`]); always with no lock held, for `NodeOf` is foreign code.
//! * An account is made or moved with no lock held, by one thread: the object is set aside meanwhile. Who publishes it
//!   looks whether its page still lies where the account was made for, and otherwise follows it; who removes it meanwhile
//!   only says so, and whoever has the account ends it. So it is never lost and never there twice.
//!
//! Charged is the node of the page where an object lies. An offline group gets no part on a node where it has none: then
//! the node of the page that the object came from is charged, where the group has a part there, and else the nearest
//! ancestor on the new page's.
//!
//! Source: `zs_malloc`, `zs_compact` in `mm/zsmalloc.c`; the account of zswap in "per-memcg-per-node kmem accounting"
//! (Ghiti, 2026, patch 9), and what was asked of it: not to read a page's node without the lock that holds it in place.

mod arena;
pub(super) mod compact;

use std::fmt;

use smallvec::SmallVec;

use self::arena::{Arena, EntryState, Reserved, StoreEntry, Wanted, taken};
use super::account::Kmem;
use super::error::KmemError;
use super::packed::PackedKmem;
use super::placement::{Bound, Placement};
use super::tiers::numa;
use crate::group::{ChargeError, Group};
use crate::numa::mapping::Mapping;
use crate::numa::system::page_size;
use crate::numa::{NodeId, PageNode};
use crate::stat::Stat;
use crate::sync::lock::{Lock, Rank};
use crate::sync::model_failed;

/// Empty pages that are kept for each node.
const EMPTY_MAX: u32 = 1;

/// Pages whose nodes are looked up at a time.
const BATCH: usize = 64;

/// Byte strings, compressed by whoever keeps them here, of any groups of one runtime: in pages of an arena, behind keys.
///
/// Each is charged to its group for what it takes of its page, and accounted as [`Stat::KERNEL`] to the node of that page.
/// Removing leaves holes; [`compact`](Self::compact) moves what is left into fewer pages, and accounts with it. The table
/// behind the keys, and what is empty of a page, are nobody's.
///
/// ```
/// use memcg::{KmemStore, NodeId, OneNode, Runtime, Stat};
///
/// let runtime = Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let root = runtime.root();
/// let store = KmemStore::new_in(&root);
/// let key = store.insert(&root, b"compressed")?;
/// assert_eq!(store.get(key, <[u8]>::to_vec).as_deref(), Some(&b"compressed"[..]));
/// assert_eq!(root.numa_stat(Stat::KERNEL).get(NodeId::new(1)) as u64, KmemStore::object_bytes(10));
/// assert!(store.remove(key));
/// assert_eq!((store.get(key, |_| ()), root.live()), (None, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KmemStore {
    /// The root group of its runtime.
    root: Group,
    page_bytes: usize,
    arena: Lock<Arena>,
}

/// Names what a store keeps. A key of what was removed leads nowhere; one of another store is not noticed.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let store = memcg::KmemStore::new_in(&runtime.root());
/// let key = store.insert(&runtime.root(), b"compressed")?;
/// let again: memcg::StoreKey = key; // to be kept wherever what it names is known
/// assert!(store.remove(key) && !store.remove(again));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    entry: u32,
    generation: u32,
}

impl KmemStore {
    /// Without pages, for the groups of the runtime that `group` is of.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(memcg::KmemStore::new_in(&runtime.root()).is_empty());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn new_in(group: &Group) -> Self {
        let root = group.ancestors().last().unwrap_or_else(|| group.clone());
        let (page_bytes, nodes) = (page_size(), numa(root.node()).topology.nodes().len());
        KmemStore { root, page_bytes, arena: Lock::new(Rank::Rings, Arena::new(page_bytes, nodes)) }
    }

    /// What so many bytes are charged: they and what stands before them in their page, whole words.
    ///
    /// ```
    /// use memcg::KmemStore;
    ///
    /// assert!(KmemStore::object_bytes(0) > 0);
    /// assert_eq!(KmemStore::object_bytes(16) - KmemStore::object_bytes(8), 8);
    /// ```
    pub const fn object_bytes(len: usize) -> u64 {
        taken(len) as u64
    }

    /// The longest string that fits: not quite a page.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// assert!(store.insert(&runtime.root(), &vec![0; store.max_len()]).is_ok());
    /// assert!(store.insert(&runtime.root(), &vec![0; store.max_len() + 1]).is_err());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn max_len(&self) -> usize {
        self.page_bytes - taken(0)
    }

    /// Keep a copy of these bytes in a page on this thread's node. May block: in async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`KmemError`]: the group was refused or is one of another runtime, the system has no memory, or they are more than
    /// [`max_len`](Self::max_len). Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(10)).build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// assert!(matches!(store.insert(&runtime.root(), b"compressed"), Err(memcg::KmemError::Charge(_))));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn insert(&self, group: &Group, bytes: &[u8]) -> Result<StoreKey, KmemError> {
        self.insert_on(group, numa(self.root.node()).topology.current_node(), bytes)
    }

    /// Keep a copy of these bytes in a page asked for on this node. May block: in async code call it on a thread for blocking work.
    ///
    /// Where it really lies is where they are accounted. A node that the runtime does not have is as good as its first.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// let key = store.insert_on(&runtime.root(), memcg::NodeId::new(1), b"compressed")?;
    /// assert_eq!(store.get(key, <[u8]>::len), Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn insert_on(&self, group: &Group, node: NodeId, bytes: &[u8]) -> Result<StoreKey, KmemError> {
        if !std::ptr::eq(group.node().tree(), self.root.node().tree()) {
            return Err(ChargeError::OtherRuntime { from: self.root.clone(), to: group.clone() }.into());
        }
        if bytes.len() > self.max_len() {
            return Err(KmemError::Capacity { bytes: bytes.len() as u64, max: self.max_len() as u64 });
        }
        let topology = &numa(group.node()).topology;
        let asked = topology.index_of(node).unwrap_or(0);
        let object = taken(bytes.len()) as u64;
        let precharge = group.precharge(Bound::from(object).within(&[topology.node_at(asked)]))?;
        let Reserved { entry, generation, bytes: place, node } = self.reserve(asked, bytes.len())?;
        // SAFETY: room for so many bytes, which is this thread's until they are published.
        unsafe { place.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
        let mut placement = Placement::new();
        placement.add(node, object);
        self.publish(entry, precharge.account(&placement), node);
        Ok(StoreKey { entry, generation })
    }

    /// Read what a key leads to, where it stands: with no lock held, and nothing moves it meanwhile. `None`: it is not
    /// there any more. What is removed while it is read stays until it was read.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// let key = store.insert(&runtime.root(), b"compressed")?;
    /// assert_eq!(store.get(key, |bytes| bytes[0]), Some(b'c'));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn get<R>(&self, key: StoreKey, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (pin, bytes) = {
            let mut arena = self.arena.lock();
            let StoreEntry { page, at, .. } = arena.find_key(key)?;
            let len = arena.header_of(key.entry).len as usize;
            let page_of = &mut arena.pages[page as usize];
            page_of.pins += 1;
            (PagePin { store: self, page }, std::ptr::NonNull::slice_from_raw_parts(page_of.bytes(at as usize), len))
        };
        // SAFETY: written before it was published; the page is pinned, so they stay what and where they are.
        let answer = read(unsafe { bytes.as_ref() });
        drop(pin);
        Some(answer)
    }

    /// Keep it no longer; its group is uncharged. False where it was not there any more.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// let key = store.insert(&runtime.root(), b"compressed")?;
    /// assert_eq!((store.remove(key), store.remove(key)), (true, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: StoreKey) -> bool {
        let mut arena = self.arena.lock();
        let Some(StoreEntry { page, state, .. }) = arena.find_key(key) else { return false };
        if state == EntryState::Moving {
            arena.entries[key.entry as usize].state = EntryState::Gone;
            return true;
        }
        let header = arena.header_of(key.entry);
        arena.end(key.entry);
        let spare = arena.spare(page, EMPTY_MAX);
        drop(arena);
        // What is no longer there is given back.
        drop(spare);
        drop(header.owner.map(|owner| kmem(owner, header.len)));
        true
    }

    // === Figures ===

    /// Strings that are kept.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(memcg::KmemStore::new_in(&runtime.root()).len(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn len(&self) -> usize {
        self.arena.lock().objects
    }

    /// None are kept.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(memcg::KmemStore::new_in(&runtime.root()).is_empty());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its pages, the empty ones that are kept included.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// store.insert(&runtime.root(), b"compressed")?;
    /// assert!(store.mapped() as u64 >= runtime.root().live());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mapped(&self) -> usize {
        self.arena.lock().mapped * self.page_bytes
    }

    /// What is taken of the pages, by the node of each: what is accounted, but for groups that were offline when theirs
    /// was moved, and what is being moved just now.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg::KmemStore::new_in(&runtime.root());
    /// store.insert(&runtime.root(), b"compressed")?;
    /// assert_eq!(store.placement().bytes(), memcg::KmemStore::object_bytes(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn placement(&self) -> Placement {
        let topology = &numa(self.root.node()).topology;
        // Gathered where nothing is allocated under the lock.
        let mut nodes: SmallVec<[u64; BATCH]> = SmallVec::from_elem(0, topology.nodes().len() + 1);
        for page in &self.arena.lock().pages {
            let node = page.node.and_then(|node| topology.index_of(node)).unwrap_or(nodes.len() - 1);
            nodes[node] += page.taken() as u64;
        }
        let mut placement = Placement::new();
        placement.add(None, nodes.pop().unwrap_or(0));
        for (node, bytes) in topology.nodes().zip(nodes) {
            placement.add(Some(node), bytes);
        }
        placement
    }
}

impl Arena {
    /// Whoever has a key may have it of something that is gone.
    fn find_key(&self, key: StoreKey) -> Option<StoreEntry> {
        let entry = self.entries.get(key.entry as usize).copied()?;
        (entry.generation == key.generation && matches!(entry.state, EntryState::Live | EntryState::Moving))
            .then_some(entry)
    }
}

/// What is held of an object of so many bytes.
fn kmem(owner: PackedKmem, len: u32) -> Kmem {
    owner.into_kmem(Stat::KERNEL, taken(len as usize) as u64)
}

/// A page in which nothing moves.
struct PagePin<'a> {
    store: &'a KmemStore,
    page: u32,
}

impl Drop for PagePin<'_> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let spare = self.store.arena.lock().unpin(self.page, EMPTY_MAX);
        drop(spare);
    }
}

impl KmemStore {
    fn reserve(&self, asked: usize, len: usize) -> Result<Reserved, KmemError> {
        loop {
            let wanted = match self.arena.lock().reserve(asked, len) {
                Ok(reserved) => return Ok(reserved),
                Err(wanted) => wanted,
            };
            match wanted {
                Wanted::Tables(entries, pages) => self.enlarge(entries, pages)?,
                Wanted::Page => self.add_page(asked)?,
            }
        }
    }

    /// With no lock held but for the change.
    fn enlarge(&self, entries: usize, pages: usize) -> Result<(), KmemError> {
        if entries.max(pages) >= u32::MAX as usize {
            return Err(KmemError::Capacity { bytes: entries as u64, max: u32::MAX.into() });
        }
        let (mut new_entries, mut new_pages) = (Vec::new(), Vec::new());
        let reserved = new_entries.try_reserve_exact(entries).and_then(|()| new_pages.try_reserve_exact(pages));
        reserved.map_err(|_| KmemError::System {
            bytes: entries.max(pages).saturating_mul(size_of::<StoreEntry>()),
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        self.arena.lock().adopt(&mut new_entries, &mut new_pages);
        Ok(())
    }

    fn add_page(&self, asked: usize) -> Result<(), KmemError> {
        let topology = &numa(self.root.node()).topology;
        let mut mapping = Mapping::new(self.page_bytes)?;
        let range = mapping.range();
        let node = if topology.is_one_node() {
            Some(topology.node_at(0))
        } else {
            mapping.bind(range.clone(), topology.node_at(asked));
            mapping.touch(range.clone());
            self.look_up(&[range.start])[0]
        };
        // Another thread may have been faster with the last place in the table: the page is made anew.
        let refused = self.arena.lock().add_page(mapping, node, asked);
        drop(refused);
        Ok(())
    }

    /// Foreign code: no lock is held, and the pages stay.
    fn look_up(&self, pages: &[usize]) -> [Option<NodeId>; BATCH] {
        let node_of = &numa(self.root.node()).node_of;
        let size = node_of.page_size().max(1);
        let (mut addresses, mut found) = ([0; BATCH], [PageNode::Untouched; BATCH]);
        for (address, page) in addresses.iter_mut().zip(pages) {
            *address = page - page % size;
        }
        let many = pages.len().min(BATCH);
        node_of.look_up(&addresses[..many], &mut found[..many]);
        found.map(|found| if let PageNode::On(node) = found { Some(node) } else { None })
    }

    /// An object that is filled or set aside, and pins its page, has an account that was made for this node. Where its
    /// page lies elsewhere by now the account follows it first; where it was removed meanwhile all ends here.
    fn publish(&self, entry: u32, account: Kmem, made_for: Option<NodeId>) {
        let (mut account, mut made_for) = (account, made_for);
        loop {
            let owner = PackedKmem::of(account);
            let (lies, len) = {
                let mut arena = self.arena.lock();
                let StoreEntry { page, state, .. } = arena.entries[entry as usize];
                let len = arena.header_of(entry).len;
                if state == EntryState::Gone {
                    arena.end(entry);
                    let spare = arena.unpin(page, EMPTY_MAX);
                    drop(arena);
                    drop(spare);
                    drop(kmem(owner, len));
                    return;
                }
                let lies = arena.pages[page as usize].node;
                if lies == made_for {
                    arena.set_owner(entry, Some(owner));
                    arena.entries[entry as usize].state = EntryState::Live;
                    arena.pages[page as usize].pins -= 1;
                    return;
                }
                (lies, len)
            };
            account = kmem(owner, len);
            account.follow(made_for, lies);
            made_for = lies;
        }
    }
}

impl Drop for KmemStore {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let mut arena = Arena::new(self.page_bytes, 1);
        std::mem::swap(&mut *self.arena.lock(), &mut arena);
        for entry in 0..arena.entries.len() {
            if arena.entries[entry].state == EntryState::Live {
                let header = arena.header_of(entry as u32);
                drop(header.owner.map(|owner| kmem(owner, header.len)));
            }
        }
    }
}

impl fmt::Debug for KmemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KmemStore").field("len", &self.len()).field("mapped", &self.mapped()).finish_non_exhaustive()
    }
}
