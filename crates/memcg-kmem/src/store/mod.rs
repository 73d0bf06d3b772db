//! `KmemStore`: byte strings in pages of an arena.
//!
//! ```text
//! insert    precharge ──> room in a page, under the lock: the page is pinned ──> the bytes, and the account to the
//!           node of the page ──> published and unpinned, under the lock
//! get       pinned, under the lock ──> the bytes are read ──> unpinned, under the lock
//! remove    a hole in its place, under the lock ──> uncharged
//! compact   the emptiest page without a pin: its objects into fuller ones, under the lock; an object that comes to
//!           lie on another node is set aside, and its page pinned ──> its account moved ──> published and unpinned,
//!           under the lock
//! ```
//!
//! A thread holds the lock for the tables and for copies of less than a page. Under it the thread
//! calls, charges and allocates nothing. Three rules make that enough:
//!
//! * Only a thread with the lock moves an object, and only out of a page without a pin. So a reader
//!   has its bytes for as long as it reads. No thread looks at the node of an object's page without
//!   the lock.
//! * A thread looks a page's node up before the page is in the arena, and again after a report of
//!   moved pages ([`KmemStore::relocate`]). It holds no lock then, because `NodeOf` is foreign
//!   code.
//! * One thread makes or moves an account without the lock, while the object is set aside. When it
//!   publishes the object it checks whether the page is still on the account's node, and otherwise
//!   follows it. A thread that removes the object meanwhile marks it, and the thread with the
//!   account ends it. So no account is lost, and none is there twice.
//!
//! The account is on the node of the object's page. An offline group gets no new statistics on a
//! node. Then the account goes to the node of the page that the object came from, if the group has
//! statistics there. Else it goes to the nearest ancestor on the new page's node.
//!
//! Source: `zs_malloc`, `zs_compact` in `mm/zsmalloc.c`, and the account of zswap in
//! "per-memcg-per-node kmem accounting" (Ghiti, 2026, patch 9). Its review asked not to read a
//! page's node without the lock that holds the page in place.

mod arena;
pub(super) mod compact;

use std::fmt;

use memcg::kmem::{Kmem, NodeId, Placement, PrechargeBound, Topology};
use memcg::{Bytes, Group};
use smallvec::SmallVec;

use self::arena::{Arena, EntryState, Reserved, StoreEntry, Wanted, taken};
use crate::error::KmemError;
use crate::mapping::{Mapping, page_size};
use crate::nodes::{BATCH, check_runtime, look_up, node_at, place_of, placed};
use crate::sync::{Mutex, model_failed};

/// Empty pages that the store keeps for each node.
const EMPTY_MAX: u32 = 1;

/// Byte strings, which their owners compress, of any groups of one runtime: in pages of an arena,
/// behind keys.
///
/// Each string is charged to its group for what it takes of its page, and accounted as
/// [`StatKey::KERNEL`](memcg::StatKey::KERNEL) to the node of that page. A removal leaves a hole;
/// [`compact`](Self::compact) moves what is left into fewer pages, and the accounts with it. No
/// group pays for the table behind the keys, nor for the empty part of a page.
///
/// ```
/// use memcg::{Runtime, StatKey};
/// use memcg::kmem::{NodeId, OneNode};
/// use memcg_kmem::KmemStore;
///
/// let runtime = Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
/// let root = runtime.root();
/// let store = KmemStore::new_in(&root);
/// let key = store.insert(&root, b"compressed")?;
/// assert_eq!(store.get(key, <[u8]>::to_vec).as_deref(), Some(&b"compressed"[..]));
/// assert_eq!(root.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).get(NodeId::new(1)) as u64, KmemStore::object_bytes(10));
/// assert!(store.remove(key));
/// assert_eq!((store.get(key, |_| ()), store.len(), root.live()), (None, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KmemStore {
    root: Group,
    page_bytes: usize,
    arena: Mutex<Arena>,
}

/// Names a string in a store. The key of a removed string leads nowhere. A store does not notice a
/// key of another store.
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
/// let key = store.insert(&runtime.root(), b"compressed")?;
/// let again: memcg_kmem::StoreKey = key; // to be kept wherever what it names is known
/// assert!(store.remove(key) && !store.remove(again));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    entry: u32,
    generation: u32,
}

impl KmemStore {
    /// Makes a store without pages, for the groups of the runtime of `group`.
    pub fn new_in(group: &Group) -> Self {
        let root = group.ancestors().last().unwrap_or_else(|| group.clone());
        let page_bytes = page_size();
        let nodes = Topology::of(&root).nodes().len();
        KmemStore {
            root,
            page_bytes,
            arena: Mutex::new(Arena::new(page_bytes, nodes)),
        }
    }

