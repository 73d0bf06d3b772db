//! The pages of a slab, and the lists that link them.
//!
//! The lists link pages by address. A thread reads and writes the state behind the head and the
//! words under the slab's lock alone. A slot belongs to its holder alone. The rest of a page does
//! not change while the page exists. A `&mut SlabLists` proves that the thread holds the lock: it
//! may touch the state of any page in the lists.

#![allow(
    unsafe_code,
    reason = "pages are linked by address, and the lock alone makes them safe to touch"
)]

use std::ptr::NonNull;

use memcg::Group;
use memcg::kmem::NodeId;
use smallvec::SmallVec;

use super::layout::{END, PageLayout, SlotWord};
use crate::error::KmemError;
use crate::mapping::Mapping;
use crate::nodes::BATCH;
use crate::sync::{Arc, Mutex};

/// Empty pages that the slab keeps for each node: an object that comes and goes at the edge of a
/// page does not map and unmap one each time.
const EMPTY_MAX: u32 = 1;

pub(super) struct SlabCore<T> {
    pub(super) layout: PageLayout,
    pub(super) root: Group,
    pub(super) lists: Mutex<SlabLists<T>>,
}

// SAFETY: the lists hold addresses of pages, which threads reach under the lock alone. Values move
// in on one thread and are dropped on another.
unsafe impl<T: Send> Send for SlabCore<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SlabCore<T> {}
#[repr(C)]
pub(super) struct SlabPage<T> {
    pub(super) shared: Arc<SlabCore<T>>,
    pub(super) mapping: Mapping,
    pub(super) state: PageState<T>,
}

pub(super) struct PageState<T> {
    pub(super) node: Option<NodeId>,
    /// The node that the page was made for: the number of its list.
    pub(super) asked: usize,
    free: u32,
    /// Slots that are not free.
    pub(super) used: u32,
    /// Threads that look at the page, so that it must not go.
    pub(super) pins: u32,
    /// In the list of pages with free slots.
    pub(super) open: PageLinks<T>,
    pub(super) all: PageLinks<T>,
}

pub(super) struct PageLinks<T> {
    pub(super) before: Option<PageRef<T>>,
    pub(super) after: Option<PageRef<T>>,
}

pub(super) struct PageRef<T>(NonNull<SlabPage<T>>);

impl<T> Clone for PageRef<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PageRef<T> {}

impl<T> PartialEq for PageRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> PageLinks<T> {
    pub(super) const NONE: Self = PageLinks {
        before: None,
        after: None,
    };
}

impl<T> PageRef<T> {
    /// Makes a page in a mapping, with all slots free, in no list.
    pub(super) fn make(
        shared: Arc<SlabCore<T>>,
        mapping: Mapping,
        node: Option<NodeId>,
        asked: usize,
    ) -> Self {
        let layout = shared.layout;
        let start = mapping.first::<SlabPage<T>>();
        let state = PageState {
            node,
            asked,
            free: 0,
            used: 0,
            pins: 0,
            open: PageLinks::NONE,
            all: PageLinks::NONE,
        };
        // SAFETY: the mapping has a whole page of this layout, starts at a page, and has no other
        // user.
        unsafe {
            start.write(SlabPage {
                shared,
                mapping,
                state,
            });
            let words = start.byte_add(layout.words).cast::<SlotWord>();
            for slot in 0..layout.slots {
                let next = if slot + 1 < layout.slots {
                    slot + 1
                } else {
                    END
                };
                words.add(slot as usize).write(SlotWord::Free(next));
            }
        }
        PageRef(start)
    }

    /// Maps, binds and touches the memory of a page. Does not look up where it lies.
    pub(super) fn map(layout: PageLayout, node: Option<NodeId>) -> Result<Mapping, KmemError> {
        let mut mapping = Mapping::new(layout.page)?;
        if let Some(node) = node {
            mapping.bind(mapping.range(), node);
        }
        mapping.touch();
        Ok(mapping)
    }

