//! Moves objects: into fuller pages, or with their page to another node.

use memcg::kmem::{NodeId, PackedKmem, Topology};
use smallvec::SmallVec;

use super::arena::{Arena, EntryState, StoreEntry, taken};
use super::{KmemStore, PagePin};
use crate::nodes::{BATCH, look_up};

/// The result of [`KmemStore::compact`].
///
/// ```
/// # let runtime = memcg::Runtime::builder().build().unwrap();
/// assert_eq!(memcg_kmem::KmemStore::new_in(&runtime.root()).compact(), memcg_kmem::Compaction::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// Objects that moved to another page.
    pub moved: usize,
    /// Those of them that moved to a page on another node.
    pub moved_nodes: usize,
    /// Bytes of pages that went back to the system.
    pub freed: usize,
}

/// An object that is set aside: its account moves from one page's node to another's.
struct Motion {
    entry: u32,
    owner: PackedKmem,
    from: Option<NodeId>,
    to: Option<NodeId>,
}

/// How far a page has become empty.
enum Evacuated {
    Whole,
    /// It goes on once the accounts that were set aside are published.
    Part,
    /// There is nothing more to gain.
    No,
}

impl Arena {
    /// Takes an object's account out, and pins its page until the thread publishes it again.
    fn set_aside(&mut self, entry: u32) -> Option<PackedKmem> {
        let StoreEntry { state, page, .. } = self.entries[entry as usize];
        if state != EntryState::Live {
            return None;
        }
        let owner = self.take_owner(entry)?;
        self.entries[entry as usize].state = EntryState::Moving;
        self.pages[page as usize].pins += 1;
        Some(owner)
    }

    /// Moves objects out of the emptiest page into fuller ones, as many as `motions` has room for.
    fn evacuate(
        &mut self,
        page_bytes: usize,
        motions: &mut Vec<Motion>,
        done: &mut Compaction,
    ) -> Evacuated {
        let Some((from, room)) = self.emptiest() else {
            return Evacuated::No;
        };
        let elsewhere = (self.mapped * page_bytes - self.taken).saturating_sub(room);
        // All that is free in other pages would not hold it: no page would become empty.
        if elsewhere < page_bytes - room {
            return Evacuated::No;
        }
        let own = self.pages[from as usize].asked;
        let mut at = 0;
        while let Some((place, header)) = self.pages[from as usize].next_object(at) {
            let bytes = taken(header.len as usize);
            let entry = header.entry;
            // Pages made for the same node come first.
            let lists = std::iter::once(own).chain((0..self.lists()).filter(|&list| list != own));
            // It has more room with each object that leaves: a page that was no fuller may be by now.
            let room = self.pages[from as usize].room(page_bytes);
            let Some(into) = lists
                .into_iter()
                .find_map(|list| self.find(list, bytes, room, from))
            else {
                break;
            };
            let nodes = [from, into].map(|page| self.pages[page as usize].node);
            // Nothing is allocated under the lock. The next round goes on with this page.
            if nodes[0] != nodes[1] && motions.len() == motions.capacity() {
                return Evacuated::Part;
            }
            self.shift(from, place, into);
            done.moved += 1;
            // Mutation: an-account-stays-where-its-string-was
            if nodes[0] != nodes[1]
                && let Some(owner) = self.set_aside(entry)
            {
                done.moved_nodes += 1;
                motions.push(Motion {
                    entry,
                    owner,
                    from: nodes[0],
                    to: nodes[1],
                });
            }
            at = place + bytes;
        }
        if self.pages[from as usize].next_object(0).is_none() {
            Evacuated::Whole
        } else if motions.is_empty() {
            Evacuated::No
        } else {
            // Pages with holes may have room for what is left, which they do not close as long as these
            // motions pin them.
            Evacuated::Part
        }
    }
}