    /// Bytes charged for a string of `len` bytes: the string and its header, in whole words.
    ///
    /// ```
    /// assert!(memcg_kmem::KmemStore::object_bytes(0) > 0);
    /// assert_eq!(memcg_kmem::KmemStore::object_bytes(16) - memcg_kmem::KmemStore::object_bytes(8), 8);
    /// ```
    pub const fn object_bytes(len: usize) -> u64 {
        taken(len) as u64
    }

    /// The longest string that fits: not quite a page.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
    /// assert!(store.insert(&runtime.root(), &vec![0; store.max_len()]).is_ok());
    /// assert!(store.insert(&runtime.root(), &vec![0; store.max_len() + 1]).is_err());
    /// ```
    pub fn max_len(&self) -> usize {
        self.page_bytes - taken(0)
    }

    /// Keeps a copy of these bytes in a page on the thread's node. May block: in async code call it
    /// on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`KmemError`]: the group refuses or belongs to another runtime, the system has no memory, or the bytes are more
    /// than [`max_len`](Self::max_len). Nothing has changed.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(10).build().unwrap();
    /// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
    /// assert!(matches!(store.insert(&runtime.root(), b"compressed"), Err(memcg_kmem::KmemError::Charge(_))));
    /// ```
    pub fn insert(&self, group: &Group, bytes: &[u8]) -> Result<StoreKey, KmemError> {
        self.insert_on(group, Topology::of(&self.root).current_node(), bytes)
    }

    /// Keeps a copy of these bytes in a page made for this node. May block: in async code call it
    /// on a thread for blocking work.
    ///
    /// The bytes are accounted where the page really lies. A node that the runtime does not have
    /// counts as its first.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
    /// let key = store.insert_on(&runtime.root(), memcg::kmem::NodeId::new(1), b"compressed")?;
    /// assert_eq!(store.get(key, <[u8]>::len), Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub fn insert_on(
        &self,
        group: &Group,
        node: NodeId,
        bytes: &[u8],
    ) -> Result<StoreKey, KmemError> {
        check_runtime(&self.root, group)?;
        if bytes.len() > self.max_len() {
            return Err(KmemError::Capacity {
                bytes: bytes.len() as u64,
                max: self.max_len() as u64,
            });
        }
        let (asked, node) = place_of(Topology::of(group), node);
        let object = taken(bytes.len()) as u64;
        let precharge = group.precharge(PrechargeBound::from(Bytes(object)).within(&[node]))?;
        let Reserved {
            entry,
            generation,
            bytes: place,
            node,
        } = self.reserve(asked, bytes.len())?;
        // SAFETY: the place has room for so many bytes, and is this thread's until it publishes
        // them.
        unsafe {
            place.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len())
        };
        self.publish(entry, precharge.account(&placed(node, object)), node);
        Ok(StoreKey { entry, generation })
    }

    /// Reads a string in place, with no lock held, while nothing moves it. `None`: it is not there
    /// any more. A string that is removed meanwhile stays until the reader is done.
    #[allow(unsafe_code)]
    pub fn get<R>(&self, key: StoreKey, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (pin, bytes) = {
            let mut arena = self.arena.lock();
            let StoreEntry { page, at, .. } = arena.find_key(key)?;
            let len = arena.len_of(key.entry) as usize;
            let page_of = &mut arena.pages[page as usize];
            page_of.pins += 1;
            (
                PagePin { store: self, page },
                std::ptr::NonNull::slice_from_raw_parts(page_of.bytes(at as usize), len),
            )
        };
        // SAFETY: the bytes were written before they were published. The page is pinned, so they
        // neither change nor move.
        let answer = read(unsafe { bytes.as_ref() });
        drop(pin);
        Some(answer)
    }

    /// Removes a string and uncharges its group. False where it was not there any more.
    pub fn remove(&self, key: StoreKey) -> bool {
        let mut arena = self.arena.lock();
        let Some(StoreEntry { page, state, .. }) = arena.find_key(key) else {
            return false;
        };
        if state == EntryState::Moving {
            // Mutation: removal-takes-what-is-set-aside
            arena.entries[key.entry as usize].state = EntryState::Gone;
            return true;
        }
        let owner = arena.take_owner(key.entry);
        arena.end(key.entry);
        let spare = arena.spare(page, EMPTY_MAX);
        drop(arena);
        // The memory is gone before the group gets its bytes back.
        drop(spare);
        drop(owner);
        true
    }

    // === Figures ===

    /// Strings in the store.
    pub fn len(&self) -> usize {
        self.arena.lock().objects
    }

    /// True if the store has no string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the store's pages, including the empty ones that it keeps.
    pub fn mapped(&self) -> usize {
        self.arena.lock().mapped * self.page_bytes
    }

    /// Bytes that strings take, by the node of their page. The accounts say the same, except for
    /// groups that were offline when a string of theirs moved, and for strings that are being moved
    /// now.
    pub fn placement(&self) -> Placement {
        let topology = Topology::of(&self.root);
        // The sums are gathered in place, so that nothing allocates under the lock.
        let mut nodes: SmallVec<[u64; BATCH]> = SmallVec::from_elem(0, topology.nodes().len() + 1);
        for page in &self.arena.lock().pages {
            let place = |node| topology.nodes().position(|of| of == node);
            let node = page.node.and_then(place).unwrap_or(nodes.len() - 1);
            nodes[node] += page.taken as u64;
        }
        let mut placement = placed(None, nodes.pop().unwrap_or(0));
        for (node, bytes) in topology.nodes().zip(nodes) {
            placement.add(Some(node), Bytes(bytes));
        }
        placement
    }
}