    pub(super) fn address(self) -> usize {
        self.0.addr().get()
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<SlabCore<T>> {
        // SAFETY: the field does not change after the page was made. A thread with the address
        // keeps the page, by a slot or a pin.
        unsafe { &(*self.0.as_ptr()).shared }
    }

    /// # Safety
    ///
    /// The thread holds the slab's lock, and uses no other reference to this page's state or words
    /// meanwhile.
    #[inline]
    pub(super) unsafe fn state<'a>(self) -> &'a mut PageState<T> {
        // SAFETY: under the lock no other thread has a reference.
        unsafe { &mut (*self.0.as_ptr()).state }
    }

    /// # Safety
    ///
    /// As [`state`](Self::state), and `slot` is one of this page's.
    #[inline]
    pub(super) unsafe fn word<'a>(self, layout: PageLayout, slot: u32) -> &'a mut SlotWord {
        // SAFETY: the word is within the page and was written when the page was made. Under the
        // lock no other thread has a reference.
        unsafe {
            self.0
                .byte_add(layout.words)
                .cast::<SlotWord>()
                .add(slot as usize)
                .as_mut()
        }
    }

    /// The place of an object. `slot` is one of this page's.
    #[inline]
    pub(super) fn slot(self, layout: PageLayout, slot: u32) -> NonNull<T> {
        // SAFETY: the place is within the page.
        unsafe { self.0.byte_add(layout.first).cast::<T>().add(slot as usize) }
    }

    /// # Safety
    ///
    /// As [`state`](Self::state).
    pub(super) unsafe fn pop(self, layout: PageLayout, word: SlotWord) -> Result<u32, SlotWord> {
        // SAFETY: the caller keeps the contract. The list holds numbers of slots.
        let state = unsafe { self.state() };
        let slot = state.free;
        if slot == END {
            return Err(word);
        }
        // SAFETY: as above.
        let place = unsafe { self.word(layout, slot) };
        let SlotWord::Free(next) = *place else {
            return Err(word);
        };
        *place = word;
        state.free = next;
        state.used += 1;
        Ok(slot)
    }

    /// # Safety
    ///
    /// As [`word`](Self::word), and the slot has no holder any more.
    pub(super) unsafe fn push(self, layout: PageLayout, slot: u32) {
        // SAFETY: the caller keeps the contract.
        let (state, place) = unsafe { (self.state(), self.word(layout, slot)) };
        *place = SlotWord::Free(state.free);
        state.free = slot;
        state.used -= 1;
    }
}

impl<T> PageState<T> {
    pub(super) fn is_full(&self) -> bool {
        self.free == END
    }
}

// === Lists ===

/// All pages; and those with free slots, by the node that they were made for.
pub(super) struct SlabLists<T> {
    nodes: Box<[OnNode<T>]>,
    all: Option<PageRef<T>>,
    pub(super) pages: usize,
    /// The slab is gone: no empty page stays.
    closed: bool,
}

struct OnNode<T> {
    open: Option<PageRef<T>>,
    empty: u32,
}

/// Pages in one look-up.
pub(super) type Batch<T> = SmallVec<[PageRef<T>; BATCH]>;

type WhichLinks<T> = fn(&mut PageState<T>) -> &mut PageLinks<T>;

/// Puts a page at the front of a list.
///
/// # Safety
///
/// The thread holds the lock; `page` is in no list of this kind.
unsafe fn link<T>(first: &mut Option<PageRef<T>>, page: PageRef<T>, of: WhichLinks<T>) {
    // SAFETY: the caller keeps the contract; there is one reference at a time.
    unsafe {
        *of(page.state()) = PageLinks {
            before: None,
            after: *first,
        };
        if let Some(after) = first {
            of(after.state()).before = Some(page);
        }
    }
    *first = Some(page);
}

/// # Safety
///
/// The thread holds the lock; `page` is in the list.
unsafe fn unlink<T>(first: &mut Option<PageRef<T>>, page: PageRef<T>, of: WhichLinks<T>) {
    // SAFETY: the caller keeps the contract. Neighbours are in the list; there is one reference at
    // a time.
    unsafe {
        let PageLinks { before, after } = std::mem::replace(of(page.state()), PageLinks::NONE);
        match before {
            Some(before) => of(before.state()).after = after,
            None => *first = after,
        }
        if let Some(after) = after {
            of(after.state()).before = before;
        }
    }
}

impl<T> SlabLists<T> {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes.max(1))
            .map(|_| OnNode {
                open: None,
                empty: 0,
            })
            .collect();
        SlabLists {
            nodes,
            all: None,
            pages: 0,
            closed: false,
        }
    }

    /// Takes a free slot. Returns the word where there is none.
    pub(super) fn take(
        &mut self,
        layout: PageLayout,
        asked: usize,
        word: SlotWord,
    ) -> Result<(PageRef<T>, u32, Option<NodeId>), SlotWord> {
        let Some(page) = self.nodes[asked].open else {
            return Err(word);
        };
        // SAFETY: the thread holds the lock; a page in a list exists.
        unsafe {
            let slot = page.pop(layout, word)?;
            let state = page.state();
            let was_empty = state.used == 1;
            let is_full = state.is_full();
            let lies = state.node;
            self.nodes[asked].empty -= u32::from(was_empty);
            if is_full {
                unlink(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            Ok((page, slot, lies))
        }
    }

    pub(super) fn add(&mut self, layout: PageLayout, page: PageRef<T>, word: SlotWord) -> u32 {
        // SAFETY: the thread holds the lock; the page is the caller's and in no list.
        unsafe {
            // A new page has all its slots, and 0 is the first of them.
            let slot = page.pop(layout, word).unwrap_or(0);
            link(&mut self.all, page, |state| &mut state.all);
            self.pages += 1;
            let state = page.state();
            let is_full = state.is_full();
            let asked = state.asked;
            if !is_full {
                link(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            slot
        }
    }

    /// Takes a slot back. Returns the page, out of all lists, if it is one empty page too many.
    pub(super) fn give_back(
        &mut self,
        layout: PageLayout,
        page: PageRef<T>,
        slot: u32,
    ) -> Option<SparePage<T>> {
        // SAFETY: the thread holds the lock, and the caller had the slot.
        unsafe {
            let was_full = page.state().is_full();
            page.push(layout, slot);
            let asked = page.state().asked;
            let is_empty = page.state().used == 0;
            if was_full {
                link(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            self.nodes[asked].empty += u32::from(is_empty);
        }
        self.spare(page)
    }

    /// Takes the page out of the lists if it is empty, has no pin, and is one too many.
    fn spare(&mut self, page: PageRef<T>) -> Option<SparePage<T>> {
        // SAFETY: the thread holds the lock; the page is in the lists, and open if it is empty.
        unsafe {
            let state = page.state();
            let used = state.used;
            let pins = state.pins;
            let asked = state.asked;
            let node = &mut self.nodes[asked];
            // A thread that looks at a pinned page without the lock ends its pin later, and asks
            // again.
            // Mutation: a-slab-keeps-its-empty-pages
            if used > 0 || pins > 0 || (node.empty <= EMPTY_MAX && !self.closed) {
                return None;
            }
            node.empty -= 1;
            unlink(&mut node.open, page, |state| &mut state.open);
            unlink(&mut self.all, page, |state| &mut state.all);
        }
        self.pages -= 1;
        Some(SparePage(page))
    }

    /// Keeps no empty page from here on. Returns one that was kept, until there is none.
    pub(super) fn close(&mut self) -> Option<SparePage<T>> {
        self.closed = true;
        for node in 0..self.nodes.len() {
            let mut at = self.nodes[node].open.filter(|_| self.nodes[node].empty > 0);
            while let Some(page) = at {
                at = self.after(page, |state| &mut state.open);
                // One at a time: the caller unmaps it without the lock.
                let spare = self.spare(page);
                if spare.is_some() {
                    return spare;
                }
            }
        }
        None
    }

    /// Pins the next pages behind `last` in the list of all, or the first ones. A page that joins
    /// the list meanwhile stands before the first.
    pub(super) fn pin_after(&mut self, last: Option<PageRef<T>>) -> Batch<T> {
        let mut pages = SmallVec::new();
        let mut at = match last {
            Some(last) => self.after(last, |state| &mut state.all),
            None => self.all,
        };
        while let Some(page) = at.filter(|_| pages.len() < BATCH) {
            // SAFETY: the thread holds the lock; a page in the list exists.
            unsafe { page.state() }.pins += 1;
            pages.push(page);
            at = self.after(page, |state| &mut state.all);
        }
        pages
    }

    pub(super) fn unpin(&mut self, page: PageRef<T>) -> Option<SparePage<T>> {
        // SAFETY: the thread holds the lock; the page is pinned.
        unsafe { page.state() }.pins -= 1;
        self.spare(page)
    }

    fn after(&mut self, page: PageRef<T>, of: WhichLinks<T>) -> Option<PageRef<T>> {
        // SAFETY: the thread holds the lock; the page is in the list.
        unsafe { of(page.state()).after }
    }
}

/// A page in no list, of which no thread has a slot or the address, but for the thread that has
/// this. Its drop unmaps the page, with the page's handle of what the slab shares. The thread then
/// holds no lock.
pub(super) struct SparePage<T>(PageRef<T>);

impl<T> Drop for SparePage<T> {
    fn drop(&mut self) {
        // SAFETY: only new pages, and empty ones without a pin that have left the lists, are made
        // spare. The head is read out of the page, which goes with its mapping.
        let SlabPage {
            shared, mapping, ..
        } = unsafe { self.0.0.read() };
        drop(mapping);
        drop(shared);
    }
}