impl KmemStore {
    /// Moves objects out of pages with few into fuller ones, first into those made for the same
    /// node, and gives the empty pages back. Accounts go with the objects. Other threads go on
    /// meanwhile: this holds the lock for one page at a time, and leaves out pages that a thread
    /// reads.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
    /// let mut keys = (0..100).map(|_| store.insert(&runtime.root(), &[7; 1_000])).collect::<Result<Vec<_>, _>>()?;
    /// let before = store.mapped();
    /// for key in keys.split_off(10) {
    ///     store.remove(key);
    /// }
    /// store.compact();
    /// assert!(store.mapped() <= before / 2);
    /// assert!(keys.iter().all(|&key| store.get(key, |bytes| bytes == [7; 1_000]) == Some(true)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Compaction {
        let mut done = Compaction::default();
        // As many as a page can have objects.
        let mut motions = Vec::with_capacity(self.page_bytes / taken(0));
        // Later pages and objects are not this call's.
        let (mut pages, mut objects) = {
            let arena = self.arena.lock();
            (arena.mapped, arena.objects)
        };
        while pages > 0 && objects > 0 {
            let before = done.moved;
            let evacuated = self
                .arena
                .lock()
                .evacuate(self.page_bytes, &mut motions, &mut done);
            self.free_empty(&mut done);
            for Motion {
                entry,
                owner,
                from,
                to,
            } in motions.drain(..)
            {
                let mut account = owner.unpack();
                account.follow(from, to);
                self.publish(entry, account, to);
            }
            match evacuated {
                Evacuated::Whole => pages -= 1,
                Evacuated::Part => objects = objects.saturating_sub(done.moved - before),
                Evacuated::No => break,
            }
        }
        self.free_empty(&mut done);
        done
    }

    fn free_empty(&self, done: &mut Compaction) {
        // In braces, so that the page is unmapped without the lock.
        while let Some(spare) = { self.arena.lock().any_empty() } {
            done.freed += spare.len();
        }
    }

    /// Looks up where each page lies, after pages have moved. The accounts of the objects follow.
    /// Does nothing in a runtime of one node.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let store = memcg_kmem::KmemStore::new_in(&runtime.root());
    /// store.insert(&runtime.root(), b"compressed")?;
    /// store.relocate();
    /// assert_eq!(store.placement().bytes(), runtime.root().live());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&self) {
        if Topology::of(&self.root).is_one_node() {
            return;
        }
        let mut first = 0;
        loop {
            let pinned = self.pin_pages(first);
            let Some((last, _)) = pinned.last() else {
                return;
            };
            first = last.page + 1;
            let nodes = look_up(&self.root, pinned.iter().map(|(_, address)| *address));
            for ((pin, _), node) in pinned.iter().zip(nodes) {
                self.page_moved(pin.page, node);
            }
        }
    }

    /// Pins the next pages by number, for a thread that looks them up. Returns them with their
    /// addresses.
    fn pin_pages(&self, first: u32) -> SmallVec<[(PagePin<'_>, usize); BATCH]> {
        let mut pinned = SmallVec::new();
        for (number, page) in self
            .arena
            .lock()
            .pages
            .iter_mut()
            .enumerate()
            .skip(first as usize)
        {
            if page.is_there() && pinned.len() < BATCH {
                page.pins += 1;
                // Numbers of pages are below `NONE`.
                pinned.push((
                    PagePin {
                        store: self,
                        page: number as u32,
                    },
                    page.address(),
                ));
            }
        }
        pinned
    }

    /// Notes where a pinned page lies, and moves the accounts of its objects there.
    fn page_moved(&self, page: u32, node: Option<NodeId>) {
        let before = std::mem::replace(&mut self.arena.lock().pages[page as usize].node, node);
        // Mutation: a-page-that-loses-its-node-moves-no-account
        if before == node {
            return;
        }
        let mut at = 0;
        loop {
            let mut arena = self.arena.lock();
            let Some((place, header)) = arena.pages[page as usize].next_object(at) else {
                return;
            };
            let entry = header.entry;
            // Mutation: a-moved-page-moves-one-account
            at = place + taken(header.len as usize);
            let aside = arena.set_aside(entry);
            drop(arena);
            if let Some(owner) = aside {
                let mut account = owner.unpack();
                account.follow(before, node);
                self.publish(entry, account, node);
            }
        }
    }
}