impl Arena {
    /// The entry of a key, if its string is still there.
    fn find_key(&self, key: StoreKey) -> Option<StoreEntry> {
        let entry = self.entries.get(key.entry as usize).copied()?;
        // Mutation: a-key-of-a-string-that-is-gone-leads-on
        (entry.generation == key.generation
            && matches!(entry.state, EntryState::Live | EntryState::Moving))
        .then_some(entry)
    }
}

/// A pin: nothing in the page moves.
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

    /// Makes the tables larger. The thread holds the lock for the change alone.
    fn enlarge(&self, entries: usize, pages: usize) -> Result<(), KmemError> {
        if entries.max(pages) >= u32::MAX as usize {
            return Err(KmemError::Capacity {
                bytes: entries as u64,
                max: u32::MAX.into(),
            });
        }
        let mut new_entries = Vec::new();
        let mut new_pages = Vec::new();
        let reserved = new_entries
            .try_reserve_exact(entries)
            .and_then(|()| new_pages.try_reserve_exact(pages));
        reserved.map_err(|_| KmemError::System {
            bytes: entries.max(pages).saturating_mul(size_of::<StoreEntry>()),
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        self.arena.lock().adopt(&mut new_entries, &mut new_pages);
        Ok(())
    }

    fn add_page(&self, asked: usize) -> Result<(), KmemError> {
        let topology = Topology::of(&self.root);
        let mut mapping = Mapping::new(self.page_bytes)?;
        let node = if topology.is_one_node() {
            node_at(topology, 0)
        } else {
            if let Some(node) = node_at(topology, asked) {
                mapping.bind(mapping.range(), node);
            }
            mapping.touch();
            look_up(&self.root, std::iter::once(mapping.range().start))[0]
        };
        // If another thread has taken the last place in the table, this drops the page and the
        // caller makes it anew.
        let refused = self.arena.lock().add_page(mapping, node, asked);
        drop(refused);
        Ok(())
    }

    /// Publishes an object that was filled or set aside, and has pinned its page, with an account
    /// made for a node. If the page lies elsewhere by now, the account follows it first. If the
    /// object was removed meanwhile, this ends both.
    fn publish(&self, entry: u32, mut account: Kmem, mut made_for: Option<NodeId>) {
        loop {
            // An account of some bytes on one node has two words. Any other ends here.
            let owner = account.pack().ok();
            let lies = {
                let mut arena = self.arena.lock();
                let StoreEntry { page, state, .. } = arena.entries[entry as usize];
                // Mutation: store-removed-while-its-account-moves
                // Mutation: publisher-does-not-look-for-the-end
                if state == EntryState::Gone {
                    arena.end(entry);
                    let spare = arena.unpin(page, EMPTY_MAX);
                    drop(arena);
                    drop(spare);
                    drop(owner);
                    return;
                }
                let lies = arena.pages[page as usize].node;
                // The page may have moved while the account was made or moved. Then the account
                // follows the page, without the lock, and is published once the page has not moved
                // again.
                if lies == made_for || owner.is_none() {
                    arena.put_owner(entry, owner);
                    arena.entries[entry as usize].state = EntryState::Live;
                    arena.pages[page as usize].pins -= 1;
                    return;
                }
                lies
            };
            let Some(owner) = owner else { return };
            account = owner.unpack();
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
                drop(arena.take_owner(entry as u32));
            }
        }
    }
}

impl fmt::Debug for KmemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KmemStore")
            .field("len", &self.len())
            .field("mapped", &self.mapped())
            .finish_non_exhaustive()
    }
}
